"""Python objects in place of names: environments, algorithms and encoders given to `train`.

An object becomes words of a configuration. One that another process can import or find by a
registered name is named so; any other gets a name of this process, which begins with `local/`.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from torch import nn

from rl_lab.algorithms.base import Algorithm
from rl_lab.config.local_names import ARGUMENTS, named_parts, passed_again
from rl_lab.config.presets import DEFAULT_ALGORITHM, names_algorithm, split_spec
from rl_lab.config.tree import to_tree
from rl_lab.config.trust import TARGET
from rl_lab.config.values import as_override
from rl_lab.core import registry
from rl_lab.core.checker import config_class
from rl_lab.core.errors import UserError
from rl_lab.envs.from_object import describe_object
from rl_lab.envs.from_object import provide as provide_environment
from rl_lab.records.config_file import load_tree
from rl_lab.records.run_directory import RunDirectory

ALGORITHM = (
    "the name of an algorithm, its config such as PPOConfig(gamma=0.95), its class, or a dict"
)
ENCODER = "a torch.nn.Module class, the name of an encoder, or its block of options"


@dataclass(frozen=True)
class LocalObject:
    """An object under a name that only this process knows."""

    kind: str
    name: str
    item: Any

    def provide(self) -> None:
        """Register it, in place of another object that had its name."""
        if self.kind == "env":
            provide_environment(self.name, self.item)
        else:
            registry.provide(self.kind, self.name, self.item)


@dataclass
class Given:
    """What the arguments of `train` mean: an experiment, overrides of it, and local objects."""

    spec: str | None = None
    overrides: list[str] = field(default_factory=list)
    objects: list[LocalObject] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What a user should know about a run with local objects."""
        again = passed_again({each.kind: each.name for each in self.objects})
        return [
            "this run has Python objects that only this process knows; to use it in another one, "
            f"pass them again: rl_lab.resume(RUN, {again}) or rl_lab.load_run(RUN, {again})"
        ] * bool(again)

    def set(self, path: str, value: object) -> None:
        """Override one option; a block replaces the whole block of a preset."""
        if isinstance(value, Mapping):
            self.overrides.append(as_override(path, None))
        self.overrides.append(as_override(path, value))


# ----------------------------------------------------------------------- a new run


def read_arguments(
    env: object, algorithm: object, encoder: object, *, has_file: bool = False
) -> Given:
    """The first arguments of `train` in words of a configuration. Local objects are provided.

    Args:
        env: None, a text, or what `describe_object` takes.
        algorithm: None, a name, a config object, a class, or options to override.
        encoder: None, a name, a block of options or a class.
        has_file: A configuration file brings the experiment; the arguments override it.

    Raises:
        UserError: An argument is of another type, or the two do not go together.
    """
    given = Given()
    if isinstance(algorithm, Mapping):
        given.overrides.append(as_override("algorithm", algorithm))
        algorithm = None
    name, block = _read_algorithm(algorithm, given)
    id = env if env is None or isinstance(env, str) else _read_environment(env, given)
    if id is None or (has_file and not isinstance(env, str)):
        experiment = None
    else:
        experiment = _experiment(id, name, named=algorithm is not None, is_text=id is env)
    given.spec = experiment
    if experiment is None and id is not None:
        given.set("environment.id", id)
    if block is not None:
        given.set("algorithm", block)
    elif experiment is None and name is not None:
        given.set("algorithm.name", name)
    if encoder is not None:
        given.set("network.encoder", _read_encoder(encoder, given))
    return given


def _experiment(id: str, name: str | None, *, named: bool, is_text: bool) -> str | None:
    """`env:variant` for both; None if the algorithm has no name that could stand in it."""
    variant = split_spec(id)[1]
    if is_text and variant is not None and names_algorithm(id):
        if named and (name is None or not f"{variant}_".startswith(f"{name}_")):
            raise UserError(
                f"algorithm: '{id}' already names '{variant}': write "
                f"'{id.removesuffix(f':{variant}')}', or leave out the algorithm"
            )
        return id
    if not named:
        return id if is_text or variant is None else f"{id}:{DEFAULT_ALGORITHM}"
    return f"{id}:{name}" if name and re.fullmatch(r"[A-Za-z_]\w*", name) else None


def _read_environment(env: object, given: Given) -> str:
    found = describe_object(env)
    if found.id.startswith(registry.LOCAL):
        _keep(LocalObject("env", found.id, found.make), given)
    elif found.id == found.name:  # a registered id, and exactly these arguments of it
        given.set("environment.kwargs", dict(found.kwargs))
        if found.max_episode_steps is not None:
            given.set("environment.max_episode_steps", found.max_episode_steps)
    return found.id


