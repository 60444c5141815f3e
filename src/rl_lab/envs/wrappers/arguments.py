"""What wrappers demand of their arguments and of the spaces they meet, said in words.

The messages name no wrapper: `wrap` puts its name in front and its parameters behind.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.core.errors import UserError


def numbers(value: float | Sequence[float], name: str, size: int) -> NDArray[np.float64]:
    """One number for all of `size` components, or a list with one for each."""
    if not isinstance(value, Sequence):
        return np.full(size, value, np.float64)
    if len(value) != size:
        raise UserError(f"{name} must be one number or a list of {size}, got {len(value)} of them")
    return np.array(value, np.float64)


def box(env: gym.Env[Any, Any]) -> spaces.Box:
    """The observation space, which must be a Box."""
    space = env.observation_space
    if not isinstance(space, spaces.Box):
        raise UserError(f"needs a Box observation, got {described(space)}")
    return space


def vector(env: gym.Env[Any, Any]) -> spaces.Box:
    """The observation space, which must be a Box with one axis."""
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise UserError(f"needs a vector observation, got {described(space)}")
    return space


def floating(space: spaces.Box) -> np.dtype[Any]:
    """The type of its numbers after arithmetic: whole ones become float32."""
    return np.dtype(space.dtype if np.issubdtype(space.dtype, np.floating) else np.float32)


def described(space: spaces.Space[Any]) -> str:
    """A space in a few words; the bounds of a big Box would fill the screen."""
    if isinstance(space, spaces.Box):
        return f"a Box of shape {space.shape} and type {space.dtype}"
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return " ".join(str(space).split())
    return f"a {type(space).__name__} space"
