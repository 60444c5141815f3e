"""The one validator: a tree against the dataclasses, all problems at once with origins."""

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rl_lab.config import catalog
from rl_lab.config.components import part_problems, unused
from rl_lab.config.documents import COMMAND_LINE, Origin, origin_of
from rl_lab.config.legacy.keys import new_name
from rl_lab.config.schema import (
    RunConfig,
    free_config_class,
    named_config_class,
)
from rl_lab.config.trust import TARGET
from rl_lab.config.values import (
    SCALARS,
    BadValueError,
    expected,
    free_value,
    literal,
    said,
    schedule,
    takes_float,
)
from rl_lab.core import registry
from rl_lab.core.errors import ConfigError, UserError, did_you_mean
from rl_lab.core.schedule import Schedule, bind

T = TypeVar("T")
COMBINED = ("algorithm", "buffers", "environment", "network")  # an algorithm's `check` sees these
# Options that are gone: an empty one is ignored, of another one this is the error.
RETIRED = {
    "training.interventions": "is a callback now: copy examples/interventions.py, then write "
    "plugins: [interventions.py] and training.callbacks: {rules: {type: interventions, rules: […]}}"
}
TARGETED = ("components", "optimizers")  # blocks that may name classes at any depth


def validate(
    tree: Mapping[str, Any], origins: Mapping[str, Origin], *, existing: bool = False
) -> RunConfig:
    """The typed config, or a ConfigError that lists every problem with the line it comes from.

    What it names by path is imported: a config of somebody else goes through `trust.py` first. One
    of an `existing` run may have options that decide nothing, which a new one may not.
    """
    checker = Checker(origins)
    parts = {"plugins": checker.plugins(tree.get("plugins"))}  # before any name is looked up
    tree = with_defaults(tree)
    parts |= {key: checker.targets(tree[key], key) for key in TARGETED if key in tree}
    config = checker.block(RunConfig, {**tree, **parts}, "")
    checker.cross_checks(tree, config, existing)
    checker.finish()
    try:
        return bind(config, config.training.total_timesteps)
    except ValueError as error:  # a schedule that only makes no sense for a run of this length
        raise ConfigError([f"algorithm: a schedule {error}"]) from error


