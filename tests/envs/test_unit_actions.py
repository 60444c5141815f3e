"""Policies that act in [-1, 1]: environments see their own units, everybody else the small ones."""

import gymnasium as gym
import numpy as np
import pytest

from rl_lab import api
from rl_lab.core.actions import random_action
from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.spec import Box, Discrete
from rl_lab.envs.make import make_vector
from rl_lab.envs.unit_actions import Stretch, UnitActions


def box(low, high) -> Box:
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    return Box(low.shape, np.dtype(np.float32), low, high)


def test_the_bounds_are_met_exactly_and_never_left():
    stretch = Stretch(box([-2.0, 0.1], [6.0, 0.3]), "x")
    units = np.array([[-1, -1], [0, 0], [1, 1], [5, -5]], np.float32)
    expected = np.array([[-2, 0.1], [2, 0.2], [6, 0.3], [6, 0.1]], np.float32)
    assert stretch(units).tolist() == expected.tolist()
    assert stretch(units).dtype == np.float32
    assert stretch.unit.low.tolist() == [-1, -1] and stretch.unit.high.tolist() == [1, 1]


def test_actions_without_bounds_and_discrete_ones_are_refused():
    with pytest.raises(UserError, match="without bounds"):
        Stretch(box([-np.inf], [1.0]), "x")
    with pytest.raises(UserError, match="no continuous actions"):
        Stretch(Discrete(3), "x")


def test_a_vector_in_units_is_the_same_vector():
    config = EnvironmentConfig(id="Pendulum-v1", num_envs=2)
    plain, unit = make_vector(config, [1, 2]), UnitActions(make_vector(config, [1, 2]))
    assert unit.spec.action.high.tolist() == [1.0]
    assert unit.snapshot_level == plain.snapshot_level
    assert unit.reset().tolist() == plain.reset().tolist()
    small = np.array([[0.5], [-1.0]], np.float32)
    ours, theirs = unit.step(small), plain.step(2 * small)
    assert ours.obs.tolist() == theirs.obs.tolist()
    assert ours.reward.tolist() == theirs.reward.tolist()
    saved = unit.state_dict()
    first = unit.step(small).obs
    unit.load_state_dict(saved)
    assert unit.step(small).obs.tolist() == first.tolist()


def test_random_actions_cover_the_units():
    rng = np.random.default_rng(0)
    space = Stretch(box([-2.0], [2.0]), "x").unit
    drawn = random_action(space, np.zeros((1000, 3)), rng)
    assert drawn.shape == (1000, 1)
    assert -1 <= drawn.min() < -0.95 and 0.95 < drawn.max() <= 1


def test_a_loaded_policy_answers_in_the_units_of_its_environment(tmp_path):
    short = ["training.total_timesteps=64", "algorithm.learning_starts=32"]
    short += ["evaluation.every_steps=0", "evaluation.test_episodes=0"]
    outcome = api.train("Pendulum-v1:sac", runs_dir=tmp_path, overrides=short)
    policy = api.load_policy(outcome.run.id, runs_dir=tmp_path)
    env = gym.make("Pendulum-v1")
    frames = np.stack([env.reset(seed=seed)[0] for seed in range(200)])
    actions = policy.act(frames, deterministic=False)
    assert np.abs(actions).max() > 1.2  # the environment's bound is 2
    assert env.action_space.contains(actions[0])
