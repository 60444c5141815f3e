"""Episode returns and lengths, counted on raw rewards whatever the learner does to them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.core.batch import Array, Metrics

WINDOW = 100


class EpisodeTracker:
    """Open episodes of N environments and the last finished ones."""

    def __init__(self, num_envs: int) -> None:
        self.open_returns: NDArray[np.float64] = np.zeros(num_envs)
        self.open_lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.returns: list[float] = []  # the last WINDOW finished ones
        self.lengths: list[int] = []
        self.best: float | None = None

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
        return {
            "return_mean": float(np.mean(self.returns)),
            "return_best": self.best,
            "length_mean": float(np.mean(self.lengths)),
        }

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
        self.returns = [float(each) for each in state["returns"]]
        self.lengths = [int(each) for each in state["lengths"]]
        self.best = state["best"]
