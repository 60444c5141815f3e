"""A tiny world of random pictures that draws all of them into one array, as some simulators do."""

from typing import Any

import gymnasium as gym
import numpy as np


class Picture(gym.Env[Any, Any]):
    """Shows noise brightened by the action; ends by chance; the reward is the action."""

    def __init__(self, shape: tuple[int, ...] = (6, 8, 3)) -> None:
        self.observation_space = gym.spaces.Box(0, 255, tuple(shape), np.uint8)
        self.action_space = gym.spaces.Discrete(3)
        self.screen = np.zeros(shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._drawn(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._drawn(action), float(action), self.np_random.random() < 0.1, False, {}

    def _drawn(self, action: Any) -> Any:
        self.screen[:] = self.np_random.integers(0, 200, self.screen.shape) + 20 * int(action)
        return self.screen


if "Picture-v0" not in gym.registry:
    gym.register("Picture-v0", entry_point=Picture, max_episode_steps=30)