def with_defaults(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree with what its algorithm wants of other blocks, where the user says nothing.

    Buffers are taken whole: somebody who names buffers of his own gets those only.
    """
    algorithm = tree.get("algorithm")
    name = algorithm if isinstance(algorithm, str) else mapping(algorithm).get("name", "ppo")
    try:
        if TARGET in mapping(algorithm):
            wanted = catalog.find_target(str(mapping(algorithm)[TARGET]))[0].defaults
        else:
            wanted = registry.get("workflow", str(name)).defaults
    except (UserError, AttributeError):  # an unknown algorithm is reported where it is written
        return tree
    own, known = mapping(tree.get("buffers")), wanted.get("buffers", {})
    if not own:
        return merged(wanted, tree)
    blocks = {key: each for key, each in wanted.items() if key != "buffers"}
    filled = {name: known[name] for name in own if name in known}  # in the order of the user's
    return merged(blocks, tree) | {"buffers": {name: merged(filled, own)[name] for name in own}}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees in one; where both have a value, the one above counts.

    Blocks of different `type` have different keys: then the one above stands alone.
    """
    found = dict(below)
    for key, value in above.items():
        lower = below.get(key)
        other = isinstance(value, Mapping) and value.get("type", mapping(lower).get("type"))
        if isinstance(value, Mapping) and isinstance(lower, Mapping) and other == lower.get("type"):
            found[key] = merged(lower, value)
        else:
            found[key] = value
    return found


def check(schema: type[T], tree: Mapping[str, Any], origins: Mapping[str, Origin]) -> T:
    """Any tree against any config dataclass."""
    checker = Checker(origins)
    config = checker.block(schema, tree, "")
    checker.finish()
    return config


class Checker:
    """Walks a tree and a dataclass together, and collects problems instead of stopping."""

    def __init__(self, origins: Mapping[str, Origin]) -> None:
        self.origins = origins
        self.problems: list[str] = []
        self.combining = False  # what is checked are values together, not each by itself

    def report(self, path: str, message: str, *, origin: Origin | None = None) -> None:
        """Note one problem: `path: message — origin`."""
        origin = origin or origin_of(re.sub(r"\[(\d+)\]", r".\1", path), self.origins)
        subject = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path) + ": " if path else ""
        typed = self.typed(path) if origin.file is not None else []
        also = f"{COMMAND_LINE} ({', '.join(typed)}) and " if typed else ""
        line = f"{subject}{message} — {also}{origin}"
        if line not in self.problems:
            self.problems.append(line)

    def typed(self, path: str) -> list[str]:
        """What was typed and does not go together with a line of a file."""
        paths = [each for each, origin in self.origins.items() if origin == COMMAND_LINE]
        if self.combining:
            return [each for each in paths if each.partition(".")[0] in COMBINED]
        block = path.rpartition(".")[0]
        return [each for each in paths if each in (f"{block}.name", f"{block}.type")]

    def finish(self) -> None:
        """Raise if anything was wrong."""
        if self.problems:
            raise ConfigError(self.problems)

    # ------------------------------------------------------------------ blocks

    def block(self, schema: type[T], tree: Any, path: str, *, schedules: bool = False) -> T:
        """One dataclass from one mapping. After a problem, the default stands in and we go on."""
        if not isinstance(tree, Mapping):
            self.report(path, f"must be a block of keys, got {said(tree)}")
            tree = {}
        hints = get_type_hints(schema)
        known = {each.name: each for each in fields(schema)}  # type: ignore[arg-type]
        for key in tree:
            if join(path, key) in RETIRED:
                if tree[key]:
                    self.report(join(path, key), RETIRED[join(path, key)])
            elif str(key) not in known:
                self.report(join(path, key), unknown_key(path, str(key), known))
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

    def construct(self, schema: type[T], values: dict[str, Any], path: str) -> T:
        """Call the dataclass; what its `__post_init__` refuses becomes a problem with its path.

        It refuses one thing at a time, so the refused fields fall back to their defaults and we
        ask again: the user sees all of it at once.
        """
        names = [each.name for each in fields(schema)]  # type: ignore[arg-type]
        while True:
            try:
                return schema(**values)
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
        first = re.match(r"([\w.]+):?\s+(.*)", message, re.DOTALL)
        if first:
            name = first[1].removeprefix(f"{path}.")
            field = name.split(".")[0]
            if field in names:
                self.report(join(path, name), first[2])
                return {field}
        mentioned = [word for word in re.findall(r"\w+", message) if word in names]
        written = [
            self.origins[join(path, each)] for each in mentioned if join(path, each) in self.origins
        ]
        written.sort(key=lambda origin: origin != COMMAND_LINE)  # what was typed last is to blame
        self.report(path, message, origin=written[0] if written else None)
        return set(mentioned)

    def variant(self, marks: Mapping[str, Any], tree: Any, path: str, schedules: bool) -> Any:
        """A block whose dataclass is chosen by its `type`, `name` or `_target_`."""
        kind, key, default = marks["variant"], marks["key"], marks["default"]
        if isinstance(tree, str):  # memory: gru
            tree = {key: tree}
        if tree is not None and not isinstance(tree, Mapping):
            self.report(path, f"must be a block with a {key}, got {said(tree)}")
            return None
        block = dict(tree or {})
        if TARGET not in block and block.get(key, default.get(key)) == default.get(key):
            block = {**default, **block}
        chosen = self.chosen(kind, key, block, path)
        if chosen is None:
            return None
        labels: dict[str, Any] = {each: block.pop(each) for each in (key, TARGET) if each in block}
        config = catalog.config_class(chosen)
        if config is None:
            return self.free(block, labels, path, schedules)
        schema = named_config_class(config, tuple(labels))
        return self.block(schema, {**labels, **block}, path, schedules=schedules)

    def variants(self, marks: Mapping[str, Any], tree: Any, path: str) -> dict[str, Any]:
        """Named blocks, each of them a variant."""
        if not isinstance(tree, Mapping):
            self.report(path, f"must be a block of names, got {said(tree)}")
            return {}
        one = {"variant": marks["variants"], "key": marks["key"], "default": {}}
        return {
            str(name): self.variant(one, block, join(path, name), False)
            for name, block in tree.items()
        }

    def chosen(self, kind: str, key: str, block: dict[str, Any], path: str) -> Any:
        """The class that a block names; its labels are made canonical in place."""
        try:
            if TARGET in block:
                where = join(path, TARGET)
                item, block[TARGET] = self.target(block[TARGET], where)
                block.setdefault(key, item.__name__)
                registry.remember(kind, block[TARGET], item)
                return item
            where = join(path, key)
            return registry.get(kind, str(block[key]))
        except UserError as error:
            self.report(where, str(error))
        except KeyError:
            self.report(path, f"needs a {key}{did_you_mean('', registry.names(kind))}")
        return None

    def target(self, target: Any, path: str) -> tuple[Any, str]:
        """The class of a `_target_`, looked for also beside the file that names it."""
        file = origin_of(path, self.origins).file
        return catalog.find_target(str(target), [file.parent] if file else [])

    def plugins(self, files: Any) -> Any:
        """Import local files, whose classes then have names; spelled to be found again."""
        if not isinstance(files, list) or not files:
            return files or []
        found = []
        for index, each in enumerate(files):
            file = origin_of(f"plugins.{index}", self.origins).file
            try:
                found.append(catalog.load_plugin(str(each), [file.parent] if file else []))
            except UserError as error:
                self.report(f"plugins.{index}", str(error))
        return found

    def targets(self, tree: Any, path: str) -> Any:
        """A free block with every `_target_` found, and spelled so that it is found again."""
        if isinstance(tree, list):
            return [self.targets(each, join(path, index)) for index, each in enumerate(tree)]
        if not isinstance(tree, Mapping):
            return tree
        found = {key: self.targets(each, join(path, key)) for key, each in tree.items()}
        if TARGET in tree:
            where = join(path, TARGET)
            try:
                found[TARGET] = self.target(tree[TARGET], where)[1]
            except UserError as error:
                self.report(where, str(error))
        return found

    def free(
        self, block: dict[str, Any], labels: dict[str, Any], path: str, schedules: bool
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
        return free_config_class(tuple(values))(**values)

    # ------------------------------------------------------------------ values

    def value(self, value: Any, annotation: Any, path: str, schedules: bool) -> Any:
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
            raise BadValueError(f"must be null, got {said(value)}")
        if annotation is Schedule:
            if (found := schedule(value)) is not None:
                return found
            raise BadValueError(f"must be a schedule such as lin_3e-4, got {said(value)}")
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

    def union(self, value: Any, arms: tuple[Any, ...], path: str) -> Any:
        """The first arm that fits; an arm of exactly the value's type comes first."""
        for arm in sorted(arms, key=lambda arm: arm is not type(value)):
            attempt = Checker(self.origins)
            try:
                found = attempt.value(value, arm, path, False)
            except BadValueError:
                continue
            if not attempt.problems or isinstance(value, Mapping):
                self.problems += attempt.problems
                return found
        raise BadValueError(f"must be {expected(arms)}, got {said(value)}")

    def items(self, value: Any, arguments: tuple[Any, ...], path: str, container: Any) -> Any:
        """A list; each bad item is a problem of its own."""
        if not isinstance(value, (list, tuple)):
            raise BadValueError(f"must be a list, got {said(value)}")
        item = arguments[0] if arguments else Any
        found = []
        for index, each in enumerate(value):
            try:
                found.append(self.value(each, item, join(path, index), False))
            except BadValueError as problem:
                self.report(join(path, index), str(problem))
        return tuple(found) if container is tuple else found

    def entries(self, value: Any, arguments: tuple[Any, ...], path: str) -> dict[str, Any]:
        """A mapping with free keys."""
        if not isinstance(value, Mapping):
            raise BadValueError(f"must be a block of keys, got {said(value)}")
        item = arguments[1] if arguments else Any
        found = {}
        for key, each in value.items():
            try:
                found[str(key)] = self.value(each, item, join(path, key), False)
            except BadValueError as problem:
                self.report(join(path, key), str(problem))
        return found

    # ------------------------------------------------------------ cross checks

    def registered(self, kind: str, name: Any, path: str) -> None:
        """A name that is written must be known."""
        known = registry.names(kind)
        if isinstance(name, str) and name not in known:
            self.report(
                path,
                f"unknown {registry.WORDS.get(kind, kind)} '{name}'{did_you_mean(name, known)}",
            )

    def cross_checks(self, tree: Mapping[str, Any], config: RunConfig, existing: bool) -> None:
        """What no single field can know; the algorithm's own `check` comes last."""
        wrappers = mapping(tree.get("environment")).get("wrappers")
        for index, block in enumerate(wrappers if isinstance(wrappers, list) else []):
            self.registered("wrapper", mapping(block).get("id"), f"environment.wrappers.{index}.id")
        if self.problems:
            return
        if config.training.phases:
            from rl_lab.run.phases import parse_phases

            try:
                parse_phases(config.training.phases)
            except (UserError, ValueError) as error:
                for message in str(error).splitlines():
                    self.report(*phase_problem(message))
        if not existing:
            usual = Checker({}).block(type(config.network), {}, "network")
            for path, message in (*part_problems(config), *unused(config, usual)):
                self.report(path, message)
        for name, callback in config.training.callbacks.items():
            joined: Callable[[RunConfig], list[str]] | None = getattr(callback, "check", None)
            names = [each.name for each in fields(callback)]
            for message in joined(config) if joined else ():
                self.refused(message, f"training.callbacks.{name}", names)
        own_check: Callable[[RunConfig], list[str]] | None = getattr(
            config.algorithm, "check", None
        )
        if own_check is not None:
            names = [each.name for each in fields(config.algorithm)]
            self.combining = True
            for message in own_check(config):
                self.refused(message, "algorithm", names)


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a block, else an empty one (the mistake is reported elsewhere)."""
    return value if isinstance(value, Mapping) else {}


def phase_problem(message: str) -> tuple[str, str]:
    """Path and text of what the phase parser says, which may begin with the path."""
    found = re.match(r"(training\.phases[\w.\[\]]*):\s+(.*)", message, re.DOTALL)
    return (found[1], found[2]) if found else ("training.phases", message)


def unknown_key(path: str, key: str, known: Mapping[str, Any]) -> str:
    """`unknown key`, with the new name of an old key, or the nearest one."""
    renamed = new_name(join(path, key))
    return (
        f"unknown key (did you mean '{renamed}'?)"
        if renamed
        else (f"unknown key{did_you_mean(key, known)}")
    )


def join(path: str, key: Any) -> str:
    """`a.b` and `c` to `a.b.c`."""
    return f"{path}.{key}" if path else str(key)