def _read_algorithm(algorithm: object, given: Given) -> tuple[str | None, dict[str, Any] | None]:
    """The name of an algorithm, if it has one, and its whole block, if that is given."""
    if algorithm is None or isinstance(algorithm, str):
        return algorithm, None
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        block = _class_block("workflow", "name", algorithm, given)
        name = block.get("name", registry.LOCAL)
        return (None, block) if name.startswith(registry.LOCAL) else (name, None)
    if isinstance(algorithm, type) and is_dataclass(algorithm):
        name = algorithm.__name__
        raise UserError(f"algorithm: pass an object, {name}(), not the class {name}")
    if is_dataclass(algorithm) and (name := _algorithm_of(type(algorithm))) is not None:
        return name, {"name": name, **to_tree(algorithm)}
    raise UserError(f"algorithm: must be {ALGORITHM}, got {_shown(algorithm)}")


def _algorithm_of(config: type) -> str | None:
    """The registered algorithm that has this class as its `Config`."""

    def elsewhere(name: str) -> bool:  # its own module first: nothing else is imported then
        target = registry.target("workflow", name)
        module = target.partition(":")[0] if isinstance(target, str) else target.__module__
        return bool(module != config.__module__)

    for name in sorted(registry.names("workflow"), key=elsewhere):
        try:
            if config_class(registry.get("workflow", name)) is config:
                return name
        except UserError:  # a broken plug-in; it is reported where it is used
            continue
    return None


def _read_encoder(encoder: object, given: Given) -> dict[str, Any]:
    if isinstance(encoder, str):
        return {"type": encoder}
    if isinstance(encoder, Mapping):
        return dict(encoder)
    if isinstance(encoder, nn.Module):
        kind = type(encoder).__name__
        raise UserError(f"encoder: pass the class {kind}, not an instance: several may be made")
    if not (isinstance(encoder, type) and issubclass(encoder, nn.Module)):
        raise UserError(f"encoder: must be {ENCODER}, got {_shown(encoder)}")
    try:
        inspect.signature(encoder).bind(None, None)
    except TypeError:
        raise UserError(
            f"encoder: {encoder.__name__} must take two arguments, {encoder.__name__}(config, "
            "space): its block of options and the observation space"
        ) from None
    return _class_block("encoder", "type", encoder, given)


def _class_block(kind: str, key: str, item: type, given: Given) -> dict[str, Any]:
    """The block that names a class: by its registered name, its import path, or a local name."""
    name = registry.name_of(kind, item)
    if name is not None and not name.startswith(registry.LOCAL):
        return {key: name}
    if path := registry.import_path(item):
        return {TARGET: path.replace(":", ".")}
    local = LocalObject(kind, f"{registry.LOCAL}{item.__name__}", item)
    _keep(local, given)
    return {key: local.name}


def _keep(local: LocalObject, given: Given) -> None:
    local.provide()
    given.objects.append(local)


def _shown(value: object) -> str:
    return value.__qualname__ if isinstance(value, type) else type(value).__name__


# ------------------------------------------------------------------- an existing run


def for_run(
    run: RunDirectory, env: object, algorithm: object, encoder: object
) -> tuple[LocalObject, ...]:
    """The objects that a run was made with, given again, under the names that it knows.

    Args:
        run: The run.
        env: None, or the environment object.
        algorithm: None, or the class of the algorithm.
        encoder: None, or the class of the encoder.

    Raises:
        UserError: The run was made with something else.
    """
    objects = []
    for kind, item in (("env", env), ("workflow", algorithm), ("encoder", encoder)):
        if item is not None and (found := _same(run, kind, item)):
            objects.append(found)
    return tuple(objects)


def _same(run: RunDirectory, kind: str, item: object) -> LocalObject | None:
    argument, recorded = ARGUMENTS[kind], named_parts(load_tree(run.config_file))[kind]
    if kind == "env":
        known = describe_object(item)
        names, item = {known.id, f"{registry.LOCAL}{known.name}"}, known.make
    elif isinstance(item, type):
        names = {f"{registry.LOCAL}{item.__name__}", item.__name__}
        names |= {registry.name_of(kind, item) or item.__name__}
    else:
        raise UserError(f"{argument}: must be the class that run {run.id} was made with")
    if recorded not in names:
        raise UserError(f"{argument}: run {run.id} was made with '{recorded}', not with this one")
    return LocalObject(kind, recorded, item) if recorded.startswith(registry.LOCAL) else None
