"""Wrappers of how an episode begins."""

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core import registry
from rl_lab.core.errors import UserError
from rl_lab.core.options import limits
from rl_lab.envs.wrappers import arguments


@registry.register("wrapper", "SkipStart")
class SkipStart(gym.Wrapper[Any, Any, Any, Any]):
    """Plays `steps` steps of doing nothing before an episode is shown: CarRacing zooms in first.

    Doing nothing is an action of zeros. The rewards of these steps are lost; a time limit counts
    them. An episode that ends in them begins again, and is shown from its first frame.
    """

    def __init__(self, env: gym.Env[Any, Any], steps: Annotated[int, limits(low=0)] = 50) -> None:
        super().__init__(env)
        self.steps = steps
        space = env.action_space
        if not isinstance(space, spaces.Box | spaces.Discrete):
            raise UserError(f"needs Box or Discrete actions, got {arguments.described(space)}")
        zeros = np.zeros(space.shape or (), space.dtype)
        self.nothing = zeros if isinstance(space, spaces.Box) else int(zeros)
        if not space.contains(self.nothing):
            raise UserError(f"an action of zeros is not one of {arguments.described(space)}")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode, a little later."""
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(self.steps):
            obs, _, terminated, truncated, info = self.env.step(self.nothing)
            if terminated or truncated:
                return self.env.reset(options=options)
        return obs, info
