"""A tree of plain data against a config dataclass: types, ranges, unknown keys.

One checker for everything that users write: configurations, encoders of single parts, metrics.yaml,
sweeps. All problems are collected, each with its path.
"""

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rl_lab.core import registry
from rl_lab.core.errors import ConfigError, UserError, did_you_mean
from rl_lab.core.options import Options, check_ranges
from rl_lab.core.schedule import Schedule
from rl_lab.core.schema import AlgorithmConfig, BufferConfig
from rl_lab.core.values import (
    SCALARS,
    BadValueError,
    expected,
    free_value,
    literal,
    quoted,
    schedule,
    takes_float,
)

T = TypeVar("T")
TARGET = "_target_"


def check(schema: type[T], tree: object, path: str = "") -> T:
    """The dataclass that a tree means, or a ConfigError with a line for every problem."""
    checker = Checker()
    made = checker.block(schema, tree, path)
    checker.finish()
    return made


def check_variant(kind: str, block: object, path: str, *, key: str = "type") -> Any:
    """The config of a block that names a registered class, such as `{type: mlp}` or `mlp`."""
    checker = Checker()
    made = checker.variant({"variant": kind, "key": key, "default": {}}, block, path, False)
    checker.finish()
    return made


@cache
def arguments_class(factory: Callable[..., Any]) -> type[Any]:
    """The dataclass of the arguments that a class or function takes after its first one.

    Ranges come from `Annotated[int, limits(low=1)]`. What has no annotation that can be checked
    may be anything.
    """
    function = getattr(factory, "__init__", factory) if inspect.isclass(factory) else factory
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    declared: list[Any] = []
    for each in list(inspect.signature(factory).parameters.values())[1:]:
        hint, marks = hints.get(each.name, Any), {}
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            marks = next((note for note in notes if isinstance(note, dict)), {})
        default: Any = (
            {} if each.default is each.empty else {"default_factory": partial(_same, each.default)}
        )
        declared.append(
            (each.name, hint if _can_check(hint) else Any, field(metadata=marks, **default))
        )
    return make_dataclass(factory.__name__, declared, bases=(Options,), frozen=True, kw_only=True)


def _same(value: T) -> T:
    return value


def _can_check(annotation: object) -> bool:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType, list, Sequence):
        return all(map(_can_check, arguments))
    return origin is Literal or annotation in (Any, type(None), *SCALARS)


