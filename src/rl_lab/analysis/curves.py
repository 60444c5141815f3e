"""Metrics of runs as curves over environment steps, and several of them on common steps."""

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rl_lab.analysis.statistics import LEVEL, iqm
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.records.metrics import MAIN_METRICS, STEP, iterate_metrics

Array = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

POINTS = 200  # of a curve in a plot
THINNED = 8_000  # points of a long curve in a report
BAND_SAMPLES = 500  # of the bootstrap at each of them


@dataclass(frozen=True, eq=False)
class Curve:
    """Finite values of one metric at rising steps, at least one."""

    steps: Steps
    values: Array

    @property
    def final(self) -> float:
        """The last value."""
        return float(self.values[-1])

    def at(self, step: int) -> float | None:
        """What had been shown by a step: the last value at or before it, never a later one."""
        place = int(np.searchsorted(self.steps, step, side="right"))
        return float(self.values[place - 1]) if place else None


def read_curves(
    metrics_file: Path, names: Collection[str] = (), *, start: int = 0, thin: bool = False
) -> dict[str, Curve]:
    """Metrics of a run from a step on, all if none is named.

    Of two rows of the same step the later one counts. With `thin`, memory does not grow with the
    file: of a long curve the lowest and the highest point of each of many equal parts are kept.
    """
    found: dict[str, _Points] = {}
    for row in iterate_metrics(metrics_file):
        step = row.pop(STEP)
        if step < start:
            continue
        for name in names or row:
            value = row.get(name)
            if value is not None and math.isfinite(value):
                if name not in found:
                    found[name] = _Points(THINNED if thin else math.inf)
                found[name].add(step, value)
    return {name: points.curve() for name, points in found.items()}


class _Points:
    """The points of a curve; when there are more than `limit`, every second pair goes.

    `part` points that came one after the other are two here: the lowest and the highest.
    """

    def __init__(self, limit: float) -> None:
        self.limit, self.part = limit, 2
        self.steps, self.values = array("q"), array("d")
        self.open: dict[int, float] = {}  # of the part that is not complete; the last one counts

    def add(self, step: int, value: float) -> None:
        if step not in self.open and len(self.open) >= self.part:
            self._keep(self.open)
            self.open = {}
            if len(self.steps) >= self.limit:
                self._halve()
        self.open[step] = value

    def curve(self) -> Curve:
        self._keep(self.open)
        last = next(reversed(self.open.items()))
        if self.steps[-1] != last[0]:  # where the curve ends is always shown
            self.steps.append(last[0])
            self.values.append(last[1])
        steps, values = np.array(self.steps), np.array(self.values)
        # The last of each step, in the order of steps.
        order = np.argsort(steps, kind="stable")
        final = np.append(np.diff(steps[order]) > 0, True)
        return Curve(steps[order][final], values[order][final])

    def _keep(self, points: Mapping[int, float]) -> None:
        ends = {min(points, key=points.__getitem__), max(points, key=points.__getitem__)}
        for step in points if len(points) <= 2 else [step for step in points if step in ends]:
            self.steps.append(step)
            self.values.append(points[step])

    def _halve(self) -> None:
        steps, values = self.steps, self.values
        self.steps, self.values, self.part = array("q"), array("d"), self.part * 2
        for place in range(0, len(steps), 4):
            self._keep(dict(zip(steps[place : place + 4], values[place : place + 4], strict=True)))


def candidates(asked: str) -> tuple[str, ...]:
    """The metrics that a name may mean, the best one first."""
    return MAIN_METRICS.get(asked, (asked,))


def metric_of(asked: str, runs: Sequence[Mapping[str, Curve]]) -> str:
    """The metric that is meant, the same for all runs: the best one that any of them has.

    A run without it does not change what the others are compared by.
    """
    for name in candidates(asked):
        if any(name in curves for curves in runs):
            return name
    known = {name for curves in runs for name in curves} | set(MAIN_METRICS)
    raise UserError(f"no run has the metric '{asked}'{did_you_mean(asked, known)}")


def align(curves: Sequence[Curve]) -> tuple[Steps, Array]:
    """Common steps [G] and the value of each curve there [N, G]: the stretch that all cover.

    Between its own steps a curve keeps its last value. Empty if there is no such stretch.
    """
    first = max(curve.steps[0] for curve in curves)
    last = min(curve.steps[-1] for curve in curves)
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = steps[(steps >= first) & (steps <= last)]
    if len(steps) > POINTS:
        steps = steps[np.linspace(0, len(steps) - 1, POINTS).round().astype(int)]
    places = [np.searchsorted(curve.steps, steps, side="right") - 1 for curve in curves]
    rows = [curve.values[place] for curve, place in zip(curves, places, strict=True)]
    return steps, np.array(rows)


def thinned(curve: Curve, points: int = POINTS) -> Curve:
    """At most `points` points: of each stretch the smallest and the largest, so that peaks stay."""
    if len(curve.steps) <= points:
        return curve
    kept: set[int] = {0, len(curve.steps) - 1}
    for stretch in np.array_split(np.arange(len(curve.steps)), points // 2 - 1):
        values = curve.values[stretch]
        kept |= {int(stretch[values.argmin()]), int(stretch[values.argmax()])}
    places = np.array(sorted(kept))
    return Curve(curve.steps[places], curve.values[places])


def middle_and_band(rows: Array) -> tuple[Array, tuple[Array, Array] | None]:
    """The IQM of seeds at each step, [N, G] -> [G], and its 95 % bootstrap band."""
    middle = iqm(rows.T)
    if len(rows) < 2:
        return middle, None
    # The same seeds are drawn for all steps: a run is resampled as a whole.
    drawn = np.random.default_rng(0).integers(len(rows), size=(BAND_SAMPLES, len(rows)))
    found = iqm(np.moveaxis(rows[drawn], 1, -1))
    low, high = np.percentile(found, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0)
    return middle, (low, high)
