"""Wrappers that change the numbers of an observation, one by one."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.core import registry
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.envs.wrappers import arguments


@registry.register("wrapper", "MaskObservation")
class MaskObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Zeroes some components of a vector observation, so that the task needs memory."""

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]) -> None:
        super().__init__(env)
        space = arguments.vector(env)
        size = space.shape[0]
        for index in indices:
            if not 0 <= index < size:
                raise UserError(f"index {index} is not one of 0 … {size - 1}")
        self.indices = list(indices)
        low, high = space.low.copy(), space.high.copy()
        low[self.indices] = high[self.indices] = 0
        self.observation_space = gym.spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """A copy with zeros at the masked components."""
        masked = np.array(observation)
        masked[self.indices] = 0
        return masked


@registry.register("wrapper", "ScaleObservation")
class ScaleObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Subtracts and divides by fixed numbers: one for all, or a list along the last axis."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        subtract: float | Sequence[float] = 0.0,
        divide: float | Sequence[float] = 1.0,
    ) -> None:
        super().__init__(env)
        space = arguments.box(env)
        size = space.shape[-1] if space.shape else 1
        self.dtype = arguments.floating(space)
        self.subtract = arguments.numbers(subtract, "subtract", size).astype(self.dtype)
        self.divide = arguments.numbers(divide, "divide", size).astype(self.dtype)
        if not self.divide.all():
            raise UserError(f"divide must not be zero, got {divide!r}")
        ends = [self.observation(space.low), self.observation(space.high)]
        self.observation_space = gym.spaces.Box(
            np.minimum(*ends), np.maximum(*ends), dtype=self.dtype.type
        )

    def observation(self, observation: Array) -> Array:
        """In the observation's own floating type; whole numbers become float32."""
        return (observation.astype(self.dtype) - self.subtract) / self.divide
