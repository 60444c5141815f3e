"""The point that is told where to go: rewards by hand, batches of goals, chance, state."""

import numpy as np
import pytest

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import make_vector
from rl_lab.envs.point_goal import PointGoalEnv

IDS = ["PointGoal-v0", "PointGoalDiscrete-v0"]


def vector(id: str, count: int = 2, **settings):
    return make_vector(EnvironmentConfig(id=id, **settings), list(range(count)))


def test_goals_are_paid_in_batches_by_hand():
    # Distances: 0, 0.04, hypot(0.03, 0.04) = 0.05 (the border is not near), 1.
    achieved = np.array([[0, 0], [0.04, 0], [0.03, 0.04], [1, 0]])
    reward = PointGoalEnv().compute_reward(achieved, np.zeros((4, 2)), {})
    assert reward.tolist() == [0, 0, -1, -1]
    grid = PointGoalEnv().compute_reward(np.zeros((5, 3, 2)), np.ones((5, 3, 2)), {})
    assert grid.shape == (5, 3) and (grid == -1).all()


def test_a_step_moves_a_twentieth_and_pays_what_compute_reward_says():
    env = PointGoalEnv()
    env.reset(seed=0)
    env.goal = np.array([0.05, 0.075], np.float32)
    frame, reward, *ends, info = env.step(np.array([1.0, -0.5], np.float32))
    assert frame["observation"] == pytest.approx([0.05, -0.025])
    assert frame["achieved_goal"] == pytest.approx([0.05, -0.025])
    assert frame["desired_goal"] == pytest.approx([0.05, 0.075])
    assert reward == -1.0 and info == {"is_success": 0.0}
    env.step(np.array([0, 1.0], np.float32))
    frame, reward, *ends, info = env.step(np.array([0, 9.0], np.float32))  # as if it were 1
    assert frame["observation"] == pytest.approx([0.05, 0.075])
    assert reward == 0.0 and info == {"is_success": 1.0}
    assert ends == [False, False]  # a goal is a place to stay


def test_discrete_moves_are_stay_and_four_ways():
    env = PointGoalEnv(discrete=True)
    env.reset(seed=0)
    seen = [env.step(move)[0]["observation"].copy() for move in (0, 1, 3, 2, 4)]
    expected = [[0, 0], [0.05, 0], [0.05, 0.05], [0, 0.05], [0, 0]]
    assert np.array(seen) == pytest.approx(np.array(expected), abs=1e-6)
    assert env.action_space.n == 5


def test_walls_hold_and_goals_keep_their_distance():
    env = PointGoalEnv()
    goals = np.array([env.reset(seed=seed)[0]["desired_goal"] for seed in range(300)])
    assert (np.abs(goals) <= 1).all() and (np.abs(goals) > 0.9).any()
    assert 0.3 <= np.linalg.norm(goals, axis=1).min() < 0.4
    for _ in range(25):
        frame = env.step(np.array([1, -1], np.float32))[0]
    assert frame["observation"].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("id", IDS)
def test_chance_reaches_fewer_than_a_fiftieth_of_the_goals(id):
    many = vector(id, 400)
    many.reset()
    random = np.random.default_rng(0)
    for _ in range(50):
        discrete = random.integers(0, 5, 400)
        continuous = random.uniform(-1, 1, (400, 2)).astype(np.float32)
        step = many.step(discrete if "Discrete" in id else continuous)
    assert step.truncated.all()
    assert (step.reward == 0).mean() < 0.02


@pytest.mark.parametrize("settings", [{}, {"vectorization": "process", "workers": 1}])
def test_a_vector_hands_out_the_reward_of_its_goals(settings):
    env = vector("PointGoal-v0", **settings)
    try:
        obs = env.reset()
        step = env.step(np.ones((2, 2), np.float32))
        again = env.goal_reward(step.next_obs["achieved_goal"], step.next_obs["desired_goal"])
        assert again.tolist() == step.reward.tolist() == [-1, -1]
        same = env.goal_reward(obs["desired_goal"], obs["desired_goal"])
        assert same.tolist() == [0, 0] and same.dtype == np.float64
    finally:
        env.close()


def test_an_environment_without_goals_has_no_reward_of_goals():
    assert vector("CartPole-v1", vectorization="sync").goal_reward is None


@pytest.mark.parametrize("id", IDS)
def test_it_goes_on_exactly_from_a_saved_state(id):
    one, other = vector(id), vector(id)
    random = np.random.default_rng(0)
    moves = random.uniform(-1, 1, (120, 2, 2)).astype(np.float32)
    if "Discrete" in id:
        moves = random.integers(0, 5, (120, 2))
    one.reset()
    for move in moves[:30]:
        one.step(move)
    other.load_state_dict(one.state_dict())
    for move in moves[30:]:
        left, right = one.step(move), other.step(move)
        assert left.reward.tobytes() == right.reward.tobytes()
        for key, part in left.obs.items():
            assert part.tobytes() == right.obs[key].tobytes()
    assert one.snapshot_level == "E0"
