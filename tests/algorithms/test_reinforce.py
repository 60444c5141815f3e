import math
from collections import Counter

import numpy as np
import pytest
import torch

from rl_lab.algorithms.reinforce import (
    RETURN,
    TARGET,
    ReinforceConfig,
    episode_return,
    normalize,
    policy_gradient,
    reward_to_go,
    whole_episodes,
)
from rl_lab.core import registry
from rl_lab.core.batch import (
    ACTION,
    LOG_PROB,
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
)
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.schedule import Schedule
from rl_lab.core.state import fingerprint, join, split

BORDERS = (RESET, TERMINATED, TRUNCATED)
PHASE = {"name": "train", "type": "online", "step": 0, "progress": 0.0}
CARTPOLE = ["CartPole-v1:reinforce_defaults", "algorithm.rollout_steps=16"]


def counter(tiny, lengths, *overrides, batch=1, rollout=4, envs=1, ends="terminated"):
    """REINFORCE on episodes of these lengths: step t pays t, and shows [episode, t - 1]."""
    return tiny(
        "rl_lab/Counter-v0:reinforce_defaults",
        f"environment.kwargs={{lengths: {lengths}, ends: {ends}}}",
        f"environment.num_envs={envs}",
        f"algorithm.batch_steps={batch}",
        f"algorithm.rollout_steps={rollout}",
        "environment.max_episode_steps=null",
        *overrides,
    )


def collect(orchestrator, times=1, start=0):
    """What each of some collect calls gave to learn from; None where it was nothing."""
    steps, given = start, []
    for _ in range(times):
        result = orchestrator.workflow.collect_step(steps, phase=PHASE)
        steps += result.steps
        given.append(result.trajectory)
    return given


def column(*values):
    return torch.tensor(values).unsqueeze(1)


# -- the gradient ---------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", [0.0, 3.0, -7.5])
def test_the_expected_gradient_on_a_bandit_is_the_true_one_whatever_the_baseline(baseline):
    # Two arms with rewards R. J = Σ π(a) R(a), so dJ/dθ_i = π_i (R_i − J), by hand. Enumerating the
    # arms, E[∇ log π(a) (R(a) − b)] must be the same for every constant b.
    reward = torch.tensor([1.0, 4.0])
    logits = torch.tensor([0.3, -0.2], requires_grad=True)
    chance = logits.softmax(0).detach()
    expected = chance * (reward - (chance * reward).sum())
    total = torch.zeros(2)
    for arm in range(2):
        log_prob = logits.log_softmax(0)[arm : arm + 1]
        loss = policy_gradient(log_prob, reward[arm : arm + 1] - baseline)
        total -= chance[arm] * torch.autograd.grad(loss, logits)[0]  # a loss descends
    torch.testing.assert_close(total, expected, atol=1e-6, rtol=0)
    assert expected[1] > 0.1  # the better arm gets likelier


def test_a_target_is_a_number_and_carries_no_gradient():
    log_prob = torch.tensor([0.5], requires_grad=True)
    target = log_prob * 2
    (gradient,) = torch.autograd.grad(policy_gradient(log_prob, target), log_prob)
    assert gradient.item() == -1.0  # −target; with a gradient through the target it would be −2


def test_the_log_prob_is_of_the_action_that_was_sampled(tiny):
    orchestrator = tiny(*CARTPOLE, "algorithm.batch_steps=64")
    batch = next(each for each in collect(orchestrator, 8) if each is not None)
    model = orchestrator.workflow.model
    policy, *_ = model(batch[OBS], model.initial_state(1), batch[RESET])
    torch.testing.assert_close(policy.log_prob(batch[ACTION]), batch[LOG_PROB], atol=1e-5, rtol=0)
    assert (batch[ACTION] != policy.mode()).any()  # they are not the greedy ones


# -- returns --------------------------------------------------------------------------------------

# Two episodes, γ = .5. The first pays 1, 2, 4 and terminates; the second pays 8, 2 and is cut:
#   4; 2 + .5·4 = 4; 1 + .5·4 = 3          2; 8 + .5·2 = 9
# With a baseline of 6 behind the cut: 2 + .5·6 = 5; 8 + .5·5 = 10.5
REWARDS = column(1.0, 2.0, 4.0, 8.0, 2.0)
TERMINAL = column(False, False, True, False, False)
CUT = column(False, False, False, False, True)
FIRST = column(True, False, False, True, False)


