"""Repeats in turns, and what they say: medians, quartiles, ratios with their spread.

Machines drift: a neighbor starts, a clock slows down. So no job is measured in one block. Everyone
runs once per round, every second round in reverse, and a ratio is taken within each round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rl_lab.core.errors import UserError

T = TypeVar("T")
Samples = dict[str, list[T]]  # name -> one result per round
Tell = Callable[[str], None]


def silent(message: str) -> None:
    """Print nothing."""


def interleave(
    jobs: Mapping[str, Callable[[], T]], repeats: int, tell: Tell = silent
) -> Samples[T]:
    """Run every job once per round; the order turns around from round to round."""
    if repeats < 1:
        raise UserError(f"--repeats must be 1 or more, got {repeats}")
    samples: Samples[T] = {name: [] for name in jobs}
    total = repeats * len(jobs)
    for number in range(repeats):
        order = list(jobs) if number % 2 == 0 else list(jobs)[::-1]
        for name in order:
            done = sum(map(len, samples.values()))
            tell(f"[{done + 1}/{total}] {name}")
            samples[name].append(jobs[name]())
    return samples


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers, and the quartiles around it."""

    low: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Quartiles, interpolated linearly between neighbors; all equal for one number."""
    ordered = sorted(values)

    def quantile(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return Spread(quantile(0.25), quantile(0.5), quantile(0.75))


def ratio(values: Sequence[float], baseline: Sequence[float]) -> Spread:
    """How many times the baseline, round by round."""
    return spread([mine / other for mine, other in zip(values, baseline, strict=True)])
