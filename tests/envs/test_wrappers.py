"""Wrappers named in a configuration: what is refused, and what evaluation leaves out."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import make_vector
from tiny_runs import tiny_config, tiny_orchestrator

ATARI = "picture_env:Picture-v0"


def make(*wrappers: dict[str, Any], id: str = "CartPole-v1") -> Any:
    return make_vector(EnvironmentConfig(id=id, wrappers=list(wrappers)), [0, 1])


def test_masked_components_are_zero_and_the_rest_is_untouched() -> None:
    masked = make({"id": "MaskObservation", "indices": [1, 3]})
    plain = make_vector(EnvironmentConfig(id="CartPole-v1", vectorization="sync"), [0, 1])
    assert masked.spec.observation.shape == (4,)
    assert masked.reset()[:, [0, 2]].tolist() == plain.reset()[:, [0, 2]].tolist()
    for _ in range(60):  # long enough for episodes to end
        left, right = (vector.step(np.ones(2, np.int64)) for vector in (masked, plain))
        for frames, originals in ((left.obs, right.obs), (left.next_obs, right.next_obs)):
            assert not frames[:, [1, 3]].any()
            assert np.array_equal(frames[:, [0, 2]], originals[:, [0, 2]])


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"id": "MaskObservation", "indices": [4]}, "index 4 is not one of 0 … 3"),
        ({"id": "MaskObservation", "indices": [-1]}, "0 … 3"),
        ({"id": "MaskObservations", "indices": [0]}, "did you mean 'MaskObservation'"),
        ({"id": "MaskObservation", "index": [0]}, "it takes: indices"),
        ({"id": "MaskObservation"}, "it takes: indices"),
        ({"indices": [0]}, "needs an id"),
        ({"id": "ScaleObservation", "divide": 0}, "must not be zero"),
        ({"id": "ScaleObservation", "subtract": [1, 2]}, "one number or a list of 4, got 2"),
        ({"id": "ScaleObservation", "subtract": "much"}, "subtract: must be .* got 'much'"),
        ({"id": "ScaleObservation", "subtract": [0, 0, True, 0]}, "subtract: must be"),
        ({"id": "FrameStack", "frames": 0}, "frames: must be at least 1, got 0"),
        ({"id": "FrameStack", "frames": True}, "got true"),
        ({"id": "FrameSkip", "skip": 1.5}, "skip: must be a whole number, got 1.5"),
        ({"id": "FrameSkip", "skip": 1, "max_pool": True}, "skip must be at least 2"),
        ({"id": "FrameSkip", "max_pool": "yes"}, "max_pool: must be true or false"),
        ({"id": "ActionRepeat", "times": 0}, "times: must be at least 1"),
        ({"id": "StickyActions", "probability": 1.5}, r"probability: must be in \[0, 1\]"),
        ({"id": "ActionRemap", "actions": [0, 2]}, r"2 is not an action of Discrete\(2\)"),
        ({"id": "ActionRemap", "actions": [True]}, "True is not an action"),
        ({"id": "ActionRemap", "actions": []}, "actions: must not be empty"),
        ({"id": "ActionRemap", "actions": 3}, "actions: must be a list, got 3"),
        ({"id": "DiscretizeObservation", "bins": 0}, "bins: must be at least 1"),
        ({"id": "DiscretizeObservation", "bins": [2, 2]}, "list of 4, got 2"),
        ({"id": "DiscretizeObservation", "bins": 3}, "component 1 has no bounds: give low and"),
        ({"id": "DiscretizeObservation", "bins": 3, "low": 1, "high": 0}, "low must be below high"),
        ({"id": "DiscretizeObservation", "bins": 999, "low": 0, "high": 1}, "cells are too many"),
        ({"id": "CountBonus", "bins": 32, "low": -1, "high": 1}, "1048576 cells are too many"),
        ({"id": "CountBonus"}, "component 1 has no bounds"),
        ({"id": "RewardShape", "clip": [1, -1]}, r"clip must be \[low, high\]"),
        ({"id": "RewardShape", "clip": 1}, "clip: must be"),
        ({"id": "RewardShape", "scale": None}, "scale: must be a number"),
        # the wrong kind of space, in words
        ({"id": "Grayscale"}, r"a color image of type uint8, got a Box of shape \(4,\) and type"),
        ({"id": "Resize"}, r"needs an image, got a Box of shape \(4,\)"),
        ({"id": "OneHotObservation"}, "needs a Discrete observation, got a Box"),
        ({"id": "DiscreteEncoder"}, "needs a Discrete observation, got a Box"),
        ({"id": "RescaleAction"}, r"needs a continuous action, got Discrete\(2\)"),
    ],
)
def test_mistakes_are_explained(block: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        make(block)
    message = str(caught.value)
    assert "\n" not in message and ("id" not in block or block["id"] in message)


@pytest.mark.parametrize(
    ("block", "id", "told"),
    [
        ({"id": "MaskObservation", "indices": [0]}, "FrozenLake-v1", "vector observation"),
        ({"id": "ScaleObservation"}, "FrozenLake-v1", r"needs a Box observation, got Discrete\(16"),
        ({"id": "TimeAware"}, "FrozenLake-v1", "vector observation"),
        ({"id": "TimeAware"}, "rl_lab/Counter-v0", "set environment.max_episode_steps"),
        ({"id": "FrameSkip", "max_pool": True}, "FrozenLake-v1", "needs a Box observation"),
        ({"id": "DiscreteEncoder", "encoding": "one_hot"}, "FrozenLake-v1", "did you mean 'onehot"),
        ({"id": "ActionRemap", "actions": [[3.0]]}, "Pendulum-v1", r"\[3.0\] is not an action of"),
        ({"id": "ActionRemap", "actions": ["up"]}, "Pendulum-v1", "'up' is not an action"),
        ({"id": "Resize", "size": [4]}, ATARI, r"a number or \[height, width\]"),
        ({"id": "Resize", "size": 0}, ATARI, "size: must be at least 1, got 0"),
        ({"id": "Grayscale", "keep_channel": 1}, ATARI, "true or false"),
    ],
)
def test_the_wrong_environment_is_explained(block: dict[str, Any], id: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        make(block, id=id)
    assert f"wrapper {block['id']}: " in str(caught.value)


def test_an_unbounded_action_cannot_be_rescaled() -> None:
    from rl_lab.envs.wrappers import wrap

    env = gym.make("Pendulum-v1", disable_env_checker=True)
    env.action_space = gym.spaces.Box(-np.inf, 1, (1,))
    with pytest.raises(UserError, match="wrapper RescaleAction: needs a bounded action"):
        wrap(env, [{"id": "RescaleAction"}])


SHAPED = [{"id": "RewardShape", "scale": 10}, {"id": "MaskObservation", "indices": [1]}]


def test_reward_wrappers_are_left_out_of_evaluation_and_the_others_stay() -> None:
    config = EnvironmentConfig(id="CartPole-v1", wrappers=SHAPED)
    training, evaluation = make_vector(config, [0]), make_vector(config, [0], training=False)
    for vector, paid in ((training, 10.0), (evaluation, 1.0)):
        assert vector.reset()[0, 1] == 0
        assert vector.step(np.zeros(1, np.int64)).reward.tolist() == [paid]


def test_a_run_trains_on_shaped_rewards_and_evaluates_raw_ones(tmp_path: Any) -> None:
    block = "environment.wrappers=[{id: RewardShape, scale: -1}]"
    assert tiny_config("CartPole-v1:random", block).environment.wrappers[0]["scale"] == -1
    orchestrator = tiny_orchestrator(tmp_path, "CartPole-v1:random", block)
    try:
        assert orchestrator.environment.step(np.zeros(4, np.int64)).reward.tolist() == [-1.0] * 4
        assert min(orchestrator.evaluate("eval", 2).returns) > 0
    finally:
        orchestrator.close()
