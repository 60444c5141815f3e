"""Actions in [-1, 1] for algorithms whose policies are squashed: stretched to the env's bounds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rl_lab.core.batch import Array, Obs, Step
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import VectorEnv
from rl_lab.core.spec import Box, Space


class UnitActions:
    """A vector of environments seen by a policy that acts in [-1, 1].

    What is sampled, stored and learned from are the small numbers; only the environment itself sees
    its own units. Random actions for warm-up come from the same space, so they go the same way.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.stretch = Stretch(env.spec.action, env.spec.id)
        self.spec = replace(env.spec, action=self.stretch.unit)

    def step(self, action: Array) -> Step:
        """One decision per environment, in its own units."""
        return self.env.step(self.stretch(action))

    def reset(self, seeds: Sequence[int] | None = None) -> Obs:
        """As the inner vector does it."""
        return self.env.reset(seeds)

    def close(self) -> None:
        """As the inner vector does it."""
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """Of the inner vector: this one has none."""
        return self.env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into the inner vector."""
        self.env.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        """Everything else (snapshot level, faults, goal rewards) is the inner vector's."""
        if name == "env":  # not there yet: while being made, or copied
            raise AttributeError(name)
        return getattr(self.env, name)


class Stretch:
    """The map from [-1, 1] to the bounds of a Box: -1 is the lower one, 1 the upper one."""

    def __init__(self, space: Space, id: str) -> None:
        if not isinstance(space, Box):
            raise UserError(f"'{id}' has no continuous actions to stretch")
        if not space.bounded:
            raise UserError(
                f"'{id}' has actions without bounds, which a squashed policy cannot cover: "
                "use ppo, or a wrapper that bounds them"
            )
        self.low = space.low.astype(np.float64)
        self.half = (space.high.astype(np.float64) - self.low) / 2
        ones = np.ones(space.shape, np.float32)
        self.unit = Box(space.shape, np.dtype(np.float32), -ones, ones)

    def __call__(self, action: Array) -> Array:
        """[N, …], clipped first: a bound is never left by rounding."""
        unit = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        return (self.low + (unit + 1.0) * self.half).astype(np.float32)
