"""Outcomes: numbers of an episode's end, from the environment to the log, by hand."""

import math
import os
import signal

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.collect.collector import RolloutCollector
from rl_lab.collect.episodes import WINDOW, MeasureTracker
from rl_lab.collect.evaluate import evaluate
from rl_lab.core.batch import Action
from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.state import join, split
from rl_lab.envs.make import make_vector
from rl_lab.envs.multi_goal import MultiGoalEnv
from rl_lab.envs.process import ProcessVector
from rl_lab.envs.vector import SyncVector
from rl_lab.records.metrics import read_metrics
from tiny_runs import tiny_run

NAN = math.nan
DIRECTIONS = np.array([[1, 0], [0, 1]], np.float32)  # east is goal_0, north is goal_2


def goals(count: int = 2, **settings):
    """Points that start in the middle: five steps of length 1 would be on a goal, four are not."""
    config = EnvironmentConfig(id="MultiGoal-v0", kwargs={"start_deviation": 0.0}, **settings)
    return make_vector(config, list(range(1, count + 1)))


def march(obs, state, *, deterministic):
    """Environment 0 goes east, environment 1 north, a third one stays where it is."""
    moves = np.zeros((len(obs), 2), np.float32)
    moves[:2] = DIRECTIONS[: len(obs)]
    return Action(moves)


# ------------------------------------------------------------------------------------- the vector


@pytest.mark.parametrize("settings", [{}, {"vectorization": "process", "workers": 2}])
def test_a_step_tells_outcomes_where_an_episode_ended_and_nan_elsewhere(settings):
    # From (0, 0) with steps of 1: after four it is exactly 1 away, which is not there; the fifth
    # step is. The one that goes at half the speed is on its way then.
    points = goals(**settings)
    try:
        points.reset()
        moves = DIRECTIONS * [[1.0], [0.5]]
        for _ in range(4):
            told = points.step(moves.astype(np.float32)).measures
            assert set(told) == set(MultiGoalEnv.outcomes)
            assert all(np.isnan(values).all() for values in told.values())
        step = points.step(moves.astype(np.float32))
        assert step.terminated.tolist() == [True, False]
        ended = {name: values[0] for name, values in step.measures.items()}
        assert ended == {"reached": 1, "goal_0": 1, "goal_1": 0, "goal_2": 0, "goal_3": 0}
        assert all(np.isnan(values[1]) for values in step.measures.values())
    finally:
        points.close()


def test_a_lost_worker_leaves_an_episode_whose_outcome_nobody_knows():
    points = ProcessVector(MultiGoalEnv, [1, 2], "MultiGoal-v0", workers=2)
    try:
        points.reset()
        points.step(DIRECTIONS)
        os.kill(points._workers[0].process.pid, signal.SIGKILL)
        step = points.step(DIRECTIONS)
        assert step.truncated.tolist() == [True, False]
        assert np.isnan(step.measures["reached"]).all()
    finally:
        points.close()


class Silent(gym.Env):
    """Declares an outcome and never tells it."""

    outcomes = ("won",)
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}


def test_an_outcome_that_is_never_told_is_one_clear_line():
    silent = SyncVector([Silent()], [0], "Silent")
    silent.reset()
    with pytest.raises(UserError, match="declares 'won' in its measures or outcomes, but its info"):
        silent.step(np.zeros(1, np.int64))


# ------------------------------------------------------------------------------------ the counting


def test_the_window_holds_the_last_episodes_that_told_something():
    tracker = MeasureTracker(2, ("won",))
    assert tracker.metrics() == {}
    tracker.add({"won": np.array([NAN, NAN]), "cost": np.array([1.0, 2.0])})
    assert tracker.metrics() == {"cost": 1.5, "cost_total": 1.5}  # nothing has ended yet
    tracker.add({"won": np.array([1.0, 0.0]), "cost": np.array([0.0, 0.0])})
    tracker.add({"won": np.array([NAN, 0.0]), "cost": np.array([0.0, 0.0])})
    assert tracker.metrics()["won"] == pytest.approx(1 / 3)
    assert "won_total" not in tracker.metrics()
    for _ in range(WINDOW - 1):
        tracker.add({"won": np.array([NAN, 1.0])})
    # the last 100 episodes are one 0 and 99 ones; the first three but one are forgotten
    assert tracker.metrics()["won"] == 0.99


