"""The settings of a run beside the defaults of its algorithm, and where each one comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_lab.analysis.groups import Run
from rl_lab.config.tree import leaves, to_tree
from rl_lab.config.validate import validate
from rl_lab.records.source import read_provenance

AUTO = "auto"
NONE = "-"  # where there is no default
OPTIONS = {  # of `rl-lab train` that are settings
    "--seed": "experiment.seed",
    "--total-timesteps": "training.total_timesteps",
    "--init-from-run": "training.warm_start",
    "--track": "logging.wandb.enabled",
}


@dataclass(frozen=True)
class Setting:
    """One leaf of a configuration."""

    path: str
    value: object
    default: object
    origin: str  # default, auto, command line, or preset or file


def settings(run: Run) -> list[Setting]:
    """Every setting of a run; a `UserError` if its algorithm is not known here."""
    defaults = defaults_of(run)
    typed = _typed(run)
    return [
        Setting(
            path, value, default := defaults.get(path, NONE), _origin(path, value, default, typed)
        )
        for path, value in run.config.items()
    ]


def changed_settings(run: Run) -> list[Setting]:
    """Those that are not the defaults, but for the names of environment and algorithm."""
    names = ("environment.id", "algorithm.name")
    return [each for each in settings(run) if each.value != each.default and each.path not in names]


def defaults_of(run: Run) -> Mapping[str, Any]:
    """The default of each setting, for this algorithm on this environment."""
    names = {
        "environment": {"id": run.task},
        "algorithm": {"name": run.config.get("algorithm.name")},
    }
    return dict(leaves(to_tree(validate(names, {}, existing=True))))


def _origin(path: str, value: object, default: object, typed: set[str]) -> str:
    if path in typed:
        return "command line"
    if value == default:
        return "default"
    return AUTO if default == AUTO else "preset or file"


def _typed(run: Run) -> set[str]:
    """The keys of `key=value`, and of options, in the command that began the run."""
    words = [str(word) for word in read_provenance(run.directory).get("command") or []]
    names = {word: word.partition("=")[0] for word in words}
    keys = {name.lstrip("+") for word, name in names.items() if "=" in word}
    return keys | {OPTIONS[name] for name in names.values() if name in OPTIONS}