class Checker:
    """Walks a tree and a dataclass together, and collects problems instead of stopping."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def report(self, path: str, message: str) -> None:
        """Note one problem: `path: message`."""
        subject = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path) + ": " if path else ""
        if (line := f"{subject}{message}") not in self.problems:
            self.problems.append(line)

    def attempt(self) -> "Checker":
        """A checker like this one that has found nothing yet."""
        return Checker()

    def finish(self) -> None:
        """Raise if anything was wrong."""
        if self.problems:
            raise ConfigError(self.problems)

    # ------------------------------------------------------------------ blocks

    def block(self, schema: type[T], tree: object, path: str, *, schedules: bool = False) -> T:
        """One dataclass from one mapping. After a problem, the default stands in and we go on."""
        if not isinstance(tree, Mapping):
            self.report(path, f"must be a block of keys, got {quoted(tree)}")
            tree = {}
        hints = get_type_hints(schema)
        known = {each.name: each for each in fields(schema)}  # type: ignore[arg-type]
        for key in tree:
            if str(key) not in known and not self.is_ignored(join(path, key), tree[key]):
                self.report(join(path, key), self.unknown_key(path, str(key), known))
        values: dict[str, Any] = {}
        for name, each in known.items():
            where = join(path, name)
            schedulable = schedules or each.metadata.get("variant") == "workflow"
            if "variant" in each.metadata:
                values[name] = self.variant(each.metadata, tree.get(name), where, schedulable)
            elif "variants" in each.metadata:
                values[name] = self.variants(each.metadata, tree.get(name) or {}, where)
            elif is_dataclass(hints[name]):
                inner = {} if tree.get(name) is None else tree[name]
                # What is inside is read once, when it is built: it cannot follow a schedule.
                values[name] = self.block(hints[name], inner, where)
            elif name in tree:
                follows = schedules and not each.metadata.get("fixed")
                try:
                    values[name] = self.value(tree[name], hints[name], where, follows)
                except BadValueError as problem:
                    self.report(where, str(problem))
            elif each.default is MISSING and each.default_factory is MISSING:
                self.report(where, "is required")
        return self.construct(schema, values, path)

    def is_ignored(self, path: str, value: object) -> bool:
        """True for an unknown key that is dropped without a word."""
        return False

    def unknown_key(self, path: str, key: str, known: Mapping[str, Any]) -> str:
        """What to say about a key that the dataclass does not have."""
        return f"unknown key{did_you_mean(key, known)}"

    def construct(self, schema: type[T], values: dict[str, Any], path: str) -> T:
        """Call the dataclass; what its `__post_init__` refuses becomes a problem with its path.

        It refuses one thing at a time, so the refused fields fall back to their defaults and we
        ask again: the user sees all of it at once.
        """
        names = [each.name for each in fields(schema)]  # type: ignore[arg-type]
        while True:
            try:
                made = schema(**values)
                check_ranges(made)  # also of a class that does not derive from `Options`
                return made
            except ValueError as error:
                blamed: set[str] = set()
                for message in str(error).splitlines():
                    blamed |= self.refused(message, path, names)
            except TypeError as error:
                blamed = {key for key, each in values.items() if isinstance(each, Schedule)}
                if not blamed and not self.problems:
                    raise  # a bug in that dataclass, not a mistake of the user
                for key in blamed:
                    self.report(join(path, key), f"cannot be a schedule here ({error})")
            if not blamed & values.keys():
                blank: T = object.__new__(schema)  # never seen outside: `finish` raises
                return blank
            values = {key: each for key, each in values.items() if key not in blamed}

    def refused(self, message: str, path: str, names: Sequence[str]) -> set[str]:
        """`gamma must be …` of the block `algorithm` is a problem of `algorithm.gamma`.

        Returns the fields to blame.
        """
        if first := re.match(r"(\S+?):?\s+(.*)", message, re.DOTALL):
            name = first[1].removeprefix(f"{path}.")
            blamed = re.split(r"[.\[]", name)[0]
            if blamed in names:
                self.report(join(path, name), first[2])
                return {blamed}
        mentioned = [word for word in re.findall(r"\w+", message) if word in names]
        self.refused_together(message, path, mentioned)
        return set(mentioned)

    def refused_together(self, message: str, path: str, mentioned: Sequence[str]) -> None:
        """Report a problem of several fields of a block."""
        self.report(path, message)

    def variant(self, marks: Mapping[str, Any], tree: object, path: str, schedules: bool) -> Any:
        """A block whose dataclass is chosen by its `type`, `name` or `_target_`."""
        kind, key, default = marks["variant"], marks["key"], marks["default"]
        if isinstance(tree, str):  # memory: gru
            tree = {key: tree}
        if tree is not None and not isinstance(tree, Mapping):
            self.report(path, f"must be a block with a {key}, got {quoted(tree)}")
            return None
        block = dict(tree or {})
        if TARGET not in block and block.get(key, default.get(key)) == default.get(key):
            block = {**default, **block}
        chosen = self.chosen(kind, key, block, path)
        if chosen is None:
            return None
        labels: dict[str, Any] = {each: block.pop(each) for each in (key, TARGET) if each in block}
        config = config_class(chosen)
        if config is None:
            return self.free(kind, block, labels, path, schedules)
        schema = named_config_class(kind, config, tuple(labels))
        return self.block(schema, {**labels, **block}, path, schedules=schedules)

    def variants(self, marks: Mapping[str, Any], tree: object, path: str) -> dict[str, Any]:
        """Named blocks, each of them a variant."""
        if not isinstance(tree, Mapping):
            self.report(path, f"must be a block of names, got {quoted(tree)}")
            return {}
        one = {"variant": marks["variants"], "key": marks["key"], "default": {}}
        return {
            str(name): self.variant(one, block, join(path, name), False)
            for name, block in tree.items()
        }

    def chosen(self, kind: str, key: str, block: dict[str, Any], path: str) -> Any:
        """The registered class that a block names, or None after a report."""
        if key not in block:
            self.report(path, f"needs a {key}{did_you_mean('', registry.names(kind))}")
            return None
        try:
            return registry.get(kind, str(block[key]))
        except UserError as error:
            self.report(join(path, key), str(error))
        return None

    def free(
        self, kind: str, block: dict[str, Any], labels: dict[str, Any], path: str, schedules: bool
    ) -> Any:
        """The keys of a class without a `Config`, as they are; numbers and schedules are read."""
        values: dict[str, Any] = dict(labels)
        for key, each in block.items():
            if not str(key).isidentifier():
                self.report(join(path, key), "a key must be a plain word")
                continue
            try:
                values[str(key)] = free_value(each, schedules)
            except ValueError as error:
                self.report(join(path, key), str(error))
        return free_config_class(kind, tuple(values))(**values)

    # ------------------------------------------------------------------ values

    def value(self, value: object, annotation: object, path: str, schedules: bool) -> Any:
        """One value as its annotation wants it, or `BadValueError`."""
        if schedules and takes_float(annotation) and (found := schedule(value)) is not None:
            return found
        origin, arguments = get_origin(annotation), get_args(annotation)
        if annotation is Any:
            return value
        if origin in (Union, types.UnionType):
            return self.union(value, arguments, path)
        if origin is Literal:
            return literal(value, arguments)
        if annotation is type(None):
            if value is None:
                return None
            raise BadValueError(f"must be null, got {quoted(value)}")
        if annotation is Schedule:
            if (found := schedule(value)) is not None:
                return found
            raise BadValueError(f"must be a schedule such as lin_3e-4, got {quoted(value)}")
        if annotation in SCALARS:
            return SCALARS[annotation](value)
        if is_dataclass(annotation):
            return self.block(annotation, value, path)  # type: ignore[arg-type]
        container = origin or annotation
        if container in (list, tuple, Sequence):
            return self.items(value, arguments, path, container)
        if container in (dict, Mapping):
            return self.entries(value, arguments, path)
        raise TypeError(f"{path}: the validator does not know the type {annotation}")

    def union(self, value: object, arms: tuple[Any, ...], path: str) -> Any:
        """The first arm that fits; an arm of exactly the value's type comes first."""
        for arm in sorted(arms, key=lambda arm: arm is not type(value)):
            attempt = self.attempt()
            try:
                found = attempt.value(value, arm, path, False)
            except BadValueError:
                continue
            if not attempt.problems or isinstance(value, Mapping):
                self.problems += attempt.problems
                return found
        raise BadValueError(f"must be {expected(arms)}, got {quoted(value)}")

    def items(self, value: object, arguments: tuple[Any, ...], path: str, container: object) -> Any:
        """A list; each bad item is a problem of its own."""
        if not isinstance(value, (list, tuple)):
            raise BadValueError(f"must be a list, got {quoted(value)}")
        item = arguments[0] if arguments else Any
        found = []
        for index, each in enumerate(value):
            try:
                found.append(self.value(each, item, join(path, index), False))
            except BadValueError as problem:
                self.report(join(path, index), str(problem))
        return tuple(found) if container is tuple else found

    def entries(self, value: object, arguments: tuple[Any, ...], path: str) -> dict[str, Any]:
        """A mapping with free keys."""
        if not isinstance(value, Mapping):
            raise BadValueError(f"must be a block of keys, got {quoted(value)}")
        item = arguments[1] if arguments else Any
        found = {}
        for key, each in value.items():
            try:
                found[str(key)] = self.value(each, item, join(path, key), False)
            except BadValueError as problem:
                self.report(join(path, key), str(problem))
        return found


