"""A sweep file: what to try, on which experiment, how, and what counts as good.

    base_config: CartPole-v1:ppo          # a preset, or a file
    sweep:
      algorithm.learning_rate: {min: 1e-4, max: 1e-2, log: true}
      algorithm.epochs: [4, 10, 20]
    seeds: 3
    trials: 20

A W&B sweep file (`method`, `metric`, `parameters`) is read too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from rl_lab.config.presets import find_file, search_folders
from rl_lab.core.checker import check
from rl_lab.core.errors import ConfigError, UserError, did_you_mean
from rl_lab.core.options import Options, option, section
from rl_lab.records.metrics import MAIN_METRICS
from rl_lab.tuning.space import Choice, Space, parse_space
from rl_lab.tuning.tuner import Suggestion

Method = Literal["grid", "random", "tpe", "cmaes", "gp"]
OWN = ("experiment.name", "experiment.seed", "experiment.tags")  # set by the sweep itself
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")  # the runs' folders are found by it
_WANDB = {"grid": "grid", "random": "random", "bayes": "tpe"}
_WANDB_ONLY = ("program", "command", "project", "entity", "run_cap", "early_terminate", "metric")


@dataclass(frozen=True, kw_only=True)
class Objective(Options):
    """What makes a trial better than another."""

    metric: str = option("eval/return_mean", "a metric, or reward or loss")
    direction: Literal["max", "min"] = option("max", "whether more or less is better")
    of: Literal["last", "best"] = option("last", "which value of a run")
    across: Literal["mean", "iqm"] = option("mean", "how the values of several seeds become one")

    def __post_init__(self) -> None:
        """`reward` and `loss` stand for the main metrics."""
        super().__post_init__()
        object.__setattr__(self, "metric", MAIN_METRICS.get(self.metric, (self.metric,))[0])


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options):
    """How trials are chosen, run and compared."""

    name: str = option("", "begins the names of the runs", not_empty=True)
    method: Method = option("grid", "how settings are chosen")
    trials: int | None = option(None, "how many settings; null: all points of a grid", low=1)
    objective: Objective = section(Objective, "what makes a trial better than another")
    pruner: Literal["none", "asha", "hyperband", "median"] = option(
        "none", "which trials end early"
    )
    grace_steps: int = option(0, "environment steps before which no trial ends early", low=0)
    parallel_jobs: int = option(1, "trials at a time", low=1)
    threads: int = option(1, "torch threads of each job", low=1)
    seed: int = option(0, "seed of the search itself", low=0)


@dataclass(frozen=True, kw_only=True)
class Sweep(SweepOptions):
    """A sweep file, checked."""

    base_config: str
    space: Space
    seeds: tuple[int, ...] = (0,)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # overrides of every trial

    def __post_init__(self) -> None:
        """Refuse what does not go together, before anything runs."""
        super().__post_init__()
        problems = []
        if self.method != "grid" and self.trials is None:
            problems.append(f"trials: say how many, {self.method} has no end of its own")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            problems.append(f"seeds: must be different, and at least one, got {list(self.seeds)}")
        if not _NAME.fullmatch(self.name):
            problems.append(
                f"name: '{self.name}' names folders: at most 40 letters, digits and . _ - please"
            )
        if self.method == "grid" and self.space.first:
            problems.append("first: a grid tries all of its points anyway")
        keys = {*self.space.dimensions, *self.space.derived, *self.fixed}
        problems += [f"{key}: the sweep sets it itself" for key in OWN if key in keys]
        both = sorted({*self.space.dimensions, *self.space.derived} & set(self.fixed))
        if both:
            problems.append(f"fixed.{both[0]}: the sweep tries values of it already")
        if problems:
            raise ConfigError(problems)

    def label(self, trial: Suggestion) -> str:
        """What tells the runs of a trial from others, in their names."""
        return f"t{trial.number:04d}"

    def experiment(self, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The experiment that a trial starts from, and what it sets there."""
        return self.base_config, {**self.fixed, **settings}

    def folder(self, root: Path) -> Path:
        """Where its journal, its logs and its report are, in the folder of all runs."""
        return root / "sweeps" / self.name


