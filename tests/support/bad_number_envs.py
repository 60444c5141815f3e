"""An environment that gives a NaN once in a while; importable in another process by its id."""

from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.envs.counter import CounterEnv


class GoesBad(CounterEnv):
    """In episode `at` it gives a bad `what`, unless it was seeded more than `times` times.

    So the same future fails again for ever, and one with other seeds goes well.
    """

    def __init__(self, at: int = 20, times: int = 1, what: str = "reward") -> None:
        super().__init__(lengths=(5,))
        self.at, self.times, self.what = at, times, what
        self.seeded = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeded += seed is not None
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self.episode == self.at and self.t == 3 and self.seeded <= self.times:
            if self.what == "reward":
                reward = float("nan")
            else:
                obs = np.full_like(obs, np.inf)
        return obs, reward, *rest


gym.register("test/GoesBad-v0", entry_point=GoesBad)
