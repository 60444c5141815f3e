"""What a sweep tries: choices and ranges by key, values that depend on them, constraints."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from rl_lab.core.errors import ConfigError, UserError, did_you_mean
from rl_lab.core.values import read_number
from rl_lab.tuning.expressions import evaluate, is_expression, names

Settings = dict[str, Any]  # key -> value, of one trial


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Any, ...]

    def __contains__(self, value: object) -> bool:
        """Whether it is one of them."""
        return value in self.values


@dataclass(frozen=True)
class Range:
    """Between two numbers, both included; whole numbers if both are whole."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether its values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __contains__(self, value: object) -> bool:
        """Whether it lies between them."""
        if not isinstance(value, int if self.is_whole else int | float):
            return False
        return self.low <= value <= self.high

    @property
    def grid(self) -> tuple[Any, ...] | None:
        """Its values one by one, if a step says which."""
        if self.step is None:
            return None
        count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
        return tuple(self.low + index * self.step for index in range(count))


Dimension = Choice | Range


@dataclass(frozen=True)
class Space:
    """Every key that a sweep sets."""

    dimensions: Mapping[str, Dimension]
    derived: Mapping[str, str] = field(default_factory=dict)  # key -> expression
    constraints: tuple[str, ...] = ()
    first: tuple[Settings, ...] = ()  # tried before any others; no part of a grid

    def __post_init__(self) -> None:
        """Expressions may look at what is tried, and at derived values before them."""
        known = set(self.dimensions)
        for key, text in self.derived.items():
            _require(names(text), known, f"sweep.{key}")
            known.add(key)
        for text in self.constraints:
            _require(names(text), known, "constraints")
        for settings in self.first:
            self._check_first(settings)

    def _check_first(self, settings: Settings) -> None:
        """What is tried first must be what could be tried later."""
        for key in settings:
            if key not in self.dimensions:
                raise UserError(
                    f"first: there is no {key} in sweep{did_you_mean(key, self.dimensions)}"
                )
        for key, dimension in self.dimensions.items():
            if key not in settings:
                raise UserError(f"first: give {key} a value too")
            if settings[key] not in dimension:
                raise UserError(f"first: {key} cannot be {settings[key]!r} in this sweep")
        if not self.allows(settings):
            raise UserError(f"first: {settings} does not keep the constraints")

    def complete(self, chosen: Mapping[str, Any]) -> Settings:
        """What is tried, with the values that depend on it."""
        settings = dict(chosen)
        for key, text in self.derived.items():
            settings[key] = evaluate(text, settings)
        return settings

    def allows(self, chosen: Mapping[str, Any]) -> bool:
        """Whether all constraints hold."""
        settings = self.complete(chosen)
        return all(bool(evaluate(text, settings)) for text in self.constraints)

    def points(self) -> Iterator[Settings]:
        """Every allowed combination, in the order of the file; the last key changes fastest."""
        axes = []
        for key, dimension in self.dimensions.items():
            values = dimension.values if isinstance(dimension, Choice) else dimension.grid
            if values is None:
                raise UserError(f"sweep.{key} has no end of values: give it a step for a grid")
            axes.append(values)
        for values in product(*axes):
            point = dict(zip(self.dimensions, values, strict=True))
            if self.allows(point):
                yield point


def parse_space(
    tree: Mapping[str, Any],
    constraints: tuple[str, ...] = (),
    first: Sequence[Mapping[str, Any]] = (),
) -> Space:
    """The space that a `sweep:` block means. All problems at once."""
    dimensions: dict[str, Dimension] = {}
    derived: dict[str, str] = {}
    problems: list[str] = []
    for key, value in tree.items():
        try:
            if is_expression(value):
                derived[key] = value
            else:
                dimensions[key] = parse_dimension(value)
        except ValueError as error:
            problems.append(f"sweep.{key}: {error}")
    if not dimensions:
        problems.append("sweep: there is nothing to try: write key: [value, …]")
    if problems:
        raise ConfigError(problems)
    starts = tuple({key: _number(value) for key, value in each.items()} for each in first)
    return Space(dimensions, derived, constraints, starts)


def parse_dimension(value: object) -> Dimension:
    """A list, `{values: […]}`, `{min, max, log, step}`, or the same in the words of W&B."""
    if isinstance(value, list):
        if not value:
            raise ValueError("an empty list leaves nothing to try")
        return Choice(tuple(_number(each) for each in value))
    if not isinstance(value, Mapping):
        return Choice((_number(value),))
    known = {"values", "value", "min", "max", "log", "step", "q", "distribution"}
    for key in value:
        if key not in known:
            raise ValueError(f"there is no '{key}' here{did_you_mean(key, known)}")
    if "values" in value or "value" in value:
        return parse_dimension(value["values"] if "values" in value else [value["value"]])
    if "min" not in value or "max" not in value:
        raise ValueError("a range needs min and max")
    low, high = _number(value["min"]), _number(value["max"])
    step = _number(value.get("step", value.get("q")))
    distribution = str(value.get("distribution", ""))
    log = bool(value.get("log", "log_uniform" in distribution))
    if not all(isinstance(each, int | float) for each in (low, high)):
        raise ValueError(f"min and max must be numbers, got {low!r} and {high!r}")
    if low > high:
        raise ValueError(f"min {low:g} is above max {high:g}")
    if log and low <= 0:
        raise ValueError(f"a logarithmic range must be positive, got min {low:g}")
    if step is not None and (log or step <= 0):
        raise ValueError("step must be positive, and is not for logarithmic ranges")
    if distribution.startswith(("int", "q_")):
        low, high = int(low), int(high)
    return Range(low, high, log, step)


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """For each key the shortest end that is its own: `algorithm.gamma` is shown as `gamma`."""
    ends = {key: key.rpartition(".")[2] for key in keys}
    taken = list(ends.values())
    return {key: end if taken.count(end) == 1 else key for key, end in ends.items()}


def _number(value: object) -> Any:
    """Text that is a number is a number, as everywhere in a configuration."""
    if isinstance(value, list):
        return [_number(each) for each in value]
    number = read_number(value) if isinstance(value, str) else None
    return value if number is None else number


def _require(wanted: list[str], known: set[str], where: str) -> None:
    for name in wanted:
        if name not in known:
            raise UserError(
                f"{where}: ${{{name}}} is not set by this sweep before{did_you_mean(name, known)}"
            )
