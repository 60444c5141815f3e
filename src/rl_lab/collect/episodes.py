"""What is counted while environments are stepped, whatever the learner does: episodes, measures."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.core.batch import Array, Metrics
from rl_lab.core.protocols import VectorEnv

WINDOW = 100  # finished episodes, or vector steps


class EpisodeTracker:
    """Open episodes of N environments and the last finished ones."""

    def __init__(self, num_envs: int) -> None:
        self.open_returns: NDArray[np.float64] = np.zeros(num_envs)
        self.open_lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.returns: list[float] = []  # the last WINDOW finished ones
        self.lengths: list[int] = []
        self.best: float | None = None
        self._metrics: Metrics | None = None  # of the finished ones, until another has ended

    def add(self, reward: Array, ended: Array, rows: Array | None = None) -> int:
        """One vector step [N]; returns how many episodes ended. `rows` limits it to some envs."""
        if rows is None:
            self.open_returns += reward
            self.open_lengths += 1
        else:
            self.open_returns[rows] += reward[rows]
            self.open_lengths[rows] += 1
            ended = ended & rows
        if not ended.any():
            return 0
        self._metrics = None
        for index in np.flatnonzero(ended):
            finished = float(self.open_returns[index])
            self.returns.append(finished)
            self.lengths.append(int(self.open_lengths[index]))
            self.best = finished if self.best is None else max(self.best, finished)
        del self.returns[:-WINDOW], self.lengths[:-WINDOW]
        self.open_returns[ended] = 0.0
        self.open_lengths[ended] = 0
        return int(ended.sum())

    def add_rollout(self, reward: Array, ended: Array) -> int:
        """Vector steps [T, N] at once; returns how many episodes ended."""
        begin = finished = 0
        for at in np.flatnonzero(ended.any(axis=1)):
            self._go_on(reward[begin:at])
            finished += self.add(reward[at], ended[at])
            begin = int(at) + 1
        self._go_on(reward[begin:])
        return finished

    def _go_on(self, reward: Array) -> None:
        """Rows in which nothing ended."""
        self.open_returns += reward.sum(axis=0, dtype=np.float64)
        self.open_lengths += len(reward)

    def drop_open(self) -> None:
        """Forget unfinished episodes."""
        self.open_returns[:] = 0.0
        self.open_lengths[:] = 0

    def metrics(self) -> Metrics:
        """Means over the last finished episodes; nothing before the first has ended."""
        if not self.returns or self.best is None:
            return {}
        if self._metrics is None:
            self._metrics = {
                "return_mean": float(np.mean(self.returns)),
                "return_best": self.best,
                "length_mean": float(np.mean(self.lengths)),
            }
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """Open and finished episodes."""
        return {
            "open_returns": self.open_returns.copy(),
            "open_lengths": self.open_lengths.copy(),
            "returns": np.array(self.returns, dtype=np.float64),
            "lengths": np.array(self.lengths, dtype=np.int64),
            "best": self.best,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Strictly the same number of environments."""
        assert state["open_returns"].shape == self.open_returns.shape
        self.open_returns = state["open_returns"].copy()
        self.open_lengths = state["open_lengths"].copy()
        self._metrics = None
        self.returns = [float(each) for each in state["returns"]]
        self.lengths = [int(each) for each in state["lengths"]]
        self.best = state["best"]


class MeasureTracker:
    """The measures that environments tell beside their transitions, such as a bandit's regret.

    `name` is the mean of the last WINDOW vector steps, `name_total` the sum since the beginning for
    one environment. Rows in which an environment only reset itself must not be given. Those that
    are named as `outcomes` belong to an episode's end: of them, `name` is the mean of the last
    WINDOW episodes that have it.
    """

    def __init__(self, num_envs: int, outcomes: Collection[str] = ()) -> None:
        self.num_envs = num_envs
        self.recent: dict[str, list[float]] = {}
        self.totals: dict[str, float] = {}
        self.outcomes: dict[str, list[float]] = {name: [] for name in outcomes}

    def add(self, measures: Mapping[str, Array]) -> None:
        """One vector step: arrays [N] by name."""
        for name, values in measures.items():
            if name in self.outcomes:
                finished = self.outcomes[name]
                finished.extend(known(values))
                del finished[:-WINDOW]
                continue
            total = float(values.sum())
            recent = self.recent.setdefault(name, [])
            recent.append(total / self.num_envs)
            del recent[:-WINDOW]
            self.totals[name] = self.totals.get(name, 0.0) + total

    def metrics(self) -> Metrics:
        """Nothing where no environment tells anything."""
        windows = self.recent | self.outcomes
        means = {name: float(np.mean(values)) for name, values in windows.items() if values}
        return means | {f"{name}_total": sum / self.num_envs for name, sum in self.totals.items()}

    def state_dict(self) -> dict[str, Any]:
        """The windows and the sums."""
        return {
            "recent": {name: np.array(values) for name, values in self.recent.items()},
            "totals": dict(self.totals),
            "outcomes": {name: np.array(values) for name, values in self.outcomes.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The windows and the sums."""
        self.recent = {name: values.tolist() for name, values in state["recent"].items()}
        self.totals = {name: float(value) for name, value in state["totals"].items()}
        self.outcomes = {name: values.tolist() for name, values in state["outcomes"].items()}


def known(values: Array) -> list[float]:
    """Outcomes of the episodes that ended in this step; NaN is one that goes on, or was lost."""
    ended: list[float] = values[~np.isnan(values)].tolist()
    return ended


def outcomes_of(env: VectorEnv) -> tuple[str, ...]:
    """Which measures of a vector belong to an episode's end; few vectors have any."""
    return getattr(env, "outcomes", ())
