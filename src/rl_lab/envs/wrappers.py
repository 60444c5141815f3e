"""Wrappers that a configuration can name: `wrappers: [{id: MaskObservation, indices: [1, 3]}]`."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.core import registry
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError

WrapperBlock = Mapping[str, Any]  # `id` and the wrapper's arguments


def check_wrappers(blocks: Sequence[WrapperBlock]) -> None:
    """`UserError` for an unknown wrapper or wrong arguments, before any environment exists."""
    for block in blocks:
        _load(block)


def wrap(env: gym.Env[Any, Any], blocks: Sequence[WrapperBlock]) -> gym.Env[Any, Any]:
    """The environment inside the named wrappers, the first one innermost."""
    for block in blocks:
        wrapper, arguments = _load(block)
        env = wrapper(env, **arguments)
    return env


@registry.register("wrapper", "MaskObservation")
class MaskObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Zeroes some components of a vector observation, so that the task needs memory."""

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise UserError(f"wrapper MaskObservation needs a vector observation, got {space}")
        size = space.shape[0]
        for index in indices:
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
                raise UserError(
                    f"wrapper MaskObservation: index {index!r} is not one of 0 … {size - 1}"
                )
        self.indices = list(indices)
        low, high = space.low.copy(), space.high.copy()
        low[self.indices] = high[self.indices] = 0
        self.observation_space = gym.spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """A copy with zeros at the masked components."""
        masked = np.array(observation)
        masked[self.indices] = 0
        return masked


def _load(block: WrapperBlock) -> tuple[Any, dict[str, Any]]:
    """The wrapper's class and its arguments."""
    if not isinstance(block, Mapping) or not isinstance(block.get("id"), str):
        raise UserError(
            f"environment.wrappers: {block!r} needs an id, as in {{id: MaskObservation}}"
        )
    arguments = {key: value for key, value in block.items() if key != "id"}
    wrapper = registry.get("wrapper", block["id"])
    signature = inspect.signature(wrapper)
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        parameters = ", ".join(list(signature.parameters)[1:]) or "no arguments"
        raise UserError(f"wrapper {block['id']}: {error}; it takes: {parameters}") from error
    return wrapper, arguments
