"""Gymnasium's spaces seen from the lab: sizes out, actions in, observations out.

Observations become rows of arrays: indices from 0, images channels first, a Dict or a Tuple a flat
dict of such arrays.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core.batch import Array, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec, MultiDiscrete, Observation, Space
from rl_lab.envs import atari

Convert = Callable[[Array], Array]
_SMALLEST_GRAY = 16  # pixels: a smaller table of bytes is not taken for a gray image
# Wrappers whose `step` shows every observation as it is inside, by module.
_SEE_THROUGH = {
    "gymnasium.core": ("Wrapper", "ActionWrapper", "RewardWrapper"),
    "gymnasium.wrappers.common": (
        "OrderEnforcing",
        "PassiveEnvChecker",
        "RecordEpisodeStatistics",
        "TimeLimit",
    ),
    "gymnasium.wrappers.stateful_reward": ("NormalizeReward",),
    "rl_lab.envs.mujoco": ("NoSilentReset",),
    "rl_lab.envs.action_replay": ("Replayed",),
    "rl_lab.envs.wrappers.action": ("StickyActions",),
    "rl_lab.envs.wrappers.reward": ("CountBonus",),
}


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
    own: Any = env.unwrapped
    if limit is None:  # an environment that ends its episodes itself
        limit = getattr(own, "max_episode_steps", None)
    seen = Frames(observation, f"the observation space of '{id}'").space
    return EnvSpec(
        id=id,
        observation=seen,
        action=action_space(action, f"the action space of '{id}'"),
        max_episode_steps=limit,
        reward_threshold=registered.reward_threshold if registered else None,
        optimum=getattr(own, "optimum", None),
        demonstrator=getattr(own, "demonstrator", None),
        stack=_stack(env, seen),
    )


def _stack(env: Any, observation: Observation) -> int:
    """How many frames an observation is a stack of, as far as wrappers or Atari's vector say.

    A wrapper outside of the stack that changes observations, or leaves some out, makes it none:
    what is shown then need not follow from what was shown before.
    """
    shape = getattr(observation, "shape", ())
    if type(env).__module__ == atari.VECTOR:
        stacked: int = env.spec.kwargs.get("stack_num", atari.STACKED)
        return stacked if shape and shape[0] % stacked == 0 else 1
    while isinstance(env, gym.Wrapper) and "stack_size" not in vars(env) and _is_see_through(env):
        env = env.env
    stacked = vars(env).get("stack_size", 1) if isinstance(env, gym.Wrapper) else 1
    if stacked == 1 or shape not in _stacked_shapes(env.env.observation_space, stacked):
        return 1
    return stacked


def _is_see_through(env: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether a wrapper shows every observation as it is inside; of one not known, it is not."""
    step = type(env).step
    name, _, _ = step.__qualname__.rpartition(".")
    return name in _SEE_THROUGH.get(step.__module__, ())


def _stacked_shapes(space: spaces.Space[Any], count: int) -> list[tuple[int, ...]]:
    """The space of n stacked frames: as many more channels, or a new axis."""
    shapes = [(count, *(space.shape or ()))]
    if shape := getattr(Frames(space).space, "shape", ()):
        shapes.append((count * shape[0], *shape[1:]))
    return shapes


# ---------------------------------------------------------------------- actions


def action_space(space: spaces.Space[Any], what: str) -> Space:
    """The lab's description of an action space; indices always start at 0."""
    if isinstance(space, spaces.MultiBinary):  # each bit is a choice between two
        return MultiDiscrete((2,) * int(np.prod(space.shape)))
    if isinstance(space, spaces.Dict | spaces.Tuple):
        raise _unsupported(space, what, "Box, Discrete, MultiDiscrete or MultiBinary")
    return _leaf(space, what)[0]


def action_converter(space: spaces.Space[Any]) -> Convert:
    """Policy-space actions [N, …] to what the environment wants: clipped, shifted, of its dtype."""
    shape, dtype = space.shape or (), np.dtype(space.dtype)
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high

        def clipped(action: Array) -> Array:
            rows = np.clip(np.asarray(action).reshape(-1, *shape), low, high)
            whole = np.rint(rows) if dtype.kind in "iu" else rows
            return whole.astype(dtype, copy=False)

        return clipped
    start = _start(space)

    def shifted(action: Array) -> Array:
        rows = np.asarray(action).reshape(-1, *shape).astype(dtype, copy=False)
        return rows if start is None else rows + start

    return shifted


# ----------------------------------------------------------------- observations


class MisfitError(UserError):
    """A frame does not have the shape of its space."""

    def __init__(self) -> None:
        super().__init__("an observation does not have the shape of its observation space")


@dataclass(frozen=True)
class Part:
    """One array of an observation: where it is in a frame, and how its rows are made."""

    path: tuple[Any, ...]  # keys and indices into the environment's own frame
    space: Space
    shape: tuple[int, ...]  # as the environment shows it
    dtype: np.dtype[Any]
    convert: Convert | None  # rows as shown -> rows as the lab wants them; None: they are right

    def of(self, frame: Any) -> Any:
        """This part of a frame, or of a batch of frames."""
        for key in self.path:
            frame = frame[key]
        return frame