def test_reward_to_go_by_hand():
    to_go = reward_to_go(REWARDS, torch.zeros(5, 1), TERMINAL, CUT, 0.5)
    assert to_go.flatten().tolist() == [3.0, 4.0, 4.0, 9.0, 2.0]


def test_only_a_cut_is_continued_by_the_baseline():
    value = torch.full((5, 1), 6.0)
    to_go = reward_to_go(REWARDS, value, TERMINAL, CUT, 0.5)
    assert to_go.flatten().tolist() == [3.0, 4.0, 4.0, 10.5, 5.0]
    both = reward_to_go(REWARDS, value, TERMINAL | CUT, CUT, 0.5)  # both flags: a termination
    assert both.flatten().tolist() == [3.0, 4.0, 4.0, 9.0, 2.0]


def test_the_whole_episodes_return_stands_at_each_of_its_steps():
    to_go = reward_to_go(REWARDS, torch.zeros(5, 1), TERMINAL, CUT, 0.5)
    assert episode_return(to_go, FIRST).flatten().tolist() == [3.0, 3.0, 3.0, 9.0, 9.0]


@pytest.mark.parametrize("kind", ["mc:rtg", "mc:episode"])
def test_another_episodes_rewards_change_no_target(tiny, kind):
    orchestrator = counter(tiny, [3, 2], f"algorithm.returns_type='{kind}'", batch=5, rollout=5)
    batch = collect(orchestrator)[0]
    workflow = orchestrator.workflow
    config = ReinforceConfig(returns_type=kind, normalize_targets="off")
    before = workflow._credit(batch, config)[0][TARGET].flatten()
    batch[REWARD][3:] += 100.0
    after = workflow._credit(batch, config)[0][TARGET].flatten()
    assert torch.equal(before[:3], after[:3])
    assert (after[3:] > before[3:] + 99).all()


def test_targets_are_normalised_over_the_batch_and_not_within_an_episode(tiny):
    orchestrator = counter(tiny, [1, 3], "algorithm.gamma=1.0", batch=4, rollout=4)
    rows, _ = orchestrator.workflow._credit(collect(orchestrator)[0], orchestrator.workflow.config)
    # returns 1 | 6, 5, 3: mean 3.75, deviation sqrt(59 / 16 + …) = 1.9203
    expected = (torch.tensor([1.0, 6.0, 5.0, 3.0]) - 3.75) / 1.920286
    torch.testing.assert_close(rows[TARGET].flatten(), expected, atol=1e-5, rtol=0)
    assert torch.equal(normalize(torch.full((4, 1), 7.0)), torch.zeros(4, 1))


# -- whole episodes -------------------------------------------------------------------------------


def test_whole_and_open_rows_by_hand():
    # a: an episode of 2, then an open one.  b: the end of one that began elsewhere, a whole one.
    # c: given up after two steps (its environment was started anew), then an open one.
    reset = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], dtype=bool)
    ended = np.array([[0, 1, 0], [1, 0, 0], [0, 1, 0]], dtype=bool)
    whole, is_open = whole_episodes(reset, ended)
    assert whole.T.astype(int).tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert is_open.T.astype(int).tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]


def test_every_step_of_every_episode_is_learned_from_once_and_in_order(tiny):
    """Two environments, episodes of 3 and 5 steps, rollouts of 4: nothing fits, nothing is lost."""
    orchestrator = counter(tiny, [3, 5], batch=6, rollout=4, envs=2)
    given = [each for each in collect(orchestrator, 21) if each is not None]
    assert len(given) > 5
    for batch in given:
        ended = (batch[TERMINATED] | batch[TRUNCATED]).flatten()
        assert len(ended) >= 6 and ended[-1]
        # whatever follows an end is a beginning, and nothing else is
        assert torch.equal(batch[RESET].flatten()[1:], ended[:-1]) and batch[RESET][0]
    frames = torch.cat([batch[OBS] for batch in given]).squeeze(1).int().tolist()
    counts = Counter(tuple(frame) for frame in frames)
    assert set(counts.values()) == {2}  # both environments show the same frames
    assert len(frames) + still_waiting(orchestrator.workflow) == 21 * 4 * 2


