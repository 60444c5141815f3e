"""Bandit agents: every rule by hand, and the 10-armed testbed as a whole."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rl_lab.algorithms.bandits import (
    UCB,
    EpsilonGreedy,
    GradientBandit,
    Thompson,
    any_best,
    entropy,
    greedy_probabilities,
    posterior,
    posterior_unknown_noise,
    preference_step,
    softmax,
    upper_bound,
)
from rl_lab.core.batch import ACTION, OBS, REWARD
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import WorkflowContext
from rl_lab.core.seeding import Streams
from rl_lab.core.spec import Discrete, EnvSpec
from rl_lab.core.state import join, split
from rl_lab.envs.bandit import BanditVector
from tiny_runs import tiny_run

PHASE = {"name": "train", "step": 0}


def agents(kind, *, num_envs=1, contexts=1, arms=2, seed=0, **options):
    made = kind(kind.Config(**options))
    context = WorkflowContext(
        config=None,
        spec=EnvSpec("bandit", Discrete(contexts), Discrete(arms)),
        device="cpu",
        train_environment=SimpleNamespace(num_envs=num_envs),
        collector=None,
        components={},
        buffers={},
        optimizers={},
        rng=Streams(seed),
        initial_observation=None,
    )
    made.initialize(context)
    return made


def pulls(*rows, context=None):
    """Arms and rewards [T, N] of each pull: (arm, reward) for one agent."""
    arm, reward = (torch.tensor(np.array(each, np.float32)) for each in zip(*rows, strict=True))
    arm = arm.reshape(len(rows), -1).long()
    shown = torch.zeros_like(arm) if context is None else torch.tensor(context).reshape(arm.shape)
    return {OBS: shown, ACTION: arm, REWARD: reward.reshape(arm.shape)}


# ------------------------------------------------------------------------- by hand


def test_estimates_average_or_take_constant_steps():
    averaging = agents(EpsilonGreedy, initial_value=5.0)
    averaging.update(pulls((0, 1.0), (0, 2.0), (0, 6.0)), phase=PHASE)
    assert averaging.rule.values.tolist() == [[[3.0, 5.0]]]  # the first reward replaces the 5
    stepping = agents(EpsilonGreedy, initial_value=5.0, step_size=0.5)
    stepping.update(pulls((0, 1.0), (0, 2.0)), phase=PHASE)
    assert stepping.rule.values.tolist() == [[[2.5, 5.0]]]  # 5 -> 3 -> 2.5


def test_upper_bounds_by_hand():
    values, counts = np.array([[0.5, 1.0, 9.0]]), np.array([[4, 1, 0]])
    # t = 6: .5 + 2 sqrt(ln 6 / 4) and 1 + 2 sqrt(ln 6); never tried: first of all
    found = upper_bound(values, counts, 2.0)[0]
    assert found[:2] == pytest.approx([0.5 + np.sqrt(np.log(6)), 1 + 2 * np.sqrt(np.log(6))])
    assert found[2] == np.inf


def test_every_arm_is_tried_once_before_ucb_believes_anything():
    workflow, tried = agents(UCB, num_envs=50, arms=4), []
    for _ in range(4):
        chosen = workflow.act(torch.zeros(50, dtype=torch.int64), None, deterministic=False).action
        tried.append(chosen)
        batch = {OBS: np.zeros((1, 50), np.int64), ACTION: chosen[None], REWARD: chosen[None] * 1.0}
        workflow.update({k: torch.from_numpy(v) for k, v in batch.items()}, phase=PHASE)
    assert (np.sort(tried, axis=0) == np.arange(4)[:, None]).all()
    assert len({tuple(row) for row in np.array(tried).T}) > 5  # in any order


def test_preferences_by_hand():
    assert softmax(np.array([[0.0, np.log(3.0)], [1e5, 0.0]])).tolist() == [
        pytest.approx([0.25, 0.75]),
        [1.0, 0.0],
    ]
    # probabilities .5 each, reward 2 above the baseline, step .1: +.1 * 2 * .5 and - as much
    moved = preference_step(np.zeros((1, 2)), np.array([1]), np.array([2.0]), 0.1)
    assert moved[0] == pytest.approx([-0.1, 0.1])


def test_the_baseline_is_the_average_before_the_reward():
    workflow = agents(GradientBandit, step_size=0.1)
    workflow.update(pulls((0, 3.0)), phase=PHASE)
    assert workflow.rule.values.tolist() == [[[0.0, 0.0]]]  # the first reward is its own baseline
    workflow.update(pulls((0, 5.0)), phase=PHASE)
    assert workflow.rule.values[0, 0] == pytest.approx([0.1, -0.1])  # .1 * (5 - 3) * .5
    assert workflow.rule.average_reward.tolist() == [[4.0]]
    without = agents(GradientBandit, step_size=0.1, baseline=False)
    without.update(pulls((0, 3.0)), phase=PHASE)
    assert without.rule.values[0, 0] == pytest.approx([0.15, -0.15])  # .1 * 3 * .5


def test_chances_are_followed():
    workflow = agents(GradientBandit, num_envs=4000, arms=3)
    workflow.rule.values[:] = np.log([0.2, 0.5, 0.3])
    chosen = workflow.act(torch.zeros(4000, dtype=torch.int64), None, deterministic=False).action
    assert np.bincount(chosen) == pytest.approx([800, 2000, 1200], abs=150)


def test_chances_and_entropies_by_hand():
    values = np.array([[0.0, 1.0, 0.5], [2.0, 2.0, 0.0]])
    # The best one, or the two best in equal shares; a third of epsilon for each.
    probabilities = greedy_probabilities(values, 0.3)
    assert probabilities == pytest.approx(np.array([[0.1, 0.8, 0.1], [0.45, 0.45, 0.1]]))
    expected = -0.2 * np.log(0.1) - 0.8 * np.log(0.8)
    assert entropy(probabilities)[0] == pytest.approx(expected)
    assert entropy(np.array([[0.0, 1.0], [0.5, 0.5]])).tolist() == [0.0, np.log(2)]


@pytest.mark.parametrize(
    ("kind", "options", "probabilities"),
    [
        (EpsilonGreedy, {"epsilon": 0.2}, [0.9, 0.1]),
        (GradientBandit, {"baseline": False, "step_size": 2.0}, [np.e**4, 1.0]),  # values 2 and -2
        (UCB, {}, None),
        (Thompson, {"prior_std": 1e9}, None),
    ],
)
def test_agents_tell_how_random_they_are_and_how_estimates_differ(kind, options, probabilities):
    agent = agents(kind, contexts=2, **options)
    agent.rule.values[:, 1] = [7.0, 0.0]  # a context that is not met
    told = agent.update(pulls((0, 2.0)), phase=PHASE)
    assert told["q_spread"] == pytest.approx(4.0 if kind is GradientBandit else 2.0)
    assert told["choice_entropy"] == 0  # one arm only; then both, one and three times
    told = agent.update(pulls((0, 2.0), (0, 2.0), (1, 0.0)), phase=PHASE)
    assert told["choice_entropy"] == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))
    assert ("entropy" in told) == (probabilities is not None)
    fresh = agents(kind, **options)
    told = fresh.update(pulls((0, 2.0)), phase=PHASE)
    if probabilities is not None:
        share = np.array(probabilities) / sum(probabilities)
        assert told["entropy"] == pytest.approx(-(share * np.log(share)).sum())


def test_posteriors_by_hand():
    now = Thompson.Config(prior_mean=1.0, prior_std=2.0, noise_std=1.0)
    # precisions: prior 1/4, three rewards 3; mean (1/4 * 1 + 3 * 5) / 3.25
    mean, deviation = posterior(np.array(5.0), np.array(3), now)
    assert (mean, deviation) == (pytest.approx(15.25 / 3.25), pytest.approx(3.25**-0.5))
    # unknown noise, rewards 4 and 6 (mean 5, squares 2), prior at 1 worth 1/4 of a reward:
    #   weight 2.25, centre 10.25 / 2.25, shape 1 + 1, scale 1 + (2 + .25 * 2 * 16 / 2.25) / 2
    known = posterior_unknown_noise(np.array(5.0), np.array(2), np.array(2.0), now)
    assert known == pytest.approx((10.25 / 2.25, 2.25, 2.0, 2.0 + 4 / 2.25))


def test_thompson_keeps_what_its_posteriors_need():
    workflow = agents(Thompson, noise_std=None)
    workflow.update(pulls((1, 4.0), (1, 6.0), (1, 11.0)), phase=PHASE)
    # mean 7; squares 9 + 1 + 16; posterior mean 3 * 7 / 4 with a prior of 0 that counts once
    assert workflow.rule.averages.tolist() == [[[0.0, 7.0]]]
    assert workflow.rule.squares[0, 0] == pytest.approx([0.0, 26.0])
    assert workflow.rule.values[0, 0] == pytest.approx([0.0, 5.25])


def test_thompson_draws_from_the_posterior():
    workflow = agents(Thompson, num_envs=4000, prior_std=1.0)
    workflow.rule.counts[..., 1], workflow.rule.averages[..., 1] = 3, 1.0
    chosen = workflow.act(torch.zeros(4000, dtype=torch.int64), None, deterministic=False).action
    # N(0, 1) against N(.75, 1/4): the second is higher with chance Phi(.75 / sqrt(1.25)) = .749
    assert chosen.mean() == pytest.approx(0.749, abs=0.03)


def test_beta_posteriors():
    workflow = agents(Thompson, model="beta")
    assert workflow.rule.values.tolist() == [[[0.5, 0.5]]]
    workflow.update(pulls((0, 1.0), (0, 0.0), (0, 1.0)), phase=PHASE)
    assert workflow.rule.values[0, 0] == pytest.approx([3 / 5, 0.5])  # (1 + 2) / (2 + 3)
    with pytest.raises(UserError, match="rewards of 0 and 1 only"):
        workflow.update(pulls((0, 0.5)), phase=PHASE)


def test_ties_are_broken_at_random():
    chosen = any_best(np.tile([1.0, 2.0, 2.0], (3000, 1)), np.random.default_rng(0))
    assert np.bincount(chosen, minlength=3) == pytest.approx([0, 1500, 1500], abs=150)


@pytest.mark.parametrize("kind", [EpsilonGreedy, UCB, GradientBandit, Thompson])
def test_environments_and_contexts_are_learnt_apart(kind):
    workflow = agents(kind, num_envs=2, contexts=2)
    before = workflow.rule.values.copy()
    rows = [([0, 1], [1.0, 1.0]), ([1, 1], [5.0, 5.0])]
    workflow.update(pulls(*rows, context=[[1, 0], [1, 0]]), phase=PHASE)
    assert workflow.rule.counts.tolist() == [[[0, 0], [1, 1]], [[0, 2], [0, 0]]]
    moved = (workflow.rule.values != before).any(axis=-1)
    assert moved.tolist() == [[False, True], [True, False]]
    # rows beyond the second are answered by the agents in turn
    shown = torch.tensor([1, 0, 1, 0])
    decided = workflow.act(shown, None, deterministic=True).action
    assert decided.tolist() == [1, 1, 1, 1]


# ---------------------------------------------------------------------- the testbed


def play(workflow, bandits, steps):
    """Rewards and best choices [T], means over all bandits."""
    obs, rewards, right, regret = bandits.reset(), [], [], []
    for _ in range(steps):
        arm = workflow.act(torch.from_numpy(obs), None, deterministic=False).action
        step = bandits.step(arm)
        batch = {OBS: obs[None], ACTION: arm[None], REWARD: step.reward[None]}
        workflow.update({key: torch.from_numpy(value) for key, value in batch.items()}, phase=PHASE)
        rewards.append(step.reward.mean())
        right.append(step.measures["optimal"].mean())
        regret.append(step.measures["regret"].mean())
        obs = step.obs
    return np.array(rewards), np.array(right), np.array(regret)


TESTBED = [  # mean reward and share of best choices over the last 100 of 1000 pulls
    (EpsilonGreedy, {"epsilon": 0.0}, 1.06, 0.37),
    (EpsilonGreedy, {"epsilon": 0.01}, 1.30, 0.59),
    (EpsilonGreedy, {"epsilon": 0.1}, 1.36, 0.79),
    (UCB, {"c": 2.0}, 1.49, 0.85),
    (GradientBandit, {"step_size": 0.1}, 1.50, 0.84),
    (Thompson, {}, 1.57, 0.92),
]


@pytest.mark.parametrize(("kind", "options", "reward", "share"), TESTBED)
def test_the_ten_armed_testbed(kind, options, reward, share):
    workflow = agents(kind, num_envs=1000, arms=10, **options)
    rewards, right, _ = play(workflow, BanditVector(list(range(1000))), 1000)
    assert rewards[-100:].mean() == pytest.approx(reward, abs=0.05)
    assert right[-100:].mean() == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    ("kind", "options"), [(UCB, {"c": 1.0}), (Thompson, {"model": "beta"})], ids=["ucb", "beta"]
)
def test_the_regret_of_chances_grows_slower_and_slower(kind, options):
    bandits = BanditVector(list(range(50)), arms=5, rewards="bernoulli", episode_length=5000)
    _, _, regret = play(agents(kind, num_envs=50, arms=5, **options), bandits, 5000)
    assert regret[:5000].sum() < 4 * regret[:500].sum()  # in proportion it would be 10


def test_constant_steps_follow_bandits_that_drift():
    share = {}
    for step_size in (None, 0.1):
        bandits = BanditVector(list(range(300)), means=[0.0] * 10, drift=0.03)
        workflow = agents(EpsilonGreedy, num_envs=300, arms=10, step_size=step_size)
        share[step_size] = play(workflow, bandits, 2000)[1][-200:].mean()
    assert share[0.1] > share[None] + 0.1


def test_contexts_are_told_apart():
    bandits = BanditVector(list(range(100)), means=[[0, 1, 2], [2, 1, 0]], stds=0.5)
    workflow = agents(Thompson, num_envs=100, contexts=2, arms=3)
    assert play(workflow, bandits, 300)[1][-50:].mean() > 0.95


# ------------------------------------------------------------------------- as a run


@pytest.mark.parametrize("name", ["epsilon_greedy", "ucb", "gradient_bandit", "thompson"])
def test_a_run_reports_regret(tmp_path, name):
    outcome = tiny_run(
        tmp_path,
        f"Bandit-v0:{name}",
        "environment.kwargs={means: [0, 5], stds: 0.1}",
        "environment.num_envs=8",
        "training.total_timesteps=800",
    )
    test = outcome.summary["test"]["last"]
    assert (test["regret"], test["optimal"]) == (0.0, 1.0)
    row = outcome.run.metrics_file.read_text().splitlines()[-1]
    assert '"collect/regret": ' in row and '"collect/optimal": ' in row


def test_schedules_count_the_steps_of_the_run_also_after_a_resume():
    workflow = agents(EpsilonGreedy, epsilon=0.5)
    workflow.step = 123
    other = agents(EpsilonGreedy, epsilon=0.5)
    other.set_state(join(*split(workflow.get_state())))
    assert other.step == 123


def test_what_is_no_bandit_is_refused(tiny):
    with pytest.raises(UserError, match="needs Discrete observations"):
        tiny("CartPole-v1:ucb")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (EpsilonGreedy, {"epsilon": 2.0}, r"epsilon must be in \[0, 1\], got 2"),
        (EpsilonGreedy, {"step_size": -1.0}, r"step_size must be in \[0, 1\], got -1"),
        (Thompson, {"rollout_steps": 0}, "rollout_steps must be at least 1, got 0"),
        (UCB, {"c": -1.0}, "c must be at least 0, got -1"),
        (GradientBandit, {"step_size": -0.5}, "step_size must be at least 0, got -0.5"),
        (Thompson, {"prior_std": 0.0}, "prior_std must be positive, got 0"),
        (Thompson, {"noise_std": -1.0}, "noise_std must be positive, got -1"),
    ],
)
def test_bad_values_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind.Config(**options)