class Frames:
    """How the observations of one environment become rows."""

    def __init__(self, space: spaces.Space[Any], what: str = "the observation space") -> None:
        self.parts: dict[str, Part] = {}
        for path, leaf in _leaves(space):
            name = "/".join(str(key) for key in path)
            mine, convert = _leaf(leaf, what)
            is_index = isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete)
            dtype = np.dtype(np.int64 if is_index else leaf.dtype)
            self.parts[name] = Part(path, mine, tuple(leaf.shape or ()), dtype, convert)
        self.plain = self.parts.get("")  # the only part, where there is no Dict and no Tuple
        self.space: Observation = (
            self.plain.space
            if self.plain
            else Dict({name: part.space for name, part in self.parts.items()})
        )

    def empty(self, count: int) -> Obs:
        """Room for `count` frames as the environment shows them."""
        rooms = {
            name: np.empty((count, *part.shape), part.dtype) for name, part in self.parts.items()
        }
        return rooms[""] if self.plain else rooms

    def put(self, rows: Obs, index: int, frame: Any) -> None:
        """One frame into its row. Another shape is an error: numpy would repeat it silently."""
        try:
            if self.plain:
                if self.plain.shape and frame.shape != self.plain.shape:
                    raise MisfitError
                rows[index] = frame
            else:
                for name, part in self.parts.items():
                    value = part.of(frame)
                    if part.shape and value.shape != part.shape:
                        raise MisfitError
                    rows[name][index] = value
        except AttributeError:  # a list has no shape
            self._put_lists(rows, index, frame)

    def _put_lists(self, rows: Obs, index: int, frame: object) -> None:
        for name, part in self.parts.items():
            value = part.of(frame)
            if np.shape(value) != part.shape:
                raise MisfitError
            (rows if self.plain else rows[name])[index] = value

    def converted(self, rows: Obs) -> Obs:
        """Rows as the lab wants them: contiguous, indices from 0, channels first."""
        if self.plain:
            return rows if self.plain.convert is None else self.plain.convert(rows)
        return {
            name: rows[name] if part.convert is None else part.convert(rows[name])
            for name, part in self.parts.items()
        }

    def batch(self, frames: object) -> Obs:
        """A batch that a Gymnasium vector returned, copied: some write the same buffer again."""
        rows = {
            name: np.array(part.of(frames), part.dtype, order="C")
            for name, part in self.parts.items()
        }
        for name, part in self.parts.items():
            if rows[name].shape[1:] != part.shape:
                of = f" part '{name}'" if name else ""
                raise UserError(
                    f"the vector returned an observation{of} of shape {rows[name].shape[1:]}; "
                    f"expected {part.shape} for each environment"
                )
        return rows[""] if self.plain else rows

    def given(self, obs: object) -> tuple[Obs, bool]:
        """What a user passes, one frame or a batch of them, as rows; and whether it was one."""
        rows, single = {}, False
        for name, part in self.parts.items():
            try:
                value = np.asarray(part.of(obs), part.dtype)
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"obs has no '{name}'; it needs {list(self.parts)}") from error
            single = value.ndim == len(part.shape)
            value = value[None] if single else value
            if value.shape[1:] != part.shape:
                wanted = f"{part.shape} or (N, {', '.join(map(str, part.shape))})"
                of = f" of '{name}'" if name else ""
                shape = value.shape[1:] if single else value.shape
                raise ValueError(f"obs{of} has the shape {shape}, this policy wants {wanted}")
            rows[name] = value
        return self.converted(rows[""] if self.plain else rows), single


def channel_axis(shape: tuple[int, ...]) -> int:
    """Where the channels of an image with three axes are: there are fewer of them than rows."""
    return -1 if shape[-1] <= shape[0] else 0


def _leaves(
    space: spaces.Space[Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space):
            yield from _leaves(part, (*path, index))
    else:
        yield path, space


def _leaf(space: spaces.Space[Any], what: str) -> tuple[Space, Convert | None]:
    """The lab's description of a space without parts, and what must be done to its rows."""
    start = _start(space)
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n)), None if start is None else (lambda rows: rows - start)
    if isinstance(space, spaces.MultiDiscrete):
        nvec = tuple(int(n) for n in space.nvec.reshape(-1))
        flat = len(space.shape) > 1

        def from_zero(rows: Array) -> Array:
            shifted = rows if start is None else rows - start
            return shifted.reshape(len(shifted), -1) if flat else shifted

        return MultiDiscrete(nvec), None if start is None and not flat else from_zero
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(space.shape)
        return Box(shape, np.dtype(np.int8), np.zeros(shape), np.ones(shape)), None
    if isinstance(space, spaces.Box):
        convert = _channels_first(space)
        low, high = (space.low[None], space.high[None])
        if convert is not None:
            low, high = convert(low), convert(high)
        return Box(low.shape[1:], np.dtype(space.dtype), low[0].copy(), high[0].copy()), convert
    raise _unsupported(space, what, "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple")


def _channels_first(space: spaces.Box) -> Convert | None:
    """How rows of an image become [N, C, H, W]; None where they are, or where it is no image."""
    shape = space.shape
    if len(shape) == 3 and channel_axis(shape) == -1:
        return lambda rows: np.ascontiguousarray(rows.transpose(0, 3, 1, 2))
    if len(shape) == 2 and space.dtype == np.uint8 and min(shape) >= _SMALLEST_GRAY:
        return lambda rows: rows[:, None]
    return None


def _unsupported(space: spaces.Space[Any], what: str, known: str) -> UserError:
    return UserError(
        f"{what} has a {type(space).__name__}, which is not supported: "
        f"use an environment or a wrapper with {known}"
    )


def _start(space: spaces.Space[Any]) -> Any:
    """The first index of a discrete space, or None when it is 0."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        return space.start
    return None