def read_sweep(path: Path, base: str | None = None) -> Sweep:
    """The sweep in a file, or a shipped one by its name; `base`: the experiment, if not in it."""
    path = _shipped(path)
    tree = read_block(path, "a sweep: it needs base_config and sweep")
    try:
        return parse_sweep({"name": path.stem, **tree}, path.parent, base)
    except ConfigError as error:
        raise ConfigError([f"{path}: {each}" for each in error.problems]) from error
    except (ValueError, TypeError) as error:
        raise ConfigError([f"{path}: {error}"]) from error


def read_block(path: Path, what: str) -> Mapping[str, Any]:
    """The block that a YAML file is; `UserError` if it is not `what` it should be."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, Mapping):
        raise UserError(f"{path} is not {what}")
    return tree


def parse_sweep(tree: Mapping[str, Any], folder: Path = Path(), base: str | None = None) -> Sweep:
    """The sweep that a tree means."""
    words = _from_wandb(tree) if "parameters" in tree else dict(tree)
    known = {each.name for each in fields(Sweep)} - {"space"} | {"sweep", "constraints", "first"}
    for key in words:
        if key not in known:
            raise ConfigError([f"there is no '{key}' in a sweep{did_you_mean(key, known)}"])
    start = base or words.get("base_config")
    if not start:
        raise ConfigError(["base_config: name an experiment, as in CartPole-v1:ppo, or a file"])
    constraints = tuple(words.pop("constraints", None) or ())
    first = words.pop("first", None) or []
    first = [first] if isinstance(first, Mapping) else first
    space = parse_space(words.pop("sweep", None) or {}, constraints, first)
    listed = all(isinstance(each, Choice) or each.grid for each in space.dimensions.values())
    words.setdefault("method", "grid" if listed and words.get("trials") is None else "tpe")
    seeds = words.get("seeds", 1)
    own = {each.name for each in fields(SweepOptions)}
    options = check(SweepOptions, {key: words[key] for key in words if key in own})
    return Sweep(
        **vars(options),
        base_config=_located(str(start), folder),
        space=space,
        seeds=tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds),
        fixed=words.get("fixed") or {},
    )


def _shipped(path: Path) -> Path:
    """`cartpole_ppo` is a file in ./configs/sweep or in the package."""
    if path.suffix or path.exists():
        return find_file(path)
    found = [each for folder in search_folders() for each in folder.glob("sweep/*.yaml")]
    for file in found:
        if file.stem == str(path):
            return file
    known = [each.stem for each in found]
    raise UserError(f"there is no sweep file {path}{did_you_mean(str(path), known)}")


def _located(base: str, folder: Path) -> str:
    """A file is looked for beside the sweep file, then from here; anything else is a preset."""
    if not base.endswith((".yaml", ".yml")):
        return base
    for path in (folder / base, find_file(Path(base))):
        if path.is_file():
            return str(path)
    raise ConfigError([f"base_config: there is no file {base}"])


def _from_wandb(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The same sweep in our words. How W&B would start it is left out."""
    words = {key: value for key, value in tree.items() if key not in (*_WANDB_ONLY, "parameters")}
    words["sweep"] = dict(tree["parameters"])
    method = str(tree.get("method", "grid"))
    if method in _WANDB:
        words["method"] = _WANDB[method]
    metric = tree.get("metric") or {}
    if metric.get("name"):
        goal = {"maximize": "max", "minimize": "min"}.get(metric.get("goal", "minimize"), "min")
        words["objective"] = {"metric": metric["name"], "direction": goal}
    if tree.get("early_terminate"):
        words["pruner"] = "hyperband"
    if tree.get("run_cap") and words.get("method") != "grid":
        words["trials"] = tree["run_cap"]
    return words
