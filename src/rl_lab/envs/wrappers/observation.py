"""Wrappers that change the numbers of an observation, one by one."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.core import registry, seeding
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


# What a component of an observation is, for the tasks whose components have such a meaning.
POSITIONS = {
    "CartPole": (0, 2),
    "Acrobot": (0, 1, 2, 3),
    "Pendulum": (0, 1),
    "MountainCar": (0,),
    "MountainCarContinuous": (0,),
    "LunarLander": (0, 1, 4, 6, 7),
    "LunarLanderContinuous": (0, 1, 4, 6, 7),
}


class _Half(MaskObservation):
    """Positions or velocities of a classic task: the others are zero."""

    positions: bool

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        name = env.spec.name if env.spec is not None else ""
        if name not in POSITIONS:
            known = ", ".join(POSITIONS)
            raise UserError(
                f"which components of '{name}' are positions is not known (it is of {known}): "
                "use MaskObservation with indices"
            )
        size = arguments.vector(env).shape[0]
        super().__init__(env, [i for i in range(size) if (i in POSITIONS[name]) != self.positions])


@registry.register("wrapper", "PositionOnly")
class PositionOnly(_Half):
    """Zeroes the velocities of a classic control task or of LunarLander."""

    positions = True


@registry.register("wrapper", "VelocityOnly")
class VelocityOnly(_Half):
    """Zeroes everything but the velocities of a classic control task or of LunarLander."""

    positions = False


@registry.register("wrapper", "NoisyObservation")
class NoisyObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Adds normal noise of deviation `std` (one number, or one for each component) to a vector.

    The random stream is the wrapper's own, from the seed of the environment: it is saved with it,
    and does not disturb the environment's.
    """

    def __init__(self, env: gym.Env[Any, Any], std: float | Sequence[float] = 0.1) -> None:
        super().__init__(env)
        space = arguments.vector(env)
        self.std = arguments.numbers(std, "std", space.shape[0])
        if not (self.std >= 0).all():
            raise UserError(f"std must not be negative, got {std!r}")
        self.random = np.random.default_rng()
        self.dtype = arguments.floating(space)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, space.shape, self.dtype.type)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """A new episode; a seed starts the stream again."""
        if seed is not None:
            self.random = np.random.default_rng(seeding.sequence(seed, "NoisyObservation"))
        obs, info = self.env.reset(seed=seed, options=options)
        return self._noisy(obs), info

    def step(self, action: object) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        """One step, seen with errors."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._noisy(obs), reward, terminated, truncated, info

    def _noisy(self, obs: Array) -> Array:
        noise = self.std * self.random.standard_normal(self.std.shape)
        return (obs + noise).astype(self.dtype)
