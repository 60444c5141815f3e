"""Wrappers of actions: what the policy says is not quite what the environment gets.

There is no ClipAction: the vector clips every continuous action to the bounds of the space.
"""

import copy
from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core import registry, seeding
from rl_lab.core.batch import ACTION_MASK, Array, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.options import limits
from rl_lab.envs.wrappers import arguments

OBSERVATION = "observation"  # the name of what was the whole observation before


@registry.register("wrapper", "StickyActions")
class StickyActions(gym.Wrapper[Any, Any, Any, Any]):
    """Executes the previous action once more with a `probability` (Machado et al. 2018).

    The first action of an episode is never replaced. The random stream is the wrapper's own, from
    the seed of the environment: it is saved with it, and does not disturb the environment's.
    """

    def __init__(
        self, env: gym.Env[Any, Any], probability: Annotated[float, limits(low=0, high=1)] = 0.25
    ) -> None:
        super().__init__(env)
        self.probability = probability
        self.random = np.random.default_rng()
        self.last_action: object = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode; a seed restarts the stream."""
        if seed is not None:
            self.random = np.random.default_rng(seeding.sequence(seed, "StickyActions"))
        self.last_action = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, with this action or with the last one that was executed."""
        if self.last_action is not None and self.random.random() < self.probability:
            action = self.last_action
        self.last_action = copy.copy(action)
        return self.env.step(action)


@registry.register("wrapper", "RescaleAction")
class RescaleAction(gym.wrappers.RescaleAction[Any, Any, Any]):
    """Lets the policy act in [-1, 1]; the environment gets its own range."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        space = env.action_space
        if not isinstance(space, spaces.Box):
            raise UserError(f"needs a continuous action, got {arguments.described(space)}")
        if not space.is_bounded():
            raise UserError("needs a bounded action: some component has no bound")
        super().__init__(env, np.float32(-1), np.float32(1))
        self.bounds = space.low, space.high

    def action(self, action: Array) -> Array:
        """Linear, and clipped: rounding must not leave the range."""
        return np.clip(super().action(action), *self.bounds)


@registry.register("wrapper", "ActionRemap")
class ActionRemap(gym.ActionWrapper[Any, Any, Any]):
    """Gives the policy a list of actions to choose from: action i is `actions[i]`.

    A Discrete environment keeps some of its actions; for a Box or MultiDiscrete one each entry is a
    whole vector.
    """

    def __init__(
        self, env: gym.Env[Any, Any], actions: Annotated[Sequence[Any], limits(not_empty=True)]
    ) -> None:
        super().__init__(env)
        self.actions = [_legal(env.action_space, each) for each in actions]
        self.action_space = spaces.Discrete(len(self.actions))

    def action(self, action: int | np.integer[Any]) -> Any:
        """The environment's own action; a copy, so that no environment can change the list."""
        return copy.copy(self.actions[int(action)])


@registry.register("wrapper", "ActionMask")
class ActionMask(gym.Wrapper[Any, Any, Any, Any]):
    """Shows which actions are legal: `info["action_mask"]` becomes a part of the observation.

    The policy never takes an action whose entry is 0. A MultiDiscrete environment gives one entry
    for each value of each component, side by side. Must come after wrappers that change actions.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space, own = env.action_space, env.observation_space
        if isinstance(space, spaces.Discrete):
            self.sizes = [int(space.n)]
        elif isinstance(space, spaces.MultiDiscrete):
            self.sizes = [int(n) for n in space.nvec.reshape(-1)]
        else:
            raise UserError(f"needs a discrete action, got {arguments.described(space)}")
        self.is_dict = isinstance(own, spaces.Dict)
        parts = dict(own.spaces) if isinstance(own, spaces.Dict) else {OBSERVATION: own}
        mask = spaces.MultiBinary(sum(self.sizes))
        self.observation_space = spaces.Dict({**parts, ACTION_MASK: mask})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A new episode, and what is legal in it at first."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info, ended=False), info

    def step(self, action: object) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """One step, and what is legal after it."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        shown = self._with_mask(obs, info, ended=terminated or truncated)
        return shown, reward, terminated, truncated, info

    def _with_mask(self, obs: Obs, info: dict[str, Any], *, ended: bool) -> dict[str, Any]:
        if ACTION_MASK not in info:
            raise UserError(f"this environment gives no info['{ACTION_MASK}']")
        given = info[ACTION_MASK]
        parts = given if isinstance(given, tuple | list) else [given]
        mask = np.concatenate([np.asarray(part).reshape(-1) for part in parts]) != 0
        if len(mask) != sum(self.sizes):
            raise UserError(
                f"info['{ACTION_MASK}'] has {len(mask)} entries for {sum(self.sizes)} actions"
            )
        choices = np.split(mask, np.cumsum(self.sizes)[:-1])
        if not ended and not all(each.any() for each in choices):
            raise UserError(f"info['{ACTION_MASK}'] forbids every action")
        own = obs if self.is_dict else {OBSERVATION: obs}
        return {**own, ACTION_MASK: mask.astype(np.int8)}


def _legal(space: spaces.Space[Any], written: object) -> Any:
    """An action as the space wants it, or a `UserError` if it is none."""
    if isinstance(space, spaces.Discrete):
        found: Any = written
        fits = isinstance(written, int) and not isinstance(written, bool)
    else:
        try:
            exact = np.asarray(written, np.float64)
        except (TypeError, ValueError):
            raise UserError(
                f"{written!r} is not an action of {arguments.described(space)}"
            ) from None
        found = exact.astype(space.dtype)
        fits = found.dtype.kind == "f" or np.array_equal(found, exact)
    if not fits or not space.contains(found):
        raise UserError(f"{written!r} is not an action of {arguments.described(space)}")
    return found