def still_waiting(workflow):
    """How many rows will still be learned from, now or when their episode has ended."""
    rows = {name: torch.cat([each[name] for each in workflow.waiting]) for name in BORDERS}
    ended = rows[TERMINATED] | rows[TRUNCATED]
    return sum(marked.sum() for marked in whole_episodes(rows[RESET].numpy(), ended.numpy()))


def test_environments_whose_episodes_end_at_other_times(tiny):
    orchestrator = tiny(*CARTPOLE, "algorithm.batch_steps=100")
    given = [each for each in collect(orchestrator, 30) if each is not None]
    frames = torch.cat([batch[OBS] for batch in given]).squeeze(1)
    assert len(given) > 10
    assert len(frames.unique(dim=0)) == len(frames)  # nothing twice
    assert len(frames) + still_waiting(orchestrator.workflow) == 30 * 16 * 4


def test_waiting_for_enough_counts_no_update(tiny):
    orchestrator = counter(tiny, [10], batch=10, rollout=4)
    updates = []
    for _ in range(6):  # collect and update, three times: the tenth step comes with the third
        orchestrator.execute(orchestrator.scheduler.next_action())
        updates.append(orchestrator.counters.updates)
    assert updates == [0, 0, 0, 0, 0, 1]
    assert orchestrator.workflow.waiting[0][REWARD].flatten().tolist() == [1.0, 2.0]


def test_what_waits_is_saved(tiny):
    first, second = (counter(tiny, [5], batch=10, rollout=4) for _ in range(2))
    assert collect(first, 2) == [None, None]
    second.workflow.set_state(join(*split(first.workflow.get_state())))
    second.environment.load_state_dict(first.environment.state_dict())
    second.collector.load_state_dict(first.collector.state_dict())
    second.streams.load_state_dict(first.streams.state_dict())
    ours, theirs = (collect(each, start=8)[0] for each in (first, second))
    assert ours[OBS].squeeze(1).int().tolist() == [[e, t] for e in (0, 1) for t in range(5)]
    assert fingerprint(ours) == fingerprint(theirs)


def test_an_episode_that_another_policy_has_played_in_is_not_learned_from(tiny):
    orchestrator = counter(tiny, [6], batch=6, rollout=4)
    collect(orchestrator)  # 4 of 6 steps are ours
    workflow = orchestrator.workflow  # the other plays to the end, and 2 steps of the next one
    orchestrator.collector.collect(workflow.act, steps=4, state=workflow.initial_state(1))
    (third, fourth) = collect(orchestrator, 2, start=8)
    assert third is None  # steps 3 to 6 of an episode that was begun by the other
    assert fourth is None
    (fifth,) = collect(orchestrator, start=16)
    assert fifth[OBS].squeeze(1)[:, 0].unique().tolist() == [2.0]


def test_a_restart_gives_an_open_episode_up(tiny):
    orchestrator = counter(tiny, [6], batch=6, rollout=4)
    collect(orchestrator)
    orchestrator.collector.restart()
    _, batch = collect(orchestrator, 2, start=4)
    assert batch[OBS].squeeze(1)[:, 1].tolist() == list(range(6))
    assert len(batch[REWARD]) == 6


# -- the baseline ---------------------------------------------------------------------------------

BASELINE = "algorithm.policy_targets=advantages"


@pytest.mark.parametrize("kind", ["mc:rtg", "mc:episode"])
@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_advantages_are_what_the_baseline_did_not_expect(tiny, kind, ends):
    words = [BASELINE, f"algorithm.returns_type='{kind}'", "algorithm.normalize_targets=off"]
    orchestrator = counter(tiny, [2], *words, "algorithm.gamma=0.5", batch=2, rollout=2, ends=ends)
    workflow, batch = orchestrator.workflow, collect(orchestrator)[0]
    rows, _ = workflow._credit(batch, workflow.config)
    with torch.no_grad():
        _, value, _ = workflow.model(batch[OBS], workflow.initial_state(1), None)
        _, beyond, _ = workflow.model(batch[NEXT_OBS], workflow.initial_state(1), None)
    # rewards 1, 2; only a cut that is worth the rewards to come is continued
    future = beyond[1].item() if (ends, kind) == ("truncated", "mc:rtg") else 0.0
    last = 2 + 0.5 * future
    first = 1 + 0.5 * last
    expected = torch.tensor([[first], [last if kind == "mc:rtg" else first]])
    assert beyond[1].abs() > 1e-3
    torch.testing.assert_close(rows[RETURN], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(rows[TARGET], expected - value, atol=1e-6, rtol=0)


def moved(model, before):
    return {
        name.split(".")[0 if name.startswith(("actor", "critic")) else 1]
        for name, weight in model.named_parameters()
        if not torch.equal(weight, before[name])
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"actor"}),
        ([BASELINE], {"actor", "critic"}),
        (["network.shared_torso=true"], {"shared", "actor"}),
        ([BASELINE, "network.shared_torso=true"], {"shared", "actor", "critic"}),
    ],
)
def test_who_learns(tiny, words, expected):
    orchestrator = counter(tiny, [3, 2], *words, batch=5, rollout=5)
    model = orchestrator.workflow.model
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    orchestrator.workflow.update(collect(orchestrator)[0], phase=PHASE)
    assert moved(model, before) == expected


