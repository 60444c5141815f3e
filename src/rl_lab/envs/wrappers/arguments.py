"""What wrappers demand of their arguments and of the spaces they meet, said in words.

The messages name no wrapper: `wrap` puts its name in front and its parameters behind.
"""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.core.errors import UserError


def whole(value: Any, name: str, *, least: int) -> int:
    """An integer that is not too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def number(value: Any, name: str) -> float:
    """A finite number; text that reads as one counts, because YAML takes `1e-3` for text."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise UserError(f"{name} must be a number, got {value!r}")
    return found


def flag(value: Any, name: str) -> bool:
    """True or false, nothing that only looks like it."""
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, got {value!r}")
    return value


def listed(value: Any, name: str) -> list[Any]:
    """A list with something in it."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise UserError(f"{name} must be a list, got {value!r}")
    return list(value)


def numbers(value: Any, name: str, size: int) -> NDArray[np.float64]:
    """One number for all of `size` components, or a list with one for each."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return np.full(size, number(value, name))
    if len(value) != size:
        raise UserError(f"{name} must be one number or a list of {size}, got {len(value)} of them")
    return np.array([number(each, f"{name}[{index}]") for index, each in enumerate(value)])


def box(env: gym.Env[Any, Any]) -> spaces.Box:
    """The observation space, which must be a Box."""
    space = env.observation_space
    if not isinstance(space, spaces.Box):
        raise UserError(f"needs a Box observation, got {said(space)}")
    return space


def vector(env: gym.Env[Any, Any]) -> spaces.Box:
    """The observation space, which must be a Box with one axis."""
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise UserError(f"needs a vector observation, got {said(space)}")
    return space


def floating(space: spaces.Box) -> np.dtype[Any]:
    """The type of its numbers after arithmetic: whole ones become float32."""
    return np.dtype(space.dtype if np.issubdtype(space.dtype, np.floating) else np.float32)


def said(space: spaces.Space[Any]) -> str:
    """A space in a few words; the bounds of a big Box would fill the screen."""
    if isinstance(space, spaces.Box):
        return f"a Box of shape {space.shape} and type {space.dtype}"
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return " ".join(str(space).split())
    return f"a {type(space).__name__} space"
