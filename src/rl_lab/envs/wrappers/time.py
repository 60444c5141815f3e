"""Wrappers of time: several frames seen at once, several steps per decision, how late it is."""

from collections import deque
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core import registry
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.core.options import limits
from rl_lab.envs.spaces import channel_axis
from rl_lab.envs.wrappers import arguments


@registry.register("wrapper", "FrameStack")
class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the last `frames` observations of the episode, the newest last.

    The first one of an episode fills all places. Images with channels are joined along them;
    anything else gets a new first axis, so a gray (H, W) becomes (frames, H, W).
    """

    # Gymnasium's own keeps references: an environment that reuses its array would change the past.

    def __init__(self, env: gym.Env[Any, Any], frames: Annotated[int, limits(low=1)] = 4) -> None:
        super().__init__(env)
        self.stack_size = count = frames
        space = env.observation_space
        if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete):
            raise UserError(
                f"needs a Box, Discrete or MultiDiscrete observation, "
                f"got {arguments.described(space)}"
            )
        self.frames: deque[Array] = deque(maxlen=count)
        self.axis: int | None = None
        if isinstance(space, spaces.Box) and len(space.shape) == 3:
            self.axis = axis = channel_axis(space.shape)
            low, high = (np.concatenate([b] * count, axis) for b in (space.low, space.high))
            self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)
        else:
            self.observation_space = gym.vector.utils.batch_space(space, count)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """A new episode: nothing of the last one stays."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.frames.extend([np.array(obs)] * (self.frames.maxlen or 1))
        return self._stacked(), info

    def step(self, action: object) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        """One step; the oldest frame leaves."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.frames.append(np.array(obs))
        return self._stacked(), reward, terminated, truncated, info

    def _stacked(self) -> Array:
        if self.axis is None:
            return np.stack(self.frames)
        return np.concatenate(self.frames, self.axis)


@registry.register("wrapper", "FrameSkip")
class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Takes an action for `skip` steps, sums the rewards and shows the last frame.

    With `max_pool`, what is shown is the larger value of the last two frames, pixel by pixel. An
    episode's end stops it. A time limit goes on counting the environment's own steps.
    """

    # Gymnasium's own shows frames of an earlier decision when an episode ends within a skip.

    def __init__(
        self,
        env: gym.Env[Any, Any],
        skip: Annotated[int, limits(low=1)] = 4,
        max_pool: bool = False,
    ) -> None:
        super().__init__(env)
        if max_pool and skip < 2:
            raise UserError(f"skip must be at least 2 with max_pool, got {skip}")
        self.skip, self.max_pool = skip, max_pool
        if self.max_pool:
            arguments.box(env)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One decision."""
        total, previous = 0.0, None
        for index in range(self.skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated or index == self.skip - 1:
                break
            if self.max_pool:
                previous = np.array(obs)  # a copy: the environment may reuse its array
        shown = obs if previous is None else np.maximum(previous, obs)
        return shown, total, terminated, truncated, info


@registry.register("wrapper", "ActionRepeat")
class ActionRepeat(gym.wrappers.RepeatAction[Any, Any]):
    """Takes every action `times` times and sums the rewards; an episode's end stops it."""

    def __init__(self, env: gym.Env[Any, Any], times: Annotated[int, limits(low=1)] = 2) -> None:
        super().__init__(env, times)


@registry.register("wrapper", "TimeAware")
class TimeAware(gym.ObservationWrapper[Any, Any, Any]):
    """Appends the share of the time limit that has passed to a vector observation.

    It reads the limit's own clock, so it is right outside of wrappers that skip steps, too.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space = arguments.vector(env)
        _time_limit(env)  # is there one? A replayed environment makes it again, so it is not kept
        self.dtype = arguments.floating(space)
        low, high = np.append(space.low, 0), np.append(space.high, 1)
        self.observation_space = spaces.Box(
            low.astype(self.dtype), high.astype(self.dtype), dtype=self.dtype.type
        )

    def observation(self, observation: Array) -> Array:
        """0 at an episode's first frame, 1 where the limit ends it."""
        limit = _time_limit(self.env)
        share = limit._elapsed_steps / limit._max_episode_steps
        return np.append(observation, share).astype(self.dtype)


def _time_limit(env: gym.Env[Any, Any]) -> Any:
    layer = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, gym.wrappers.TimeLimit):
            return layer
        layer = layer.env
    raise UserError("needs a time limit: set environment.max_episode_steps")