def test_collected_outcomes_are_means_over_episodes_whatever_their_length():
    # 30 steps: two points reach their goal 6 times each, in five steps; the third one never moves
    # and is cut once. 13 episodes, of which 6 ended in the east and 6 in the north.
    collector = RolloutCollector(goals(3))
    assert "collect/reached" not in collector.collect(march, steps=4).metrics
    result = collector.collect(march, steps=26)
    assert collector.episodes.lengths.count(5) == 12 and len(collector.episodes.lengths) == 13
    assert result.metrics["collect/reached"] == pytest.approx(12 / 13)
    assert result.metrics["collect/goal_0"] == pytest.approx(6 / 13)
    assert result.metrics["collect/goal_2"] == pytest.approx(6 / 13)
    assert result.metrics["collect/goal_1"] == 0.0
    assert "collect/reached_total" not in result.metrics
    assert not set(MultiGoalEnv.outcomes) & set(result.trajectory)


def test_a_restored_collector_goes_on_with_the_same_episodes():
    one, other = RolloutCollector(goals(3)), RolloutCollector(goals(3))
    one.collect(march, steps=32)
    saved = join(*split({"env": one.env.state_dict(), "collector": one.state_dict()}))
    other.env.load_state_dict(saved["env"])
    other.load_state_dict(saved["collector"])
    assert other.measures.outcomes == one.measures.outcomes
    left, right = (each.collect(march, steps=33).metrics for each in (one, other))
    assert left == right
    assert left["collect/reached"] == pytest.approx(26 / 28)  # 65 steps: 13 + 13, and 2 cuts


# ------------------------------------------------------------------------------------ evaluation


def test_an_evaluation_counts_the_ends_of_its_own_episodes():
    # Five episodes on three environments: quotas 2, 2, 1. East twice, north twice, nowhere once;
    # until the third is cut after 30 steps the others reach their goals four more times, uncounted.
    found = evaluate(march, goals(3), seeds=[1, 2, 3], episodes=5, deterministic=True)
    assert found.lengths == [5, 5, 5, 5, 30]
    summary = found.summary()
    assert (summary["reached"], summary["goal_0"], summary["goal_2"]) == (0.8, 0.4, 0.4)
    assert summary["goal_1"] == summary["goal_3"] == 0.0
    assert found.to_tree()["reached"] == 0.8


def test_success_is_where_the_point_is_at_the_end_not_on_its_way():
    # A goal at (0.25, 0): five moves to the east are there. The first point then stays; the second
    # goes on to the wall, having been there on its way.
    points = make_vector(EnvironmentConfig(id="PointGoalDiscrete-v0"), [1, 2])
    points.reset()
    for each in points.envs:
        each.unwrapped.goal = np.array([0.25, 0.0], np.float32)
    rewards = np.zeros(2)
    for at in range(50):
        step = points.step(np.array([1 if at < 5 else 0, 1]))
        rewards += step.reward
        assert np.isnan(step.measures["is_success"]).all() == (at < 49)
    assert step.truncated.all() and step.measures["is_success"].tolist() == [1.0, 0.0]
    assert rewards[0] > rewards[1] > -50


# ------------------------------------------------------------------------------------------- runs


def test_outcomes_are_in_the_metrics_and_in_the_final_test(tmp_path):
    outcome = tiny_run(tmp_path, "PointGoal-v0:random", "environment.max_episode_steps=20")
    rows = read_metrics(outcome.run.metrics_file)
    shown = [row for row in rows if "collect/is_success" in row]
    assert shown and all(0 <= row["collect/is_success"] <= 1 for row in shown)
    assert all("collect/return_mean" in row for row in shown)
    assert any("eval/is_success" in row for row in rows)
    assert 0 <= outcome.summary["test"]["last"]["is_success"] <= 1