def test_the_baselines_loss_never_reaches_the_policy(tiny):
    """Where the policy's rate has fallen to 0, only the baseline moves; its torso is its own."""
    words = [BASELINE, "algorithm.learning_rate=lin_1e-2"]
    orchestrator = counter(tiny, [3, 2], *words, batch=5, rollout=5)
    workflow = orchestrator.workflow
    before = {name: weight.clone() for name, weight in workflow.model.named_parameters()}
    metrics = workflow.update(collect(orchestrator)[0], phase={**PHASE, "step": 1024})
    assert moved(workflow.model, before) == {"critic"}
    assert workflow.baseline.state.updates == 20 and workflow.learner.state.updates == 1
    assert metrics["value_loss"] < 10.0


# -- the rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", registry.names("memory"))
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
@pytest.mark.parametrize("targets", ["returns", "advantages"])
def test_what_the_learner_sees_is_what_the_actor_saw(tiny, memory, env, targets):
    orchestrator = tiny(
        f"{env}:reinforce_{memory}_defaults",
        f"algorithm.policy_targets={targets}",
        "algorithm.batch_steps=64",
        "algorithm.baseline_steps=2",
        "environment.max_episode_steps=10",
    )
    batch = next(each for each in collect(orchestrator, 8) if each is not None)
    metrics = orchestrator.workflow.update(batch, phase=PHASE)
    assert metrics["staleness"].item() < 1e-5  # nothing was learned yet: all rows are fresh
    assert all(math.isfinite(float(value)) for value in metrics.values())
    names = {"log_std", "log_std_min", "log_std_max"} if env == "Pendulum-v1" else set()
    assert {name for name in metrics if name.startswith("log_std")} == names
    if names:
        assert metrics["log_std"].item() == orchestrator.workflow.model.actor.log_std.item()


@pytest.mark.parametrize(
    ("targets", "scaled", "bad"),
    [
        ("returns", "true", float("nan")),
        ("advantages", "true", float("nan")),
        ("advantages", "false", 1e30),  # the policy's step is fine, the baseline's error is not
    ],
)
def test_a_bad_batch_leaves_everything_as_it_was(tiny, targets, scaled, bad):
    words = [f"algorithm.policy_targets={targets}", f"environment.normalize_reward={scaled}"]
    orchestrator = counter(tiny, [3, 2], *words, batch=5, rollout=5)
    workflow = orchestrator.workflow
    workflow.update(collect(orchestrator)[0], phase=PHASE)
    (batch,) = collect(orchestrator, start=5)
    batch[REWARD][1] = bad
    before = fingerprint(workflow.get_state())
    with pytest.raises(NonFiniteError):
        workflow.update(batch, phase=PHASE)
    assert fingerprint(workflow.get_state()) == before


def test_others_actions_are_refused(tiny):
    orchestrator = counter(tiny, [3])
    batch = collect(orchestrator)[0]
    del batch[LOG_PROB]
    with pytest.raises(UserError, match="its own actions only"):
        orchestrator.workflow.update(batch, phase=PHASE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.5}, "gamma must be in"),
        ({"gamma": Schedule(start=0.9, end=-1.0)}, "gamma must be in"),
        ({"learning_rate": -1e-3}, "learning_rate must be positive"),
        ({"batch_steps": 0}, "batch_steps must be at least 1"),
        ({"baseline_steps": 0}, "baseline_steps must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ReinforceConfig(**settings)
