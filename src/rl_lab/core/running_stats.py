"""Running mean and variance in float64, merged batch by batch (Chan et al. 1979)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.core.batch import Array


class RunningMoments:
    """Mean and variance of everything absorbed so far; independent of how it was batched."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean: NDArray[np.float64] = np.zeros(shape)
        self.squares: NDArray[np.float64] = np.zeros(shape)  # sum of squared deviations
        self.count = 0

    @property
    def variance(self) -> NDArray[np.float64]:
        """Population variance; 1 before anything was absorbed."""
        return self.squares / self.count if self.count else np.ones_like(self.squares)

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation; 1 before anything was absorbed."""
        return np.sqrt(self.variance)

    def update_statistics(self, rows: Array) -> None:
        """Merge rows [B, *shape]."""
        batch = rows.reshape(-1, *self.mean.shape).astype(np.float64)
        size = len(batch)
        mean = batch.mean(axis=0)
        delta = mean - self.mean
        total = self.count + size
        within, between = np.square(batch - mean).sum(axis=0), np.square(delta)
        # asarray: arithmetic on 0-d arrays gives scalars, which would not be saved as arrays
        self.squares = np.asarray(self.squares + within + between * (self.count * size / total))
        self.mean = np.asarray(self.mean + delta * (size / total))
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        """Exact: float64 arrays and an integer."""
        return {"mean": self.mean, "squares": self.squares, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Strictly the same shape."""
        if state["mean"].shape != self.mean.shape:
            raise ValueError(
                f"running statistics of shape {state['mean'].shape} do not fit {self.mean.shape}"
            )
        self.mean, self.squares = state["mean"].copy(), state["squares"].copy()
        self.count = int(state["count"])


class RewardNormalizer:
    """Divides rewards by the running deviation of the discounted return (never centers them)."""

    def __init__(self, num_envs: int, clip: float = 10.0) -> None:
        self.moments = RunningMoments(())
        self.returns = np.zeros(num_envs)
        self.clip = clip

    def __call__(self, reward: Array, reset: Array, gamma: float) -> NDArray[np.float32]:
        """Count a rollout [T, N], then scale it. `reset` is True where an episode begins."""
        trace = np.empty(reward.shape)
        for t in range(len(reward)):
            self.returns = np.where(reset[t], 0.0, self.returns) * gamma + reward[t]
            trace[t] = self.returns
        self.moments.update_statistics(trace)
        scaled = reward / np.sqrt(self.moments.variance + 1e-8)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Moments and the open episodes' accumulators."""
        return {"moments": self.moments.state_dict(), "returns": self.returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Strictly the same number of environments."""
        assert state["returns"].shape == self.returns.shape
        self.moments.load_state_dict(state["moments"])
        self.returns = state["returns"].copy()
