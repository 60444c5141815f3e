"""An encoder, a buffer, a wrapper and an environment."""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
from torch import nn

from rl_lab.core.options import option


class Line(gym.Env):
    """Walk on a line; the right end pays."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.time = float(self.np_random.uniform(-0.2, 0.2)), 0
        return self._look(), {}

    def step(self, action):
        self.position += 0.2 if action else -0.2
        self.time += 1
        ended = abs(self.position) >= 1
        return self._look(), float(self.position >= 1), ended, self.time >= 20, {}

    def _look(self):
        return np.array([np.clip(self.position, -1, 1), self.time / 20], np.float32)


class AddReward(gym.RewardWrapper):
    """Adds a number to every reward."""

    def __init__(self, env, amount):
        super().__init__(env)
        self.amount = amount

    def reward(self, reward):
        return reward + self.amount


@dataclass(frozen=True, kw_only=True)
class WideConfig:
    """Its width."""

    type: str = option("tiny_wide", "one wide layer")
    width: int = option(16, "how wide")


class Wide(nn.Module):
    """One wide layer."""

    Config = WideConfig

    def __init__(self, config, space):
        super().__init__()
        self.layer = nn.Linear(space.shape[0], config.width)
        self.out_dim = config.width

    def forward(self, obs):
        return self.layer(obs).tanh()


@dataclass(frozen=True, kw_only=True)
class DiaryConfig:
    """Nothing to choose."""

    type: str = option("tiny_diary", "the latest rollout, and how many there were")


class Diary:
    """Holds the latest rollout, and counts them."""

    Config = DiaryConfig

    def __init__(self, config, setup):
        self.rows, self.count = None, 0

    def add(self, trajectory):
        self.rows, self.count = trajectory, self.count + 1

    def ready(self):
        return self.rows is not None

    def sample(self):
        return {**self.rows, "count": self.count}

    def done(self):
        self.rows = None

    def state_dict(self):
        return {"rows": self.rows, "count": self.count}

    def load_state_dict(self, state):
        self.rows, self.count = state["rows"], state["count"]
