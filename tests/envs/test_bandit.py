"""Bandit-v0: what it pays, what it tells the log, and that it goes on exactly where it stood."""

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.collect.collector import RolloutCollector
from rl_lab.collect.episodes import WINDOW, MeasureTracker
from rl_lab.collect.evaluate import evaluate
from rl_lab.core.batch import Action
from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.state import fingerprint, join, split
from rl_lab.envs.bandit import BanditVector
from rl_lab.envs.check import check_env
from rl_lab.envs.make import make_vector, resolve_vectorization, single_spaces
from rl_lab.envs.vector import SyncVector

MEANS = [1.0, 4.0, 2.0]


def vector(kind="native", count=2, seeds=None, **kwargs):
    seeds = list(range(count)) if seeds is None else seeds
    config = EnvironmentConfig(
        id="Bandit-v0", num_envs=len(seeds), vectorization=kind, kwargs=kwargs
    )
    made = make_vector(config, seeds)
    assert type(made) is (BanditVector if kind == "native" else SyncVector)
    return made


both_kinds = pytest.mark.parametrize("kind", ["native", "sync"])


@both_kinds
def test_rewards_and_regret_by_hand(kind):
    bandits = vector(kind, means=MEANS, stds=0.0)
    assert bandits.reset().tolist() == [0, 0]
    step = bandits.step(np.array([0, 1]))
    assert step.reward.tolist() == [1.0, 4.0]
    assert step.measures["reward"].tolist() == [1.0, 4.0]
    assert step.measures["regret"].tolist() == [3.0, 0.0]
    assert step.measures["optimal"].tolist() == [0.0, 1.0]
    assert not step.terminated.any() and not step.truncated.any()


@both_kinds
def test_noise_has_the_deviation_of_its_arm(kind):
    bandits = vector(kind, means=[0.0, 10.0], stds=[1.0, 3.0], episode_length=10_000)
    bandits.reset()
    for arm, mean, deviation in ((0, 0.0, 1.0), (1, 10.0, 3.0)):
        rewards = np.array([bandits.step(np.full(2, arm)).reward for _ in range(1500)])
        assert rewards.mean() == pytest.approx(mean, abs=0.2)
        assert rewards.std() == pytest.approx(deviation, rel=0.06)


@both_kinds
def test_seeds_draw_the_bandits_and_episodes_keep_them(kind):
    def regrets(made, *, seeds=None):
        made.reset(seeds)
        return np.array([made.step(np.full(3, arm)).measures["regret"] for arm in range(10)])

    bandits = vector(kind, 3)
    first = regrets(bandits)
    assert np.array_equal(regrets(bandits), first)  # another episode
    assert np.array_equal(regrets(vector(kind, 3)), first)
    assert not np.array_equal(regrets(bandits, seeds=[7, 8, 9]), first)
    assert len(np.unique(first[first > 0])) == 27  # three bandits, none like another
    assert not np.array_equal(regrets(vector(kind, 3, redraw=True)), first)
    changing = vector(kind, 3, redraw=True)
    assert not np.array_equal(regrets(changing), regrets(changing))


def test_drawn_means_are_standard_normal():
    bandits = vector(count=2000)
    bandits.reset()
    assert bandits.arms.means.mean() == pytest.approx(0.0, abs=0.03)
    assert bandits.arms.means.std() == pytest.approx(1.0, abs=0.03)
    # the best of ten standard normal numbers is 1.539 on average
    assert bandits.arms.means.max(axis=-1).mean() == pytest.approx(1.539, abs=0.05)


@both_kinds
def test_an_episode_is_so_many_pulls_and_then_terminates(kind):
    bandits = vector(kind, means=MEANS, episode_length=3)
    bandits.reset()
    ends = [bandits.step(np.zeros(2, np.int64)) for _ in range(7)]
    assert [step.terminated.all() for step in ends] == [False, False, True] * 2 + [False]
    assert not any(step.truncated.any() for step in ends)


@both_kinds
def test_a_time_limit_truncates(kind):
    config = EnvironmentConfig(
        id="Bandit-v0",
        num_envs=1,
        vectorization=kind,
        max_episode_steps=2,
        kwargs={"means": MEANS, "episode_length": 3},
    )
    bandits = make_vector(config, [0])
    bandits.reset()
    steps = [bandits.step(np.array([0])) for _ in range(4)]
    assert [step.truncated[0] for step in steps] == [False, True, False, True]
    assert not any(step.terminated[0] for step in steps)


@both_kinds
def test_contexts_are_shown_and_have_arms_of_their_own(kind):
    bandits = vector(kind, 4, means=[[0, 1, 2], [5, 3, 4]], stds=0.0)
    shown, seen = bandits.reset(), []
    for _ in range(200):
        step = bandits.step(np.zeros(4, np.int64))
        assert step.reward.tolist() == [[0.0, 5.0][context] for context in shown]
        assert step.measures["regret"].tolist() == [[2.0, 0.0][context] for context in shown]
        shown = step.obs
        seen += shown.tolist()
    assert np.mean(seen) == pytest.approx(0.5, abs=0.08)
    assert bandits.spec.observation.n == 2 and bandits.spec.action.n == 3


def test_drifting_means_walk():
    bandits = vector(count=500, means=[0.0, 0.0], stds=0.0, drift=0.1, episode_length=50)
    bandits.reset()
    for _ in range(100):  # over the end of an episode
        bandits.step(np.zeros(500, np.int64))
    assert bandits.arms.means.std() == pytest.approx(1.0, rel=0.1)  # .1 * sqrt(100)


