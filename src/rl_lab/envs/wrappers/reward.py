"""Wrappers of the reward. They are for training only: evaluation sees the environment's own."""

from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core import registry
from rl_lab.core.errors import UserError
from rl_lab.envs.wrappers import arguments
from rl_lab.envs.wrappers.discrete import Bins, Bounds, Grid

MOST_CELLS = 1_000_000  # the counts are saved with every checkpoint, for every environment


@registry.register("wrapper", "RewardShape")
class RewardShape(gym.RewardWrapper[Any, Any]):
    """Trains on `scale` × reward + `offset`, then clipped to `clip: [low, high]` if given."""

    training_only = True

    def __init__(
        self,
        env: gym.Env[Any, Any],
        scale: float = 1.0,
        offset: float = 0.0,
        clip: Sequence[float] | None = None,
    ) -> None:
        super().__init__(env)
        self.scale, self.offset = scale, offset
        self.low, self.high = -np.inf, np.inf
        if clip is not None:
            if len(clip) != 2 or clip[0] >= clip[1]:
                raise UserError(f"clip must be [low, high], got {clip!r}")
            self.low, self.high = clip

    def reward(self, reward: SupportsFloat) -> float:
        """What the learner gets."""
        return min(max(self.scale * float(reward) + self.offset, self.low), self.high)


@registry.register("wrapper", "CountBonus")
class CountBonus(gym.Wrapper[Any, Any, Any, Any]):
    """Adds `scale` / √n for the n-th visit of a state: a Discrete one, or a cell of `bins`.

    Every environment of a vector counts its own visits, over all its episodes.
    """

    training_only = True
    changes_reward = True

    def __init__(
        self,
        env: gym.Env[Any, Any],
        scale: float = 1.0,
        bins: Bins = 10,
        low: Bounds = None,
        high: Bounds = None,
    ) -> None:
        super().__init__(env)
        self.scale = scale
        space = env.observation_space
        self.grid: Grid | None = None
        if isinstance(space, spaces.Discrete):
            self.start, cells = int(space.start), int(space.n)
        elif isinstance(space, spaces.Box):
            self.grid = Grid.over(space, bins, low, high)
            cells = self.grid.cells
        else:
            raise UserError(
                f"needs a Box or Discrete observation, got {arguments.described(space)}"
            )
        if cells > MOST_CELLS:
            raise UserError(f"{cells} cells are too many: use fewer bins (at most {MOST_CELLS})")
        self.counts = np.zeros(cells, np.int64)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; the state that it reaches is counted first."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        cell = int(obs) - self.start if self.grid is None else self.grid.cell(obs)
        self.counts[cell] += 1
        bonus = self.scale / float(np.sqrt(self.counts[cell]))
        return obs, float(reward) + bonus, terminated, truncated, info
