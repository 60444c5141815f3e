"""Schedules are values: any float hyperparameter may change with the run's environment steps.

    learning_rate: 3e-4                          a number
    learning_rate: lin_3e-4                      3e-4 falling linearly to 0 over the run
    learning_rate: {start: 3e-4, end: 1e-5, from: 0.1, to: 0.9, shape: cosine, warmup: 0.05}

`from`, `to` and `warmup` at or below 1 are fractions of `total_timesteps`, above 1 they are steps.
A schedule is a pure function of the step, so there is nothing to save and nothing to restart.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

Config = TypeVar("Config")
SHAPES = ("linear", "cosine", "exp")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """From `start` to `end` between two points of the run; constant outside."""

    start: float
    end: float = 0.0
    begin: float = 0.0  # written `from` in YAML
    finish: float = 1.0  # written `to`
    shape: Literal["linear", "cosine", "exp"] = "linear"
    warmup: float = 0.0  # rises linearly from 0 during this part
    total: int | None = None  # total_timesteps; set by `bind`

    def __post_init__(self) -> None:
        """Refuse what cannot be evaluated."""
        if self.shape not in SHAPES:
            raise ValueError(f"shape must be one of {', '.join(SHAPES)}, got '{self.shape}'")
        if self.shape == "exp" and self.start * self.end <= 0:
            raise ValueError(
                "an exp schedule needs start and end of the same sign, neither of them 0"
            )
        one_unit = (self.begin > 1) == (self.finish > 1) or self.begin == 0
        if self.total is not None:
            ordered = self._steps(self.begin) < self._steps(self.finish)
        else:  # a share and a number of steps can only be compared once the total is known
            ordered = self.begin < self.finish or not one_unit
        if self.begin < 0 or not ordered:
            raise ValueError(f"needs 0 <= from < to, got from={self.begin:g}, to={self.finish:g}")

    def __call__(self, step: int) -> float:
        """The value at an environment step."""
        begin, finish, warmup = (
            self._steps(point) for point in (self.begin, self.finish, self.warmup)
        )
        share = min(max((step - begin) / (finish - begin), 0.0), 1.0)
        if self.shape == "cosine":
            share = 0.5 - 0.5 * math.cos(math.pi * share)
        if self.shape == "exp":
            value = self.start * (self.end / self.start) ** share
        else:
            value = self.start + (self.end - self.start) * share
        return value * min(step / warmup, 1.0) if warmup > 0 else value

    def _steps(self, point: float) -> float:
        if point > 1:
            return point
        if self.total is None:
            raise ValueError(
                "a schedule over a fraction of the run needs total_timesteps: call bind first"
            )
        return point * self.total

    def to_tree(self) -> dict[str, Any]:
        """As written in YAML."""
        return {
            "start": self.start,
            "end": self.end,
            "from": self.begin,
            "to": self.finish,
            "shape": self.shape,
            "warmup": self.warmup,
        }


def parse_schedule(value: object) -> Schedule | None:
    """The schedule that a value means: `lin_3e-4`, `{start: 1, end: 0}`.

    Args:
        value: A value of a configuration.

    Returns:
        The schedule; None if the value is not one.

    Raises:
        ValueError: It is a malformed schedule.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str) and value.startswith("lin_"):
        try:
            return Schedule(start=float(value.removeprefix("lin_")))
        except ValueError as error:
            raise ValueError(f"write a number after lin_, as in lin_3e-4, not '{value}'") from error
    if isinstance(value, Mapping) and "start" in value:
        keys = {"from": "begin", "to": "finish", "schedule": "shape"}
        renamed = {keys.get(str(key), str(key)): each for key, each in value.items()}
        allowed = {each.name for each in fields(Schedule)} - {"total"}
        unknown = sorted(set(renamed) - allowed)
        if unknown:
            known = "start, end, from, to, shape, warmup"
            raise ValueError(f"a schedule has no '{unknown[0]}' (it has {known})")
        numbers: dict[str, Any] = {k: float(v) for k, v in renamed.items() if k != "shape"}
        return Schedule(**numbers, shape=renamed.get("shape", "linear"))
    return None


def bind(config: Config, total: int) -> Config:
    """Set the length of the run in every schedule of a config."""
    return _map_schedules(config, lambda schedule: replace(schedule, total=total))


def in_steps(schedule: Schedule) -> Schedule:
    """A bound schedule that says the same in steps, whatever the length of the run."""
    begin, finish, warmup = map(schedule._steps, (schedule.begin, schedule.finish, schedule.warmup))
    return replace(schedule, begin=begin, finish=finish, warmup=warmup)


def at(config: Config, step: int) -> Config:
    """The config with every schedule replaced by its value at a step.

    Args:
        config: A config dataclass.
        step: Environment steps since the beginning of the run.

    Returns:
        A config of the same class with plain floats.
    """
    return _map_schedules(config, lambda schedule: schedule(step))


def extremes(value: float | Schedule) -> tuple[float, float]:
    """Smallest and largest value that a hyperparameter takes, for validation.

    Args:
        value: A number or a schedule.

    Returns:
        The smallest and the largest value.
    """
    if isinstance(value, Schedule):
        ends = (value.start, value.end, 0.0) if value.warmup > 0 else (value.start, value.end)
        return min(ends), max(ends)
    return value, value


def _map_schedules(config: Config, change: Callable[[Schedule], Any]) -> Config:
    changes: dict[str, Any] = {}
    for name, value in vars(config).items():  # called at every update: no detours by `fields`
        if isinstance(value, Schedule):
            changes[name] = change(value)
        elif hasattr(type(value), "__dataclass_fields__"):
            mapped = _map_schedules(value, change)
            if mapped is not value:
                changes[name] = mapped
    if not changes:
        return config
    # Not `replace`: what a schedule passes through on its way (a rate of 0) was checked as a whole.
    changed = object.__new__(type(config))
    vars(changed).update(vars(config) | changes)
    return changed
