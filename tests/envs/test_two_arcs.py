"""Two arcs: geometry by hand, demonstrations on both sides, and their mean, which fails."""

import numpy as np
import pytest

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import make_vector
from rl_lab.envs.worlds.two_arcs import (
    LONGEST,
    REACH,
    WAYPOINTS,
    TwoArcs,
    demonstrate,
    distance_to_segment,
)


def vector(count, kind="auto", **kwargs):
    config = EnvironmentConfig(id="TwoArcs-v0", vectorization=kind, kwargs=kwargs)
    return make_vector(config, list(range(count)))


def played(decide, count=200, **kwargs):
    """Rewards and outcomes [N] of one episode each."""
    env = vector(count, **kwargs)
    obs = env.reset()
    for time in range(WAYPOINTS):
        step = env.step(decide(obs, time))
        assert step.terminated.all() == (time == WAYPOINTS - 1)
        assert np.isnan(step.measures["above"]).all() == (time < WAYPOINTS - 1)
        obs = step.obs
    return step.reward, step.measures["above"], step.measures["below"]


def luck_of(count, seed=0):
    return np.random.default_rng(seed).random((count, 2))


def test_distance_to_a_segment_by_hand():
    here = np.array([[-1.0, 0.5], [1.0, 1.0], [0.3, 0.4]])
    there = np.array([[1.0, 0.5], [2.0, 3.0], [0.3, 0.4]])
    # past the origin at height .5; its nearest end (1, 1); a point (.3, .4)
    found = distance_to_segment(here, there)
    assert found == pytest.approx([0.5, np.sqrt(2), 0.5])


def test_demonstrations_always_succeed_on_both_sides():
    luck = luck_of(200)
    reward, above, below = played(lambda obs, time: demonstrate(obs, luck))
    assert reward.tolist() == [1.0] * 200
    assert (above + below).tolist() == [1.0] * 200
    assert 0.4 < above.mean() < 0.6
    assert (above == (luck[:, 0] >= 0.5)).all()


def test_the_mean_of_the_demonstrations_never_succeeds():
    def mean(obs, time):
        return np.mean([demonstrate(obs, luck_of(len(obs), seed)) for seed in range(300)], 0)

    assert played(mean)[0].sum() == 0.0


def test_a_policy_that_forgets_its_side_never_succeeds():
    assert played(lambda obs, time: demonstrate(obs, luck_of(len(obs), time)))[0].mean() < 0.05


@pytest.mark.parametrize("where", ["through the disc", "a leap", "not to the goal"])
def test_one_bad_waypoint_is_a_failure(where):
    luck = luck_of(50)

    def decide(obs, time):
        action = demonstrate(obs, luck)
        if where == "through the disc" and time == 7:
            action[:, 1] *= 0.35 / 0.7
        if where == "a leap" and time == 3:
            action[:, 1] *= 1.6
        if where == "not to the goal" and time == WAYPOINTS - 1:
            action[:, 1] += 0.11 / REACH
        return action

    reward, above, below = played(decide, 50)
    assert reward.sum() == above.sum() == below.sum() == 0.0


def test_a_way_of_the_longest_length_is_no_leap():
    world = TwoArcs()
    state = {"start": np.zeros(2), "position": np.array([[-1.0, 0.0]] * 2), "middle": np.zeros(2)}
    state |= {"good": np.array([True, True]), "time": np.zeros(2, np.int64)}
    action = np.array([[-1.0, LONGEST - 1e-6], [-1.0, LONGEST + 1e-6]]) / REACH
    assert world.move(state, action, np.empty((2, 0)))[0]["good"].tolist() == [True, False]


def test_the_position_is_seen_on_request():
    env = vector(2, sees_position=True)
    obs = env.reset()
    assert obs.shape == (2, 4)
    assert obs[:, 2].tolist() == [-1.0, -1.0]
    step = env.step(np.full((2, 2), 0.4, np.float32))
    assert step.obs[:, 2:] == pytest.approx(np.full((2, 2), 0.5))


def test_actions_beyond_the_bounds_are_clipped_alike_in_both_kinds_of_vector():
    many, each = vector(3), vector(3, kind="sync")
    action = np.array([[-3.0, 0.1], [0.2, 9.0], [-1.0, 0.1]], np.float32)
    for env in (many, each):
        env.reset()
    assert np.array_equal(many.step(action).next_obs, each.step(action).next_obs)
    assert (many._state["position"][:2] <= REACH).all()
    assert many._state["position"][0].tolist() == [-REACH, pytest.approx(0.125)]


def test_outcomes_are_the_same_in_both_kinds_of_vector():
    luck = luck_of(4)
    luck[0] = 0.9, 0.5
    luck[1] = 0.1, 0.5
    found = []
    for kind in ("auto", "sync"):
        env = vector(4, kind=kind)
        obs = env.reset()
        for _ in range(WAYPOINTS):
            step = env.step(demonstrate(obs, luck))
            obs = step.obs
        found.append((step.measures["above"].tolist(), step.measures["below"].tolist()))
    assert found[0] == found[1]
    assert found[0][0][:2] == [1.0, 0.0]


@pytest.mark.parametrize(("height", "good"), [(0.375, False), (0.41, True)])
def test_a_line_between_two_waypoints_must_be_clear(height, good):
    """Both ends of the lower one are .403 from the middle, its own middle is .375 away."""
    world = TwoArcs()
    here, there = np.array([[-0.149, height]]), np.array([[0.149, height]])
    assert (np.linalg.norm(np.concatenate([here, there]), axis=1) > 0.4).all()
    state = {"start": np.zeros(1), "position": here, "middle": np.zeros(1)}
    state |= {"good": np.array([True]), "time": np.array([7])}
    moved, _, _ = world.move(state, there / REACH, np.empty((1, 0)))
    assert moved["good"].tolist() == [good]
    assert moved["middle"][0] == pytest.approx(height)