@both_kinds
def test_chances_pay_one_or_nothing(kind):
    bandits = vector(kind, means=[0.2, 0.7], rewards="bernoulli", drift=0.0)
    bandits.reset()
    rewards = np.array([bandits.step(np.array([0, 1])).reward for _ in range(900)])
    assert set(rewards.ravel()) == {0.0, 1.0}
    assert rewards.mean(axis=0) == pytest.approx([0.2, 0.7], abs=0.06)


# ---------------------------------------------------------------------- exact resume


@both_kinds
def test_a_saved_bandit_goes_on_exactly(kind):
    options = {"contexts": 3, "drift": 0.1, "episode_length": 7, "redraw": True}
    first = vector(kind, 3, **options)
    first.reset()
    actions = np.random.default_rng(0).integers(10, size=(40, 3))
    for action in actions[:20]:
        first.step(action)
    saved = join(*split(first.state_dict()))
    second = vector(kind, seeds=[7, 8, 9], **options)
    second.load_state_dict(saved)
    for action in actions[20:]:
        ours, theirs = first.step(action), second.step(action)
        for name in ("obs", "reward", "terminated", "next_obs"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name))
        assert fingerprint(ours.measures) == fingerprint(theirs.measures)
    with pytest.raises(UserError, match="cannot fill"):
        vector(kind, 2, **options).load_state_dict(saved)


@both_kinds
def test_a_second_process_proves_it(kind):
    settings = {"vectorization": kind, "kwargs": {"episode_length": 60, "drift": 0.1}}
    report = check_env("Bandit-v0", steps=20, settings=settings)
    assert (report.level, report.reason) == ("E0", None)


# -------------------------------------------------------------------- making, refusing


def test_auto_is_the_vector_unless_there_are_wrappers():
    def chosen(**settings):
        return resolve_vectorization(EnvironmentConfig(id="Bandit-v0", **settings))

    assert chosen() == chosen(kwargs={"arms": 3}) == "native"
    assert chosen(wrappers=[{"id": "OneHotObservation"}]) == "sync"
    spaces = single_spaces(EnvironmentConfig(id="Bandit-v0", kwargs={"arms": 3, "contexts": 2}))
    assert spaces == (gym.spaces.Discrete(2), gym.spaces.Discrete(3))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"arms": 1}, "arms must be a whole number from 2 on, got 1"),
        ({"episode_length": 0}, "episode_length must be a whole number from 1 on"),
        ({"means": "high"}, "means must be numbers"),
        ({"means": [0.0, float("nan")]}, "means must be finite"),
        ({"means": [0.0, 1.0], "stds": [1.0, 1.0, 1.0]}, "stds must be 2 numbers, or 1 lists of 2"),
        ({"means": [0.0, 1.0], "stds": [1.0, -1.0]}, "must not be negative"),
        ({"rewards": "gamma"}, "rewards must be normal or bernoulli"),
        ({"rewards": "bernoulli", "means": [0.5, 1.5]}, r"probabilities within \[0, 1\]"),
        ({"arm": 3}, r"environment\.kwargs\.arm \(did you mean 'arms'\?\)"),
        ({"x": 3}, r"environment\.kwargs\.x \(known: arms, contexts, drift, episode_length"),
    ],
)
@both_kinds
def test_bad_arguments_are_one_line(kind, kwargs, message):
    with pytest.raises(UserError, match=message):
        vector(kind, **kwargs)


@both_kinds
def test_an_arm_that_does_not_exist_is_refused(kind):
    bandits = vector(kind, means=MEANS)
    bandits.reset()
    with pytest.raises(ValueError, match="actions of 'Bandit-v0' are"):
        bandits.step(np.array([0, 3]))


# --------------------------------------------------------------------------- measures


def always(arm):
    return lambda obs, state, *, deterministic: Action(np.full(len(obs), arm))


@both_kinds
def test_measures_reach_the_metrics_and_never_the_trajectory(kind):
    collector = RolloutCollector(vector(kind, means=MEANS, stds=0.0))
    result = collector.collect(always(0), steps=3)
    assert result.metrics["collect/regret"] == 3.0
    assert result.metrics["collect/regret_total"] == 9.0
    assert result.metrics["collect/optimal"] == 0.0
    assert not {"regret", "optimal"} & set(result.trajectory)
    more = collector.collect(always(1), steps=1).metrics
    assert more["collect/regret"] == 9.0 / 4
    other = RolloutCollector(vector(kind, means=MEANS, stds=0.0))
    other.load_state_dict(join(*split(collector.state_dict())))
    assert other.collect(always(0), steps=1).metrics["collect/regret_total"] == 12.0


def test_measures_of_an_evaluation_count_its_episodes_only():
    # Environment 0 plays two episodes, environment 1 one: then it is not looked at any more.
    bandits = vector(means=[[0.0, 1.0], [0.0, 5.0]], stds=0.0, episode_length=2)
    seen = []

    def act(obs, state, *, deterministic):
        seen.append(obs.tolist())
        return Action(np.zeros(2, np.int64))

    found = evaluate(act, bandits, seeds=[1, 2], episodes=3, deterministic=True)
    counted = [row[0] for row in seen] + [row[1] for row in seen[:2]]
    assert len(counted) == 6
    assert found.summary()["regret"] == pytest.approx(np.mean([[1, 5][each] for each in counted]))
    assert found.to_tree()["lengths"] == [2, 2, 2]


def test_measures_have_a_window_and_a_sum():
    tracker = MeasureTracker(2)
    assert tracker.metrics() == {}
    for value in range(WINDOW + 50):
        tracker.add({"regret": np.array([value, 0.0])})
    # the last 100 values are 50 … 149, mean 99.5, halved by the other environment
    assert tracker.metrics()["regret"] == 49.75
    assert tracker.metrics()["regret_total"] == sum(range(150)) / 2
