"""The point with four goals: its arithmetic by hand, its ends, its state."""

import numpy as np
import pytest

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import find, make_vector
from rl_lab.envs.multi_goal import GOALS, MultiGoalEnv


def at(x: float, y: float, **settings) -> MultiGoalEnv:
    env = MultiGoalEnv(**settings)
    env.reset(seed=0)
    env.position = np.array([x, y], np.float32)
    return env


def action(x: float, y: float):
    return np.array([x, y], np.float32)


def test_a_step_is_paid_for_distance_and_effort_by_hand():
    # (1, 0) + (0.5, -0.5) = (1.5, -0.5). Squared distance to (5, 0): 3.5² + 0.5² = 12.5.
    # Effort: 30 · (0.25 + 0.25) = 15. Reward: -12.5 - 15.
    obs, reward, terminated, truncated, info = at(1, 0).step(action(0.5, -0.5))
    assert obs.tolist() == [1.5, -0.5] and obs.dtype == np.float32
    assert reward == pytest.approx(-27.5)
    assert not terminated and not truncated
    assert set(info) == set(MultiGoalEnv.outcomes) and sum(info.values()) == 0


@pytest.mark.parametrize("goal", range(4))
def test_each_goal_ends_the_episode_and_is_counted_by_its_number(goal):
    # From 1.5 away to 0.5 away: -0.25 for distance, -30 for effort, +10 for being there.
    direction = GOALS[goal] / 5
    env = at(*(GOALS[goal] - 1.5 * direction))
    _, reward, terminated, _, info = env.step(direction)
    assert terminated and reward == pytest.approx(-0.25 - 30 + 10)
    expected = {f"goal_{index}": float(index == goal) for index in range(4)}
    assert info == {"reached": 1.0, **expected}


def test_exactly_on_the_border_is_not_there():
    assert not at(3, 0).step(action(1, 0))[2]
    assert at(3.001, 0).step(action(1, 0))[2]


def test_walls_and_the_bounds_of_the_action_hold():
    obs, reward, *_ = at(6.5, 6.5).step(action(3, 3))  # as if it were (1, 1)
    assert obs.tolist() == [7.0, 7.0]
    # To (5, 0): 4 + 49 = 53; effort 30 · 2 = 60.
    assert reward == pytest.approx(-113)


def test_costs_are_arguments():
    env = at(1, 0, goal_reward=3, action_cost=2, distance_cost=0.5)
    assert env.step(action(0, 1))[1] == pytest.approx(-0.5 * 17 - 2)
    with pytest.raises(ValueError, match="start_deviation must be 0 or more, got -1"):
        MultiGoalEnv(start_deviation=-1)


def test_starts_are_normal_around_the_middle_and_follow_the_seed():
    env = MultiGoalEnv()
    first = env.reset(seed=3)[0]
    starts = np.array([env.reset()[0] for _ in range(2000)])
    assert np.array_equal(env.reset(seed=3)[0], first)
    assert np.abs(starts.mean(axis=0)).max() < 0.01
    assert starts.std(axis=0) == pytest.approx([0.1, 0.1], abs=0.01)


def test_frames_that_were_given_are_not_written_again():
    env = MultiGoalEnv()
    first = env.reset(seed=0)[0]
    kept = first.copy()
    env.step(action(1, 1))
    assert np.array_equal(first, kept)


def test_episodes_last_thirty_steps_and_go_on_exactly_from_a_saved_state():
    assert find("MultiGoal-v0").max_episode_steps == 30
    config = EnvironmentConfig(id="MultiGoal-v0")
    one, other = make_vector(config, [1, 2]), make_vector(config, [3, 4])
    moves = np.random.default_rng(0).uniform(-1, 1, (80, 2, 2)).astype(np.float32)
    one.reset()
    for move in moves[:20]:
        one.step(move)
    other.load_state_dict(one.state_dict())
    for move in moves[20:]:
        left, right = one.step(move), other.step(move)
        for name in ("obs", "next_obs", "reward", "terminated", "truncated"):
            assert getattr(left, name).tobytes() == getattr(right, name).tobytes()
    assert one.snapshot_level == "E0"
    assert one.goal_reward is None
    still = make_vector(config, [0])
    still.reset()
    ends = [bool(still.step(np.zeros((1, 2), np.float32)).truncated[0]) for _ in range(30)]
    assert ends == [False] * 29 + [True]
