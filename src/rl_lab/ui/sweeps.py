"""A sweep as data for its page: trials, the axes they lie on, which keys mattered."""

from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.records.metrics import plain
from rl_lab.tuning.driver import JOURNAL, remembered
from rl_lab.tuning.jobs import Pair, run_name
from rl_lab.tuning.report import sweep_facts
from rl_lab.tuning.space import Choice, Dimension, short_names
from rl_lab.tuning.tuner import Suggestion, Tuner


def sweep_page(folder: Path) -> dict[str, Any]:
    """What is known of a sweep now; it may be running."""
    sweep = remembered(folder)
    journal = folder / JOURNAL
    if not journal.is_file():
        raise UserError(f"sweep '{sweep.name}' has no {JOURNAL}")
    tuner = Tuner(
        sweep.space,
        direction=sweep.objective.direction,
        name=sweep.name,
        journal=journal,
        read_only=True,
    )
    facts = sweep_facts(sweep, tuner)
    names = short_names([*sweep.space.dimensions, *sweep.space.derived])
    for trial in facts["trials"]:
        pairs = [Pair(Suggestion(trial["trial"], trial["settings"]), seed) for seed in sweep.seeds]
        trial["runs"] = [run_name(sweep, pair) for pair in pairs]
    return plain(
        {
            **facts,
            "base": sweep.base_config,
            "method": sweep.method,
            "direction": sweep.objective.direction,
            "seeds": sweep.seeds,
            "keys": [{"key": key, "name": name} for key, name in names.items()],
            "axes": [_axis(key, names[key], each) for key, each in sweep.space.dimensions.items()],
        }
    )


def _axis(key: str, name: str, dimension: Dimension) -> dict[str, Any]:
    if isinstance(dimension, Choice):
        return {"key": key, "name": name, "choices": dimension.values}
    ends = {"low": dimension.low, "high": dimension.high, "log": dimension.log}
    return {"key": key, "name": name, **ends}
