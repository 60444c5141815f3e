"""Which optional module an environment or an algorithm needs, for parametrized tests."""

import re

import pytest

MODULES = {
    r"(.*:)?world_models": "cma",
    r"dm_control/": "dm_control",
    r"ALE/": "ale_py",
    r"MiniGrid-|BabyAI-": "minigrid",
    r"popgym-": "popgym",
    r"LunarLander|BipedalWalker|CarRacing": "Box2D",
    r"Ant|HalfCheetah|Hopper|Humanoid|Inverted|Pusher|Reacher|Swimmer|Walker2d": "mujoco",
}


def installed_case(name, *others):
    """A case of a parametrized test, skipped where its environment or algorithm is missing."""
    needed = [module for pattern, module in MODULES.items() if re.match(pattern, name)]
    return pytest.param(name, *others, marks=[pytest.mark.needs(each) for each in needed])
