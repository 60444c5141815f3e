"""Uniformly random actions of a space."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rl_lab.core.batch import ACTION_MASK, Action, Array, Obs
from rl_lab.core.spec import Box, Discrete, MultiDiscrete, Space
from rl_lab.core.tree import first_leaf


def random_action(space: Space, obs: Obs, rng: np.random.Generator) -> Array:
    """One for each row of `obs`, legal where an action mask is shown; normal without bounds."""
    count = len(first_leaf(obs))
    if isinstance(obs, Mapping) and ACTION_MASK in obs:
        return _legal(space, obs[ACTION_MASK].cpu().numpy(), rng)
    if isinstance(space, Discrete):
        return rng.integers(space.n, size=count)
    if isinstance(space, MultiDiscrete):
        return rng.integers(space.nvec, size=(count, *space.shape))
    return _uniform(space, count, rng)


@dataclass(frozen=True)
class RandomActions:
    """A policy that takes uniformly random legal actions: the first data covers the space."""

    space: Space
    rng: np.random.Generator  # one of the run's streams, which saves it

    def __call__(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """One action for each environment; a memory stays as it is."""
        return Action(random_action(self.space, obs, self.rng), state)


def _legal(space: Space, mask: Array, rng: np.random.Generator) -> Array:
    """Uniform over what the mask [N, …] allows: the largest of equally distributed numbers."""
    draws = np.where(mask != 0, rng.random(mask.shape), -1.0)
    if isinstance(space, MultiDiscrete):
        parts = np.split(draws, np.cumsum(space.nvec)[:-1], axis=-1)
        return np.stack([part.argmax(-1) for part in parts], axis=-1)
    return draws.argmax(-1)


def _uniform(space: Box, count: int, rng: np.random.Generator) -> Array:
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 1.0)
    uniform = low + rng.random((count, *space.shape)) * (high - low)
    return np.where(bounded, uniform, rng.standard_normal(uniform.shape)).astype(np.float32)
