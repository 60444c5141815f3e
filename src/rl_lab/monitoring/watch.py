"""Watching: rows of metrics in, alerts out. What was seen is plain data that a checkpoint holds."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rl_lab.core.schema import MonitorConfig
from rl_lab.monitoring.judge import Seen, reason
from rl_lab.records.alerts import Alert, alert_of

RECOVERY_ROWS = 5  # without a reason, or as many as the monitor judges: then it may fire again
EPISODES = "episodes"  # in a row: how many have ended so far
MOST_TOLD = 10  # alerts of one monitor about one metric; after that it is silent


@dataclass
class Watch:
    """Some monitors, and what each of them has seen of each metric."""

    monitors: Mapping[str, MonitorConfig]
    seen: dict[str, dict[str, Seen]] = field(default_factory=dict)  # monitor -> metric
    largest: dict[str, float] = field(default_factory=dict)  # of the metrics that limits refer to
    alerts: list[Alert] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The metrics to look up are few; which monitor wants which is found once."""
        self._references = sorted({each.of for each in self.monitors.values() if each.of})
        self._wanted: dict[str, list[str]] = {}  # metric -> monitors

    def look(self, step: int, row: Mapping[str, float], *, share: float) -> list[Alert]:
        """The alerts that this row gives. `share` is how much of the run is over."""
        for name in self._references:
            if math.isfinite(row.get(name, math.nan)):  # NaN would stay the largest
                self.largest[name] = max(abs(row[name]), self.largest.get(name, 0.0))
        episodes = row.get(EPISODES, math.inf)
        found = []
        for metric, value in row.items():
            for name in self._watchers(metric):
                monitor = self.monitors[name]
                seen = self.seen.setdefault(name, {}).setdefault(metric, Seen())
                seen.add(float(value), monitor)
                largest = self.largest.get(monitor.of or "")
                why = reason(monitor, seen, largest=largest, share=share, episodes=episodes)
                if _speaks(seen, monitor, firing=why is not None):
                    assert why is not None
                    text = f"{metric} is {why[0]:.3g}: {why[1]}"
                    found.append(Alert(step, name, metric, why[0], text, monitor.tip))
                seen.settle(monitor)
        self.alerts += found
        return found

    def _watchers(self, metric: str) -> list[str]:
        if metric not in self._wanted:
            self._wanted[metric] = [
                name
                for name, monitor in self.monitors.items()
                if fnmatchcase(metric, monitor.metric)
            ]
        return self._wanted[metric]

    def forget(self, metric: str) -> None:
        """Begin again with a metric whose values so far are of something else."""
        for metrics in self.seen.values():
            metrics.pop(metric, None)

    def state_dict(self) -> dict[str, Any]:
        """What was seen, and how often it was reported."""
        return {
            "seen": {
                name: {metric: asdict(each) for metric, each in metrics.items()}
                for name, metrics in self.seen.items()
            },
            "largest": dict(self.largest),
            "alerts": [each.to_tree() for each in self.alerts],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; a state without monitors begins empty."""
        self.seen = {
            name: {metric: Seen(**each) for metric, each in metrics.items()}
            for name, metrics in state.get("seen", {}).items()
            if name in self.monitors
        }
        self.largest = dict(state.get("largest", {}))
        self.alerts = [alert_of(each) for each in state.get("alerts", [])]


def _speaks(seen: Seen, monitor: MonitorConfig, *, firing: bool) -> bool:
    """Whether it is time for an alert: once, and again only after it had recovered."""
    if not firing:
        seen.quiet += 1
        if seen.quiet >= max(RECOVERY_ROWS, monitor.rows):
            seen.firing = False
        return False
    speaks = not seen.firing and seen.told < MOST_TOLD
    seen.firing, seen.quiet = True, 0
    seen.told += speaks
    return speaks
