"""What a dataset comes to: counts, returns and lengths, statistics of frames and actions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.buffers.facts import action_range, frame_moments
from rl_lab.buffers.storage import Steps
from rl_lab.buffers.walk import episodes_of
from rl_lab.core.errors import UserError
from rl_lab.core.running_stats import RunningMoments
from rl_lab.core.spec import Box, EnvSpec

QUANTILES = (0, 10, 25, 50, 75, 90, 100)
MOST_TOLD = 4096  # numbers of one part of an observation that a description lists


@dataclass(frozen=True)
class Numbers:
    """Of whole episodes."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: int
    statistics: dict[str, Any]
    actions: tuple[list[float], list[float]] | None

    @classmethod
    def of(
        cls, ring: Steps, spec: EnvSpec, tell: Callable[[int, int], None] = lambda done, total: None
    ) -> "Numbers":
        """Read everything once or twice, never all of it at a time."""
        returns, lengths, terminated, done = [], [], 0, 0
        for episode in episodes_of(ring):
            returns.append(episode.total)
            lengths.append(len(episode))
            terminated += episode.terminated
            done += len(episode)
            tell(done, len(ring))
        if not returns:
            raise UserError(f"{spec.id}: there is no whole episode")
        moments = frame_moments(ring, spec)
        parts = moments if isinstance(moments, dict) else {"obs": moments}
        bounds = None
        if isinstance(spec.action, Box):
            low, high = action_range(ring, spec)
            bounds = (low.reshape(-1).tolist(), high.reshape(-1).tolist())
        told = {name: _moments(each) for name, each in parts.items()}
        return cls(np.array(returns), np.array(lengths, np.int64), terminated, told, bounds)

    def to_tree(self) -> dict[str, Any]:
        """For a description."""
        returns = {
            "mean": float(self.returns.mean()),
            "std": float(self.returns.std()),
            "quantiles": {
                str(q): float(each)
                for q, each in zip(QUANTILES, np.percentile(self.returns, QUANTILES), strict=True)
            },
        }
        return {
            "episodes": len(self.returns),
            "transitions": int(self.lengths.sum()),
            "terminated_episodes": self.terminated,
            "returns": returns,
            "lengths": {
                "mean": float(self.lengths.mean()),
                "min": int(self.lengths.min()),
                "max": int(self.lengths.max()),
            },
            "statistics": self.statistics,
            "action_range": None
            if self.actions is None
            else {"low": self.actions[0], "high": self.actions[1]},
        }


def _moments(found: RunningMoments) -> dict[str, Any]:
    if found.mean.size > MOST_TOLD:  # pictures: the mean of all of it
        mean, square = found.mean.mean(), (found.variance + found.mean**2).mean()
        return {"mean": float(mean), "std": float(np.sqrt(max(square - mean**2, 0.0)))}
    return {"mean": found.mean.tolist(), "std": found.std.tolist()}
