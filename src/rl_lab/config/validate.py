"""The one validator: a tree against the dataclasses, all problems at once with origins."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from rl_lab.config import catalog
from rl_lab.config.components import part_problems, unused
from rl_lab.config.documents import COMMAND_LINE, Origin, origin_of
from rl_lab.config.legacy.keys import new_name
from rl_lab.core import registry
from rl_lab.core.checker import TARGET, Checker, join, mapping
from rl_lab.core.errors import ConfigError, UserError, did_you_mean
from rl_lab.core.schedule import bind
from rl_lab.core.schema import RunConfig
from rl_lab.run.phases import parse_phases

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

    What it names by path is imported: a config of another user goes through `trust.py` first. One
    of an `existing` run may have options that decide nothing, which a new one may not.
    """
    checker = RunChecker(origins)
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
    """The tree with what its algorithm wants of other blocks, unless the user sets it.

    Buffers are taken whole: a user who names buffers gets those only.
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


class RunChecker(Checker):
    """Checks the configuration of a run, and knows the file and line of every value."""

    def __init__(self, origins: Mapping[str, Origin]) -> None:
        super().__init__()
        self.origins = origins
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

    def attempt(self) -> "RunChecker":
        """A checker like this one that has found nothing yet."""
        return RunChecker(self.origins)

    def is_ignored(self, path: str, value: object) -> bool:
        """Options that are gone, where a saved config has them empty."""
        return path in RETIRED and not value

    def unknown_key(self, path: str, key: str, known: Mapping[str, Any]) -> str:
        """The new name of an old key, or the nearest one."""
        if (retired := RETIRED.get(join(path, key))) is not None:
            return retired
        renamed = new_name(join(path, key))
        if renamed:
            return f"unknown key (did you mean '{renamed}'?)"
        here, message = join(path, key), super().unknown_key(path, key, known)
        typed = self.typed(here) if origin_of(here, self.origins).file is not None else []
        # `network.memory.type=trxl` on the command line, `hidden_dim` of another type in a file
        return f"{message}: remove it with ~{here}" if typed else message

    def refused_together(self, message: str, path: str, mentioned: Sequence[str]) -> None:
        """Report a problem of several fields where one of them is written."""
        written = [
            self.origins[join(path, each)] for each in mentioned if join(path, each) in self.origins
        ]
        written.sort(key=lambda origin: origin != COMMAND_LINE)  # what was typed last is to blame
        self.report(path, message, origin=written[0] if written else None)

    # ------------------------------------------------------- classes named by their path

    def chosen(self, kind: str, key: str, block: dict[str, Any], path: str) -> Any:
        """The class that a block names; its labels are made canonical in place."""
        if TARGET not in block:
            return super().chosen(kind, key, block, path)
        try:
            item, block[TARGET] = self.target(block[TARGET], join(path, TARGET))
        except UserError as error:
            self.report(join(path, TARGET), str(error))
            return None
        block.setdefault(key, item.__name__)
        registry.remember(kind, block[TARGET], item)
        return item

    def target(self, target: object, path: str) -> tuple[Any, str]:
        """The class of a `_target_`, looked for also beside the file that names it."""
        file = origin_of(path, self.origins).file
        return catalog.find_target(str(target), [file.parent] if file else [])

    def plugins(self, files: object) -> Any:
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

    def targets(self, tree: object, path: str) -> Any:
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

    # ------------------------------------------------------------ cross checks

    def registered(self, kind: str, name: object, path: str) -> None:
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
            try:
                parse_phases(config.training.phases)
            except (UserError, ValueError) as error:
                for message in str(error).splitlines():
                    self.report(*phase_problem(message))
        if not existing:
            usual = Checker().block(type(config.network), {}, "network")
            for path, message in (*part_problems(config), *unused(config, usual)):
                self.report(path, message)
        for name, callback in config.training.callbacks.items():
            joined: Callable[[RunConfig], list[str]] | None = getattr(callback, "check", None)
            names = [each.name for each in fields(callback)]
            for message in joined(config) if joined else ():
                self.refused(message, f"training.callbacks.{name}", names)
        names = [each.name for each in fields(config.algorithm)]
        self.combining = True
        for message in config.algorithm.check(config):
            self.refused(message, "algorithm", names)


def phase_problem(message: str) -> tuple[str, str]:
    """Path and text of what the phase parser says, which may begin with the path."""
    found = re.match(r"(training\.phases[\w.\[\]]*):\s+(.*)", message, re.DOTALL)
    return (found[1], found[2]) if found else ("training.phases", message)
