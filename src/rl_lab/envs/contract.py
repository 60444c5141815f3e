"""What an environment must return from `reset` and `step`, and one sentence for what it does not.

A wrong number of values, a wrong kind, shape or key is an error. Numbers that fit after a cast, or
that lie outside of a Box, are a warning.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.core.failure import defined_at

RESET, STEP = "reset", "step"
_VALUES = {
    RESET: ("observation", "info"),
    STEP: ("observation", "reward", "terminated", "truncated", "info"),
}
_ROUNDING = 1e-6  # a bound of a Box may be missed by so much, relative to its size
Warn = Callable[[str, str], None]  # (what it is about, the sentence)


class ContractError(UserError):
    """An environment returned something that it may not return."""


def check_signature(env: gym.Env[Any, Any], id: str) -> None:
    """Refuse a `reset` that cannot be called as Gymnasium's wrappers call it."""
    try:
        signature = inspect.signature(env.reset)
    except ValueError:  # written in C
        return
    try:
        signature.bind(seed=None, options=None)
    except TypeError as error:
        raise ContractError(
            f"'{id}': {defined_at(env.reset)}() cannot be called with a seed and options: write "
            "def reset(self, *, seed=None, options=None)"
        ) from error


class Contract:
    """The checks of one environment; `number` is its place in the vector."""

    def __init__(self, space: gym.Space[Any], id: str, number: int, warn: Warn) -> None:
        self.space, self.id, self.number = space, id, number
        self._warn = warn

    def check(self, method: str, returned: object, step: int) -> None:
        """Everything that `reset` or `step` returned; the first breach is a `ContractError`."""
        self._at = f"'{self.id}': {method}() of environment {self.number}"
        self._when = f" at step {step}" if method == STEP or step else ""
        names = _VALUES[method]
        if not isinstance(returned, tuple | list) or len(returned) != len(names):
            self._refuse(_count(returned), f"{len(names)} values ({', '.join(names)})")
        values = dict(zip(names, returned, strict=True))
        if not isinstance(values["info"], Mapping):
            self._refuse(f"an info that is {_kind(values['info'])}", "a dict")
        if method == STEP:
            self._check_reward(values["reward"])
            self._check_flag("terminated", values["terminated"])
            self._check_flag("truncated", values["truncated"])
        self._check_part(self.space, values["observation"], "")

    def _check_reward(self, reward: Any) -> None:
        if np.shape(reward) != () or np.asarray(reward).dtype.kind not in "fiub":
            self._refuse(f"a reward that is {_kind(reward)}", "one number")

    def _check_flag(self, name: str, flag: Any) -> None:
        if np.shape(flag) != () or np.asarray(flag).dtype.kind not in "biu":
            self._refuse(f"a value for {name} that is {_kind(flag)}", "True or False")
        if np.asarray(flag).dtype.kind != "b":
            self._doubt(name, f"a value for {name} that is {_kind(flag)}", "True or False")

    def _check_part(self, space: gym.Space[Any], value: Any, name: str) -> None:
        if isinstance(space, spaces.Dict):
            self._check_keys(list(space), value, name)
            for key, part in space.items():
                self._check_part(part, value[key], f"{name}/{key}" if name else str(key))
        elif isinstance(space, spaces.Tuple):
            if not isinstance(value, tuple | list) or len(value) != len(space):
                self._refuse(f"{_part(name)} that is {_count(value)}", f"{len(space)} values")
            for index, part in enumerate(space):
                self._check_part(part, value[index], f"{name}/{index}" if name else str(index))
        else:
            self._check_leaf(space, value, name)

    def _check_keys(self, wanted: list[Any], value: object, name: str) -> None:
        if not isinstance(value, Mapping):
            self._refuse(f"{_part(name)} that is {_kind(value)}", f"a dict with {_keys(wanted)}")
        if set(value) != set(wanted):
            self._refuse(f"{_part(name)} with {_keys(value)}", _keys(wanted))

    def _check_leaf(self, space: gym.Space[Any], value: object, name: str) -> None:
        shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
        try:
            array = np.asarray(value)
        except ValueError:  # a list of lists of different lengths
            array = np.asarray(None)
        if array.dtype.kind not in "fiub":
            self._refuse(f"{_part(name)} that is {_kind(value)}", f"numbers of shape {shape}")
        if array.shape != shape:
            self._refuse(f"{_part(name)} of shape {array.shape}", f"{shape}")
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            self._check_indices(space, array, name)
            return
        if array.dtype != dtype or not hasattr(value, "dtype"):
            self._check_dtype(array, dtype, name, listed=not hasattr(value, "dtype"))
        if isinstance(space, spaces.Box):
            self._check_bounds(array, space.low, space.high, name)
        elif isinstance(space, spaces.MultiBinary):
            self._check_bounds(array, np.zeros(shape), np.ones(shape), name)

    def _check_indices(
        self, space: spaces.Discrete | spaces.MultiDiscrete, array: Array, name: str
    ) -> None:
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        low, high = np.asarray(space.start), np.asarray(space.start) + np.asarray(count) - 1
        if array.dtype.kind == "f" and not np.array_equal(array, np.floor(array)):
            self._refuse(f"{_part(name)} of {_shown(array)}", "whole numbers")
        if ((array < low) | (array > high)).any():
            limits = f"{_shown(low)} to {_shown(high)}"
            self._refuse(f"{_part(name)} of {_shown(array)}", f"an index from {limits}")

    def _check_dtype(self, array: Array, dtype: np.dtype[Any], name: str, *, listed: bool) -> None:
        got = "numbers without a dtype" if listed else str(array.dtype)
        floats = array.dtype.kind == dtype.kind == "f"
        with np.errstate(invalid="ignore"):
            fits = floats or np.array_equal(array.astype(dtype), array)
        if not fits:
            self._refuse(f"{_part(name)} of {got} such as {_shown(array)}", f"{dtype}")
        if not listed or array.ndim:  # a plain number for a single one is as good
            self._doubt(f"{name} dtype", f"{_part(name)} of {got}", f"{dtype}: it is converted")

    def _check_bounds(self, array: Array, low: Array, high: Array, name: str) -> None:
        with np.errstate(invalid="ignore"):
            below = array < low - _ROUNDING * np.maximum(1.0, np.abs(low))
            above = array > high + _ROUNDING * np.maximum(1.0, np.abs(high))
        outside = below | above
        if not outside.any():
            return
        at = tuple(int(each) for each in np.argwhere(outside)[0])
        limits = f"{low[at]:g} to {high[at]:g}"
        where = f" at index {at[0] if len(at) == 1 else at}" if at else ""
        count = int(outside.sum())
        more = f" (and {count - 1} more numbers outside)" if count > 1 else ""
        got = f"{_part(name)} of {array[at]:g}{where}{more}"
        self._doubt(f"{name} bounds", got, f"{limits}: widen observation_space, or clip")

    def _refuse(self, got: str, expected: str) -> NoReturn:
        raise ContractError(self._sentence(got, expected))

    def _doubt(self, about: str, got: str, expected: str) -> None:
        self._warn(f"{self.id} {about}", self._sentence(got, expected))

    def _sentence(self, got: str, expected: str) -> str:
        return f"{self._at} returned {got}{self._when}; expected {expected}"


def _part(name: str) -> str:
    return f"an observation part '{name}'" if name else "an observation"


def _keys(keys: Iterable[object]) -> str:
    return f"the keys {', '.join(sorted(str(key) for key in keys))}"


def _count(returned: object) -> str:
    if isinstance(returned, tuple | list):
        return f"{len(returned)} value{'s' if len(returned) != 1 else ''}"
    return f"one value, {_kind(returned)}"


def _kind(value: object) -> str:
    """What something is, in a few words."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"text ({value[:20]!r})"
    if isinstance(value, np.ndarray):
        what = "text" if value.dtype.kind in "US" else str(value.dtype)
        return f"an array of shape {value.shape} ({what})"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _shown(array: Array) -> str:
    """The number, or the numbers if they are few."""
    return str(array.item()) if array.size == 1 else str(array.reshape(-1)[:4].tolist())
