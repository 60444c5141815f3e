"""When a monitor fires: pure judgements on what was seen of one metric."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from rl_lab.core.schema import MonitorConfig

USUAL_WEIGHT = 0.05  # of the latest mean in what is usual
USUAL_ROWS = 10  # rows before anything is unusual
NOISE_WEIGHT = 0.1  # of the latest change in what is noise
LONG_ROWS = 50  # rows before a run without a gain stalls
LONG_EPISODES = 50  # ended episodes before it does: rows may be many where episodes are few
# Less than this many of the usual changes between two rows, or than this share of the start, is no
# gain: the first episodes that end are short ones, so any return rises a little at first.
REAL_GAIN, REAL_SHARE = 4.0, 0.25
STALLED_GAIN = 2.0  # of those changes: to say that a run learns nothing needs more certainty


@dataclass
class Seen:
    """What a monitor remembers of one metric; plain numbers, saved with the run."""

    recent: list[float] = field(default_factory=list)  # the last `rows` values
    count: int = 0
    usual: float | None = None  # moving mean of the size
    noise: float = 0.0  # moving mean of the change between two rows
    start: float | None = None  # the first mean
    best: float | None = None  # the best mean so far
    firing: bool = False
    quiet: int = 0  # rows without a reason since it fired
    told: int = 0

    def add(self, value: float, monitor: MonitorConfig) -> None:
        """One more row."""
        if self.recent and math.isfinite(change := abs(value - self.recent[-1])):
            self.noise += (change - self.noise) * max(NOISE_WEIGHT, 1 / max(self.count, 1))
        self.count += 1
        self.recent = [*self.recent, value][-monitor.rows :]

    def settle(self, monitor: MonitorConfig) -> None:
        """After the judgement: the mean becomes a part of what is usual, and maybe the best."""
        if (now := self.mean(monitor)) is None or not math.isfinite(now):
            return
        weight = USUAL_WEIGHT if self.usual is not None else 1.0
        self.usual = (self.usual or 0.0) + (abs(now) - (self.usual or 0.0)) * weight
        self.start = now if self.start is None else self.start
        self.best = now if self.best is None else _better(monitor, now, self.best)

    def mean(self, monitor: MonitorConfig) -> float | None:
        """The mean, or median, of the last rows; None until there are enough of them."""
        if len(self.recent) < monitor.rows:
            return None
        if monitor.median and not any(map(math.isnan, self.recent)):  # it could be in any place
            return statistics.median(self.recent)
        return sum(self.recent) / len(self.recent)

    def gain(self, changes: float) -> float:
        """How far the best is from the start; 0 if that may be noise of `changes` usual changes."""
        if self.start is None or self.best is None:
            return 0.0
        gain = abs(self.best - self.start)
        least = max(changes * self.noise, REAL_SHARE * abs(self.start))
        return gain if gain > least else 0.0


def reason(
    monitor: MonitorConfig,
    seen: Seen,
    *,
    largest: float | None,
    share: float,
    episodes: float = math.inf,
) -> tuple[float, str] | None:
    """The value and why it fires: every condition of the monitor holds. None if one does not.

    `largest` is the largest size so far of the metric that bounds are multiples of; `share` is how
    much of the run is over, `episodes` how many have ended.
    """
    value = seen.mean(monitor)
    if value is None or math.isnan(value) or not monitor.after <= share <= monitor.until:
        return None
    if monitor.of is not None and largest is None:
        return None
    may_stall = share >= (monitor.stalls or 0.0) and episodes >= LONG_EPISODES
    reasons = list(_judged(monitor, seen, value, largest, may_stall=may_stall))
    held = [each for each in reasons if each]
    return (value, " and ".join(held)) if len(held) == len(reasons) else None


def _judged(
    monitor: MonitorConfig, seen: Seen, value: float, largest: float | None, *, may_stall: bool
) -> Iterator[str]:
    """One text per condition of the monitor; empty where it does not hold."""
    scale = 1.0 if monitor.of is None else max(largest or 0.0, 1.0)
    judged = abs(value) if monitor.absolute else value
    usual = seen.usual if seen.usual and seen.count > USUAL_ROWS else None
    if monitor.above is not None:
        yield (
            f"above {_limit(monitor.above, scale, monitor)}"
            if judged > monitor.above * scale
            else ""
        )
    if monitor.below is not None:
        yield (
            f"below {_limit(monitor.below, scale, monitor)}"
            if judged < monitor.below * scale
            else ""
        )
    if monitor.jumps is not None:
        jumped = usual is not None and abs(value) > monitor.jumps * usual
        yield f"{usual:.3g} is usual" if jumped else ""
    if monitor.drops is not None:
        dropped = usual is not None and abs(value) * monitor.drops < usual
        yield f"{usual:.3g} is usual" if dropped else ""
    if monitor.collapses is not None:
        best = value if seen.best is None else seen.best
        lost, gain = abs(best - value), seen.gain(REAL_GAIN)
        fell = _better(monitor, value, best) != value and lost > monitor.collapses * gain > 0
        yield f"it was {best:.3g} at its best" if fell else ""
    if monitor.stalls is not None:
        stalled = may_stall and seen.count >= LONG_ROWS
        stalled = stalled and seen.gain(STALLED_GAIN) == 0.0 and seen.start is not None
        yield f"no better than the {seen.start:.3g} of the start" if stalled else ""


def _limit(factor: float, scale: float, monitor: MonitorConfig) -> str:
    if monitor.of is None:
        return f"{factor:.3g}"
    return f"{factor * scale:.3g}, {factor:g} times the largest {monitor.of}"


def _better(monitor: MonitorConfig, one: float, other: float) -> float:
    return max(one, other) if monitor.better == "higher" else min(one, other)
