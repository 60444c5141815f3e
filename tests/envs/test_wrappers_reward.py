"""Wrappers of the reward, by hand."""

from typing import Any

import numpy as np
import pytest

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import make_vector


def rewards(id: str, block: dict[str, Any], actions: list[int], **settings: Any) -> list[float]:
    """What a single environment pays for the actions."""
    config = EnvironmentConfig(id=id, wrappers=[block], **settings)
    vector = make_vector(config, [0])
    vector.reset()
    return [float(vector.step(np.array([action])).reward[0]) for action in actions]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [1, 2, 3, 4]),
        ({"scale": 0.5}, [0.5, 1, 1.5, 2]),
        ({"scale": 2, "offset": -3}, [-1, 1, 3, 5]),
        ({"clip": [1.5, 3]}, [1.5, 2, 3, 3]),
        ({"scale": "1e1", "offset": -20, "clip": [-1, 1]}, [-1, 0, 1, 1]),
    ],
)
def test_shaped_rewards(arguments: dict[str, Any], expected: list[float]) -> None:
    block = {"id": "RewardShape", **arguments}
    assert rewards("rl_lab/Counter-v0", block, [0] * 4) == expected  # it pays 1, 2, 3, …


def test_the_bonus_falls_with_the_root_of_the_visits() -> None:
    # CliffWalking pays -1 a step; up from the start (36) is 24, the left wall keeps one there.
    up, left = 0, 3
    paid = rewards("CliffWalking-v1", {"id": "CountBonus", "scale": 6}, [up, left, left, left])
    assert paid == pytest.approx([-1 + 6, -1 + 6 / 2**0.5, -1 + 6 / 3**0.5, -1 + 6 / 4**0.5])


def test_cells_of_a_box_are_counted_over_episodes() -> None:
    # Counter shows [episode, t] and pays t. Two cells in time: t < 4 and t >= 4; one for episodes.
    block = {"id": "CountBonus", "bins": [1, 2], "low": 0, "high": 8}
    settings = {"kwargs": {"lengths": [5]}}
    paid = rewards("rl_lab/Counter-v0", block, [0] * 6, **settings)
    early, late = [1 / n**0.5 for n in (1, 2, 3, 4)], [1 / n**0.5 for n in (1, 2)]
    bonus = [*early[:3], *late, early[3]]
    assert paid == pytest.approx(
        [t + each for t, each in zip([1, 2, 3, 4, 5, 1], bonus, strict=True)]
    )


def test_every_environment_counts_for_itself() -> None:
    config = EnvironmentConfig(id="CliffWalking-v1", wrappers=[{"id": "CountBonus"}])
    vector = make_vector(config, [0, 1])
    vector.reset()
    assert vector.step(np.zeros(2, np.int64)).reward.tolist() == [0, 0]  # -1 + 1 in both
