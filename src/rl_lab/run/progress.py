"""What the loop itself remembers: metrics not yet logged, and how good the run has been."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_lab.core.clock import Every
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig

PREFIXES = {"collect": "collect", "update_controller": "controller"}  # other hooks: train/


def numbers_of(metrics: Mapping[str, Any], hook: str) -> dict[str, float]:
    """What a hook returned as plain numbers, each under its full name."""
    prefix = PREFIXES.get(hook, "train")
    try:
        return {
            name if name.startswith(f"{prefix}/") else f"{prefix}/{name}": float(value)
            for name, value in metrics.items()
        }
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        kind = (
            "a dict with a value that is no number"
            if isinstance(metrics, Mapping)
            else (f"a {type(metrics).__name__}")
        )
        raise UserError(f"{hook} returned {kind}; expected a dict of metrics: {error}") from error


def make_clocks(config: RunConfig) -> dict[str, Every]:
    """When to evaluate, log and save: by environment steps, and by updates in offline phases."""
    total = config.training.total_timesteps
    evaluate, save = config.evaluation.every_steps, config.checkpoint.every_steps
    assert evaluate != "auto" and save != "auto", "resolve the config first"
    return {
        "evaluate": Every(evaluate),
        "checkpoint": Every(save),
        "log": Every(config.logging.every_steps or max(total // 500, 1)),
        "offline_checkpoint": Every(config.checkpoint.every_updates),
        "offline_log": Every(config.logging.every_updates),
    }


@dataclass
class Progress:
    """Saved with the run, so that a resumed one writes the same rows and stops at the same time."""

    sums: dict[str, list[float]] = field(default_factory=dict)  # metric -> [total, count]
    latest: dict[str, float] = field(default_factory=dict)
    last_score: float | None = None
    measured_at: list[int] = field(default_factory=list)  # steps and updates of that evaluation
    best_score: float | None = None
    best_step: int | None = None
    best_is_new: bool = False  # there is no checkpoint of it yet
    evaluations: int = 0
    streak: int = 0  # evaluations in a row that reached the goal
    resumes: int = 0

    def note(self, numbers: Mapping[str, float], *, mean: bool) -> None:
        """Keep metrics for the next row: the mean since the last row, or the latest value."""
        if not mean:
            self.latest.update(numbers)
            return
        for name, number in numbers.items():
            total, count = self.sums.get(name, [0.0, 0])
            self.sums[name] = [total + number, count + 1]

    def take_row(self) -> dict[str, float]:
        """The metrics since the last row; they are kept no longer."""
        means = {name: total / count for name, (total, count) in self.sums.items()}
        row = {**self.latest, **means}
        self.sums, self.latest = {}, {}
        return row

    def judge(self, score: float, step: int, goal: float | None) -> None:
        """Take note of an evaluation. Of equal scores the first is the best."""
        self.last_score = score
        self.evaluations += 1
        if self.best_score is None or score > self.best_score:
            self.best_score, self.best_step, self.best_is_new = score, step, True
        reached = goal is not None and score >= goal
        self.streak = self.streak + 1 if reached else 0

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """All of it; an older checkpoint has more and less."""
        vars(self).update({name: state[name] for name in vars(self) if name in state})