# ---------------------------------------------------------- dataclasses of chosen blocks


class FreeConfig:
    """The block of an algorithm that declares no `Config`: its YAML keys, read-only.

    `config.gamma`, `config["gamma"]` and `config.get("gamma", 0.99)` all work; a key that is a
    schedule is a schedule.
    """

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __getattr__(self, key: str) -> Any:
        raise AttributeError(f"the algorithm block has no key '{key}': write it in the YAML")

    def __contains__(self, key: str) -> bool:
        return key in vars(self)

    def get(self, key: str, default: object = None) -> Any:
        """The value of a key, or the default."""
        return vars(self).get(key, default)


CONTRACTS: dict[str, type] = {"workflow": AlgorithmConfig, "buffer": BufferConfig}


@cache
def free_config_class(kind: str, keys: tuple[str, ...]) -> type:
    """The frozen dataclass of an undeclared block with exactly these keys."""
    bases = (FreeConfig, CONTRACTS[kind]) if kind in CONTRACTS else (FreeConfig,)
    return make_dataclass(
        "FreeConfig", [(key, Any) for key in keys], bases=bases, frozen=True, kw_only=True
    )


@cache
def named_config_class(kind: str, config: type, keys: tuple[str, ...]) -> type:
    """A `Config` that also carries the keys by which it was chosen (`name`, `type`, `_target_`).

    The only place where a `Config` of a plug-in that does not derive from `AlgorithmConfig` or
    `BufferConfig` is given what those promise.
    """
    known = {each.name for each in fields(config)}
    extra = [(key, str) for key in keys if key not in known]
    contract = CONTRACTS.get(kind, config)
    bases = (config,) if issubclass(config, contract) else (config, contract)
    if not extra and bases == (config,):
        return config
    names = {"__module__": config.__module__, "__qualname__": config.__qualname__}
    return make_dataclass(
        config.__name__, extra, bases=bases, namespace=names, frozen=True, kw_only=True
    )


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a block, else an empty one (the mistake is reported elsewhere)."""
    return value if isinstance(value, Mapping) else {}


def join(path: str, key: object) -> str:
    """`a.b` and `c` to `a.b.c`."""
    return f"{path}.{key}" if path else str(key)


def config_class(item: type) -> type | None:
    """The `Config` dataclass that a registered class carries, if it has one."""
    config = getattr(item, "Config", None)
    if config is not None and not (isinstance(config, type) and is_dataclass(config)):
        raise UserError(f"{item.__qualname__}.Config must be a dataclass")
    return config
