"""Gymnasium's spaces seen from the lab: sizes out, actions in, observations out."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, Discrete, EnvSpec, MultiDiscrete, Space

Convert = Callable[[Array], Array]


def describe(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any], id: str) -> EnvSpec:
    """What one environment looks like, or a `UserError` when a space is not supported."""
    if isinstance(env, gym.Env):
        observation, action = env.observation_space, env.action_space
    else:
        observation, action = env.single_observation_space, env.single_action_space
    registered = env.spec
    limit = registered.max_episode_steps if registered else None
    if registered and isinstance(env, gym.vector.VectorEnv):
        limit = registered.kwargs.get("max_episode_steps", limit)  # `make_vec` puts it there
    return EnvSpec(
        id=id,
        observation=to_space(observation, f"the observation space of '{id}'"),
        action=to_space(action, f"the action space of '{id}'"),
        max_episode_steps=limit,
        reward_threshold=registered.reward_threshold if registered else None,
    )


def to_space(space: spaces.Space[Any], what: str) -> Space:
    """The lab's description of a space; indices always start at 0."""
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)))
    if isinstance(space, spaces.Box):
        return Box(space.shape, np.dtype(space.dtype), space.low.copy(), space.high.copy())
    raise UserError(
        f"{what} is {type(space).__name__}, which is not supported yet: "
        "use an environment or a wrapper with Box, Discrete or MultiDiscrete"
    )


def action_converter(space: spaces.Space[Any]) -> Convert:
    """Policy-space actions [N, …] to what the environment wants: clipped, shifted, of its dtype."""
    shape, dtype = space.shape or (), np.dtype(space.dtype)
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high

        def clipped(action: Array) -> Array:
            rows = np.asarray(action).reshape(-1, *shape)
            return np.clip(rows, low, high).astype(dtype, copy=False)

        return clipped
    start = _start(space)

    def shifted(action: Array) -> Array:
        rows = np.asarray(action).reshape(-1, *shape).astype(dtype, copy=False)
        return rows if start is None else rows + start

    return shifted


def observation_converter(space: spaces.Space[Any]) -> Convert | None:
    """A batch of observations to indices from 0; None where they are right already."""
    start, flat = _start(space), len(space.shape or ()) > 1
    if isinstance(space, spaces.Box) or (start is None and not flat):
        return None

    def shifted(obs: Array) -> Array:
        rows = obs if start is None else obs - start
        return rows.reshape(len(rows), -1) if flat else rows

    return shifted


def observation_layout(space: spaces.Space[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of one row of a batch as the environment fills it; indices are int64."""
    is_box = isinstance(space, spaces.Box)
    return tuple(space.shape or ()), np.dtype(space.dtype if is_box else np.int64)


def _start(space: spaces.Space[Any]) -> Any:
    """The first index of a discrete space, or None when it is 0."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        return space.start
    return None
