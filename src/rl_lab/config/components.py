"""What `components:` and `optimizers:` mean: the one place where a named part is made from YAML."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from rl_lab.config import catalog
from rl_lab.config.tree import diff, to_tree
from rl_lab.core import registry
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.core.schema import NetworkConfig, RunConfig

KIND = "component"  # in the registry, where names are `role.name`
TARGET, PARTIAL, TYPE = "_target_", "_partial_", "type"
OPTIMIZERS = "optimizers"


def make_components(config: RunConfig, block: str) -> dict[str, Any]:
    """The parts of `components:` or `optimizers:` by role, for an algorithm's context.

    Of a role that the algorithm declares, what makes it: the algorithm knows the sizes. Anything
    else is made here, from its own keys, unless it says `_partial_: true`.
    """
    algorithm = catalog.algorithm_class(config.algorithm)
    declared: Mapping[str, tuple[str, ...]] = getattr(algorithm, "roles", None) or {}
    made: dict[str, Any] = {}
    for role, written in getattr(config, block).items():
        path, keys = f"{block}.{role}", _keys(written)
        target = _target(role, keys, path)
        arguments = {key: each for key, each in keys.items() if key not in (TARGET, PARTIAL, TYPE)}
        factory = partial(target, **arguments)
        if block == OPTIMIZERS or keys.get(PARTIAL):
            made[role] = factory
        elif role in declared:
            called = declared[role]
            made[role] = partial(_made, path, factory, called) if called else factory
        else:
            made[role] = factory()
    return made


def _made(
    path: str, factory: Callable[..., Any], called: tuple[str, ...], *args: object, **more: object
) -> Any:
    """A part of an algorithm, or one line about why it cannot be one."""
    name = getattr(factory.func, "__name__", path)  # type: ignore[attr-defined]
    try:
        part = factory(*args, **more)
    except TypeError as error:
        raise UserError(f"{path}: {name} cannot be made here: {error}") from error
    if missing := [each for each in called if not hasattr(part, each)]:
        raise UserError(f"{path} is a {name}, which has no '{missing[0]}'")
    return part


def _target(role: str, keys: Mapping[str, Any], path: str) -> Any:
    if TARGET in keys:
        return catalog.find_target(str(keys[TARGET]))[0]
    if TYPE in keys:
        return registry.get(KIND, f"{role}.{keys[TYPE]}")
    raise UserError(f"{path} needs a _target_ (the path of a class) or a type (a registered name)")


def _keys(written: object) -> Mapping[str, Any]:
    """A block, or the name alone."""
    if isinstance(written, str):
        return {TYPE: written}
    return written if isinstance(written, Mapping) else {}


def part_problems(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Roles that the algorithm does not have, and names that are not registered."""
    algorithm, name = catalog.algorithm_class(config.algorithm), config.algorithm.name
    roles: Mapping[str, Any] | None = getattr(algorithm, "roles", None)
    known = {
        "components": None if roles is None else [*roles, *algorithm.requires],
        OPTIMIZERS: getattr(algorithm, "optimized", None),
    }
    for block, names in known.items():
        for role, written in getattr(config, block).items():
            path, keys = f"{block}.{role}", _keys(written)
            if names is not None and role not in names:
                has = f"has {', '.join(names)}" if names else "has none to replace"
                nearest = did_you_mean(role, names)
                hint = nearest if "did you mean" in nearest else ""
                yield path, f"no part of {name}, which {has}{hint}"
            elif TARGET not in keys and TYPE not in keys:
                yield path, "needs a _target_ (the path of a class) or a type (a registered name)"
            elif TARGET not in keys and (problem := _unknown(role, str(keys[TYPE]))):
                yield path, problem


def _unknown(role: str, name: str) -> str:
    start = f"{role}."
    names = [each.removeprefix(start) for each in registry.names(KIND) if each.startswith(start)]
    return "" if name in names else f"unknown {role} '{name}'{did_you_mean(name, names)}"


def unused(config: RunConfig, network: NetworkConfig) -> Iterator[tuple[str, str]]:
    """Options that differ from the default `network`, of an algorithm without such a network."""
    algorithm = catalog.algorithm_class(config.algorithm)
    if getattr(algorithm, "uses_network", True):
        return
    hint = "its networks are sized by options of `algorithm:`" if algorithm.roles else "it has none"
    for path, *_ in diff({"network": to_tree(network)}, {"network": to_tree(config.network)}):
        yield path, f"has no effect with {config.algorithm.name}: {hint}"
