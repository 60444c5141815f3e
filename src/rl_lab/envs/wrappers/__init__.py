"""Wrappers that a configuration can name: `wrappers: [{id: MaskObservation, indices: [1, 3]}]`.

One file per theme: image, vector and discrete observations; actions; time; starts; rewards. All
their state is in plain attributes, where `rl_lab.envs.snapshot` finds it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from rl_lab.core import registry
from rl_lab.core.checker import arguments_class, check
from rl_lab.core.errors import UserError
from rl_lab.envs.wrappers.action import ActionRemap, RescaleAction, StickyActions
from rl_lab.envs.wrappers.discrete import (
    DiscreteEncoder,
    DiscretizeObservation,
    OneHotObservation,
)
from rl_lab.envs.wrappers.image import Crop, Grayscale, Resize
from rl_lab.envs.wrappers.observation import (
    MaskObservation,
    NoisyObservation,
    PositionOnly,
    ScaleObservation,
    VelocityOnly,
)
from rl_lab.envs.wrappers.reward import CountBonus, RewardShape
from rl_lab.envs.wrappers.start import SkipStart
from rl_lab.envs.wrappers.time import ActionRepeat, FrameSkip, FrameStack, TimeAware

__all__ = [
    "ActionRemap",
    "ActionRepeat",
    "CountBonus",
    "Crop",
    "DiscreteEncoder",
    "DiscretizeObservation",
    "FrameSkip",
    "FrameStack",
    "Grayscale",
    "MaskObservation",
    "NoisyObservation",
    "OneHotObservation",
    "PositionOnly",
    "RescaleAction",
    "Resize",
    "RewardShape",
    "ScaleObservation",
    "SkipStart",
    "StickyActions",
    "TimeAware",
    "VelocityOnly",
    "WrapperBlock",
    "check_wrappers",
    "wrap",
]

WrapperBlock = Mapping[str, Any]  # `id` and the wrapper's arguments


def check_wrappers(blocks: Sequence[WrapperBlock]) -> None:
    """`UserError` for an unknown wrapper or wrong arguments, before any environment exists."""
    for block in blocks:
        _load(block)


def wrap(
    env: gym.Env[Any, Any], blocks: Sequence[WrapperBlock], *, training: bool = True
) -> gym.Env[Any, Any]:
    """The environment inside the named wrappers, the first one innermost.

    Those that say `training_only = True` (they change the reward) are left out of evaluation.
    """
    for block in blocks:
        wrapper, arguments = _load(block)
        if not training and getattr(wrapper, "training_only", False):  # plug-ins need not say it
            continue
        try:
            env = wrapper(env, **arguments)
        except (UserError, ValueError, TypeError, gym.error.Error) as error:
            raise _refused(block["id"], wrapper, error) from error
    return env


def _load(block: WrapperBlock) -> tuple[Any, dict[str, Any]]:
    """The wrapper's class and its arguments."""
    if not isinstance(block, Mapping) or not isinstance(block.get("id"), str):
        raise UserError(
            f"environment.wrappers: {block!r} needs an id, as in {{id: MaskObservation}}"
        )
    arguments = {key: value for key, value in block.items() if key != "id"}
    wrapper = registry.get("wrapper", block["id"])
    parameters = inspect.signature(wrapper).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):  # it reads them itself
        return wrapper, arguments
    try:
        checked = check(arguments_class(wrapper), arguments)
    except UserError as error:
        raise _refused(block["id"], wrapper, error) from error
    return wrapper, {key: getattr(checked, key) for key in arguments}


def _refused(id: str, wrapper: Callable[..., object], error: Exception) -> UserError:
    """What a wrapper did not like, and what it takes."""
    parameters = ", ".join(list(inspect.signature(wrapper).parameters)[1:]) or "no arguments"
    problems = ", ".join(str(error).splitlines())
    return UserError(f"wrapper {id}: {problems}; it takes: {parameters}")
