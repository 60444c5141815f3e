"""TD-MPC2: targets, losses and values by hand, ends of episodes, sizes, accounts, plans."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from rl_lab.algorithms.tdmpc import tdmpc
from rl_lab.algorithms.tdmpc.config import (
    discount,
)
from rl_lab.algorithms.tdmpc.plans import plan_returns
from rl_lab.algorithms.tdmpc.tdmpc import (
    PLAN,
    model_loss,
    policy_loss,
    policy_weights,
    step_weights,
    td_targets,
    value_range,
)
from rl_lab.algorithms.tdmpc.world_model import (
    LatentModel,
)
from rl_lab.core.batch import ACTION_MASK, OBS, PREVIOUS_ACTION, RESET, REWARD, TERMINATED
from rl_lab.core.learner import Learner
from rl_lab.core.spec import Dict, Discrete, EnvSpec
from tiny_tdmpc import (
    PLANNER,
    box,
    networks,
    play,
    small,
    stream,
    tiny_tdmpc,
    weights,
)

NUMBERS = {"bins": 0}  # outputs are the numbers themselves, for arithmetic


def with_values(model: LatentModel, *numbers: float) -> LatentModel:
    """Every Q says its number, whatever it is asked."""
    with torch.no_grad():
        model.values.weights[-1].zero_()
        model.values.biases[-1].copy_(torch.tensor(numbers).view(-1, 1, 1))
    return model


def column(*values) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(1)  # [T, B = 1]


def rows(length: int, batch: int, actions: int = 2) -> dict:
    reset = torch.zeros(length, batch, dtype=torch.bool)
    return {
        OBS: torch.randn(length, batch, 3, generator=stream(1)),
        PREVIOUS_ACTION: torch.rand(length, batch, actions, generator=stream(2)) * 2 - 1,
        REWARD: torch.randn(length, batch, generator=stream(3)),
        RESET: reset,
        TERMINATED: torch.zeros_like(reset),
    }


# -- discount, weights of steps, targets -----------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "largest", "gamma"),
    [(500, 0.995, 0.99), (200, 0.995, 0.975), (1000, 0.995, 0.995), (5000, 0.995, 0.995),
     (1000, 0.99, 0.99), (25, 0.995, 0.95), (1, 0.995, 0.95), (None, 0.995, 0.995)],
)  # fmt: skip
def test_the_discount_follows_the_length_of_episodes(length, largest, gamma):
    assert discount(length, largest) == pytest.approx(gamma)


def test_repeated_actions_make_episodes_shorter(tiny):
    run = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1", "environment.max_episode_steps=200")
    assert run.workflow.gamma == pytest.approx(0.975)
    repeats = "environment.wrappers=[{id: ActionRepeat, times: 4}]"
    run = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1", "environment.max_episode_steps=400", repeats)
    assert run.workflow.gamma == pytest.approx(0.95)  # T is 100: 19/20
    run = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1", gamma=0.9)
    assert run.workflow.gamma == 0.9


def test_steps_count_less_and_less_and_not_at_all_behind_an_end():
    reset = torch.tensor([[True, False], [False, False], [False, True], [False, False]])
    weight = step_weights(reset, torch.tensor(0.5))
    assert weight.T.tolist() == [[1, 0.5, 0.25], [1, 0, 0]]
    batch = {RESET: reset, TERMINATED: torch.zeros(4, 2, dtype=torch.bool)}
    batch[TERMINATED][1, 1] = True
    # The policy learns in every latent before the end: not in the one that terminated.
    latents = policy_weights(batch, torch.tensor(0.5))
    assert latents.T.tolist() == [[1, 0.5, 0.25, 0.125], [1, 0, 0, 0]]


def test_every_step_that_terminated_has_no_future():
    """A window of three steps, the second of which terminated: boot, no boot, masked."""
    model, policy = networks(**NUMBERS)
    with_values(model, 30.0, 10.0, 20.0)
    terminated = column(False, True, False)
    z, noise = torch.randn(3, 1, 8).softmax(-1), torch.randn(3, 1, 2)
    target = partial(td_targets, column(1.0, 2.0, 3.0), terminated, z, model, policy, noise)
    gamma = torch.tensor(0.5)
    # The least of the Qs 0 and 2 is 20: 1 + .5 · 20 = 11, 2, and 3 + .5 · 20 of the next episode.
    assert target(torch.tensor([0, 2]), gamma).flatten().tolist() == [11.0, 2.0, 13.0]
    assert target(torch.tensor([1, 2]), gamma).flatten().tolist() == [6.0, 2.0, 8.0]
    reset = column(False, False, False, True)  # the third step leads into that episode
    weight = step_weights(reset, torch.tensor(0.5))
    assert weight.flatten().tolist() == [1, 0.5, 0]


def test_a_step_that_was_only_truncated_keeps_its_future():
    """The flags of a buffer: `terminated` is False where only the clock ended."""
    model, policy = networks(**NUMBERS)
    with_values(model, 10.0, 10.0, 10.0)
    z, noise = torch.randn(2, 1, 8).softmax(-1), torch.randn(2, 1, 2)
    target = td_targets(
        column(1.0, 2.0), column(False, False), z, model, policy, noise, None, torch.tensor(0.5)
    )
    assert target.flatten().tolist() == [6.0, 7.0]


# -- losses ----------------------------------------------------------------------------------------

SCALE_ONES = {
    name: torch.tensor(each)
    for name, each in {
        "consistency": 20.0, "reward": 0.1, "value": 0.2, "termination": 3.0, "rho": 0.5
    }.items()
}  # fmt: skip


def loss_of(model, policy, batch, target=None, **own):
    length, count = batch[RESET].shape
    draws = {
        "shifts": {},
        "policy": policy.noise((length - 1, count), stream(5)),
        "pair": None,
        "dropout": None,
    }
    target = model if target is None else target
    return model_loss(
        model, batch, target, policy, draws, SCALE_ONES, torch.tensor(0.9),
        **{"target_encoder": False, **own},
    )  # fmt: skip


def test_the_joint_loss_is_the_weighted_sum_of_its_parts():
    model, policy = networks(ends=True)
    batch = rows(4, 2)
    loss, parts, aux = loss_of(model, policy, batch)
    expected = sum(
        SCALE_ONES[name] * parts[name] for name in ("consistency", "reward", "value", "termination")
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    # The same by hand: roll the model out, and weigh each step by 1, .5 and .25.
    z = model.encoder(batch[OBS][0])
    consistency = reward = 0.0
    for t in range(3):
        raw = model.reward(torch.cat([z, batch[PREVIOUS_ACTION][t + 1]], -1))
        reward += 0.5**t * model.error(raw, batch[REWARD][t + 1]).mean() / 3
        z = model.step(z, batch[PREVIOUS_ACTION][t + 1])[0]
        seen = model.encoder(batch[OBS][t + 1])
        consistency += 0.5**t * (z - seen).square().mean() / 3
        assert torch.allclose(aux["latents"][t + 1], z)
    assert parts["consistency"].item() == pytest.approx(consistency.item(), rel=1e-5)
    assert parts["reward"].item() == pytest.approx(reward.item(), rel=1e-5)
    # All outputs begin as zeros: the cross-entropy of 11 equal bins is ln 11.
    assert parts["value"].item() == pytest.approx(math.log(11) * (1 + 0.5 + 0.25) / 3, rel=1e-5)


def test_the_latents_to_predict_have_no_gradient():
    model, policy = networks()
    batch = rows(2, 3)
    loss, _, _ = loss_of(model, policy, batch)
    (ours,) = torch.autograd.grad(loss, model.encoder.layers[0].linear.weight)
    z = model.encoder(batch[OBS][0])
    with torch.no_grad():
        wanted = model.encoder(batch[OBS][1])
    by_hand = 20 * (model.step(z, batch[PREVIOUS_ACTION][1])[0] - wanted).square().mean()
    (expected,) = torch.autograd.grad(by_hand, model.encoder.layers[0].linear.weight)
    assert torch.allclose(ours, expected, atol=1e-7)  # reward and value begin without a gradient


def test_the_first_version_predicts_latents_of_the_target_network():
    model, policy = networks()
    other, _ = networks()
    with torch.no_grad():
        for each in other.encoder.parameters():
            each.add_(0.3)
    plain, averaged = (
        loss_of(model, policy, rows(3, 2), other, target_encoder=each)[1] for each in (False, True)
    )
    assert plain["consistency"] != averaged["consistency"]


def test_nothing_behind_an_end_changes_what_is_learned():
    model, policy = networks(ends=True)
    with torch.no_grad():
        model.reward[-1].weight.normal_(generator=stream())
        model.values.weights[-1].normal_(generator=stream())
    batch = rows(5, 2)
    batch[TERMINATED][2, 0] = True
    batch[RESET][3, 0] = True
    batch[RESET][2, 1] = True  # row 1 was truncated
    changed = {name: each.clone() for name, each in batch.items()}
    changed[OBS][3:, 0], changed[OBS][2:, 1] = 9.0, 9.0
    changed[REWARD][3:, 0], changed[REWARD][2:, 1] = 9.0, 9.0
    changed[PREVIOUS_ACTION][3:, 0], changed[PREVIOUS_ACTION][2:, 1] = 0.9, 0.9
    changed[TERMINATED][4] = True
    found = []
    for each in (batch, changed):
        loss, parts, aux = loss_of(model, policy, each)
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        found.append((loss, gradient, parts))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6)
    assert all(map(partial(torch.allclose, atol=1e-6), found[0][1], found[1][1]))
    assert torch.allclose(found[0][2]["target_value"], found[1][2]["target_value"])
    del aux


# -- the policy ------------------------------------------------------------------------------------


def test_scaled_entropy_by_hand():
    # Without weights the mean is 0 and log std -10 + .5 · 12 · (tanh(0) + 1) = -4. The noise 1, -1
    # has the log-density 2 · (-.5 · (1 + ln 2π) + 4) = 5.162123; times -2 actions: -10.324246.
    _, policy = networks()
    with torch.no_grad():
        for each in policy.parameters():
            each.zero_()
    action, entropy = policy.explain(torch.zeros(1, 8), torch.tensor([[1.0, -1.0]]))
    assert entropy.item() == pytest.approx(-10.324246, rel=1e-6)
    assert action.tolist()[0] == pytest.approx([math.tanh(math.exp(-4)), -math.tanh(math.exp(-4))])


def test_the_range_of_values_by_hand():
    values = torch.arange(101.0)  # percentiles 5 and 95
    assert value_range(values).item() == pytest.approx(90)
    assert value_range(torch.full((7,), 3.0)).item() == 1.0


def run_policy_loss(model, policy, z, *, scale=1.0, entropy=0.0, rate=0.1, **own):
    return policy_loss(
        policy, z, torch.ones(z.shape[:2]), model, policy.noise(z.shape[:2], stream(4)), None,
        torch.tensor(scale), torch.tensor(entropy), torch.tensor(rate),
        **{"pessimistic": False, "normalize": True, **own},
    )  # fmt: skip


def test_the_policy_s_loss_by_hand():
    model, policy = networks(critics=2, **NUMBERS)
    with_values(model, 30.0, 10.0)
    z = torch.randn(3, 4, 8).softmax(-1)
    # All values are equal: their range is 1, the scale moves from 2 to 1.9, and -20 / 1.9.
    loss, metrics, aux = run_policy_loss(model, policy, z, scale=2.0)
    assert aux["scale"].item() == pytest.approx(1.9)
    assert loss.item() == pytest.approx(-20 / 1.9, rel=1e-5)
    assert run_policy_loss(model, policy, z, scale=2.0, normalize=False)[0].item() == -20
    assert run_policy_loss(model, policy, z, normalize=False, pessimistic=True)[0].item() == -10
    bonus = run_policy_loss(model, policy, z, entropy=0.5, normalize=False)[0]
    assert bonus.item() == pytest.approx(-20 - 0.5 * metrics["scaled_entropy"].item(), rel=1e-5)


def test_the_policy_climbs_the_values_and_changes_nothing_else():
    model, policy = networks(critics=2, **NUMBERS)
    with torch.no_grad():
        for each in (*model.values.weights, *policy.parameters()):
            each.add_(torch.randn(each.shape, generator=stream()), alpha=0.2)
    before = weights(model)
    learner = Learner(
        policy, partial(policy_loss, pessimistic=False, normalize=True), small().policy_optimizer
    )
    z, noise = torch.randn(3, 64, 8).softmax(-1), policy.noise((3, 64), stream(4))
    values = []
    for _ in range(30):
        step = learner.step(
            z, torch.ones(3, 64), model, noise, None, torch.ones(()), torch.zeros(()),
            torch.tensor(0.01), learning_rate=torch.tensor(1e-2), max_grad_norm=torch.tensor(20.0),
        )  # fmt: skip
        values.append(step.metrics["policy_value"].item())
    assert values[-1] > values[0] + 0.05
    assert torch.equal(weights(model), before)


def test_of_discrete_actions_the_policy_learns_from_the_expectation():
    spec = EnvSpec("discrete", box(3), Discrete(2))
    model, policy = networks(spec=spec, critics=2, **NUMBERS)
    asked = []

    def values(pairs, which=None, mask=None):
        asked.append(pairs[..., -2:])
        return (1 + 2 * pairs[..., -1:]).expand(2, *pairs.shape[:-1], 1)  # 1 and 3

    model.values.forward = values
    with torch.no_grad():
        for each in policy.parameters():
            each.zero_()
        policy.layers[-1].bias.copy_(torch.tensor([0.0, math.log(3)]))  # 1/4 and 3/4
    loss, metrics, _ = run_policy_loss(model, policy, torch.zeros(2, 3, 8), normalize=False)
    assert loss.item() == pytest.approx(-(0.25 * 1 + 0.75 * 3))
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert metrics["scaled_entropy"].item() == pytest.approx(entropy, rel=1e-5)


def test_the_noise_of_the_first_version_is_cut_off_and_lets_gradients_pass():
    _, policy = networks(policy_std=0.5)
    z = torch.randn(4, 8)
    mean = policy.mode(z)
    near = policy.sample(z, torch.full((4, 2), 9.0))
    assert torch.allclose(near, (mean + 0.3).clamp(-1, 1))
    with torch.no_grad():
        policy.layers[-1].bias.fill_(2.0)  # tanh 2 = .96: above 1 with noise
    action = policy.sample(z, torch.full((4, 2), 9.0))
    assert (action == 1).all()
    (slope,) = torch.autograd.grad(action.sum(), policy.layers[-1].bias)
    assert (slope > 0).all()


# -- plans -----------------------------------------------------------------------------------------


def returns_of(model, policy, plans, gamma=0.5, pair=None):
    z = torch.randn(plans.shape[0], 8, generator=stream()).softmax(-1)
    noise = torch.zeros(1, plans.shape[1], 2)
    return plan_returns(model, policy, z, plans, noise, pair, torch.tensor(gamma))


def test_the_return_of_a_plan_by_hand():
    model, policy = networks(ends=True, **NUMBERS)
    with_values(model, 30.0, 10.0, 50.0)
    with torch.no_grad():
        for name, number in (("reward", 1.0), ("termination", -1.0)):
            getattr(model, name)[-1].weight.zero_()
            getattr(model, name)[-1].bias.fill_(number)
    plans = torch.rand(2, 5, 3, 2)
    # 1 + .5 + .25, and behind it .125 times the mean of the Qs 0 and 1
    found = returns_of(model, policy, plans, pair=torch.tensor([0, 1]))
    assert found.shape == (2, 5)
    assert torch.allclose(found, torch.tensor(1.75 + 0.125 * 20))
    with torch.no_grad():
        model.termination[-1].bias.fill_(1.0)  # the first step ends it
    assert torch.allclose(returns_of(model, policy, plans), torch.tensor(1.0))


def test_a_plan_calls_the_model_as_often_for_many_candidates_as_for_few(tiny):
    counts = []
    for environments, candidates in ((1, 8), (3, 64)):
        algorithm = tiny_tdmpc(
            tiny, "tdmpc2", "Pendulum-v1", **{**PLANNER, "planner.candidates": candidates}
        ).workflow
        calls, rows_seen = [], []
        honest = algorithm.model.dynamics.forward
        algorithm.model.dynamics.forward = lambda x, calls=calls, rows=rows_seen, f=honest: (
            calls.append(1) or rows.append(len(x)) or f(x)
        )
        algorithm.act(
            torch.zeros(environments, 3), algorithm.initial_state(environments), deterministic=True
        )
        counts.append(len(calls))
        assert max(rows_seen) == environments * (candidates - 2)
    # 2 steps of the policy's plans (of 3 actions), 3 for their returns, 3 in each of 2 iterations
    assert counts == [2 + 3 + 2 * 3] * 2


def test_environments_of_a_plan_do_not_know_of_each_other(tiny):
    algorithm = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1").workflow
    obs = torch.randn(4, 3, generator=stream())
    together = algorithm.act(obs, algorithm.initial_state(4), deterministic=True)
    for index in range(4):
        alone = algorithm.act(
            obs[index : index + 1], algorithm.initial_state(1), deterministic=True
        )
        assert torch.allclose(alone.action[0], together.action[index], atol=1e-6)
        assert torch.allclose(alone.state[PLAN][0], together.state[PLAN][index], atol=1e-6)


def spied(algorithm, monkeypatch) -> list:
    """The first guess and the mean of every plan that is made while collecting."""
    seen, honest = [], algorithm.plan_collecting

    def plan(model, policy, obs, first, *rest):
        found = honest(model, policy, obs, first, *rest)
        seen.append((first.clone(), found.mean.clone()))
        return found

    monkeypatch.setattr(algorithm, "plan_collecting", plan)
    return seen


def test_a_plan_begins_with_the_last_one_a_step_later_and_an_episode_with_none(tiny, monkeypatch):
    run = tiny_tdmpc(
        tiny, "tdmpc2", "Pendulum-v1", "environment.num_envs=1", "environment.max_episode_steps=5",
        learning_starts=4,
    )  # fmt: skip
    seen = spied(run.workflow, monkeypatch)
    play(run, 6)
    assert len(seen) >= 12
    for index in range(1, len(seen)):
        first, before = seen[index][0], seen[index - 1][1]
        if (4 + index) % 5 == 0:  # four steps were random; episodes have five
            assert not first.any()
        else:
            assert torch.equal(first[:, :-1], before[:, 1:])
            assert not first[:, -1].any()


def test_without_warm_start_every_plan_begins_with_zeros(tiny, monkeypatch):
    run = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1", **{"planner.warm_start": False})
    seen = spied(run.workflow, monkeypatch)
    play(run, 8)
    assert seen and not any(first.any() for first, _ in seen)


def test_an_evaluation_changes_nothing_of_the_training(tiny):
    first, second = (tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1") for _ in range(2))
    play(first, 12)
    play(second, 12)
    before = second.collector.memory[PLAN].clone()
    second.evaluate("eval", 2)
    assert torch.equal(second.collector.memory[PLAN], before)
    play(first, 4)
    play(second, 4)
    assert torch.equal(weights(first.workflow.model), weights(second.workflow.model))
    assert torch.equal(first.collector.memory[PLAN], second.collector.memory[PLAN])


def test_plans_obey_an_action_mask(tiny):
    algorithm = tiny_tdmpc(tiny, "tdmpc2", "CartPole-v1").workflow
    action = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = SimpleNamespace(action=action, mean=torch.full((3, 3, 2), 0.5))
    mask = torch.tensor([[1, 1], [0, 1], [1, 0]])
    taken = algorithm._taken(found, {OBS: torch.zeros(3, 4), ACTION_MASK: mask})
    assert taken.tolist() == [0, 1, 0]
    spec = EnvSpec("masked", Dict({OBS: box(3), ACTION_MASK: box(2)}), Discrete(2))
    assert list(networks(spec=spec)[0].encoder.spaces) == [OBS]


# -- accounts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("burst", [True, False])
def test_random_steps_are_learned_from_when_learning_starts(tiny, monkeypatch, burst):
    monkeypatch.setattr(tdmpc, "MOST_STEPS", 7)
    run = tiny_tdmpc(
        tiny, "tdmpc2", "Pendulum-v1", "environment.num_envs=1", "evaluation.every_steps=0",
        learning_starts=32, replay_ratio=1, train_every=4, burst=burst,
    )  # fmt: skip
    steps = []
    for _ in range(24):
        play(run, 1)
        steps.append((run.counters.env_steps, run.workflow.budget.steps))
    assert [taken for seen, taken in steps if seen < 32] == [0] * 7
    expected, allowed = [], 0
    for seen, _ in steps[7:]:
        allowed = min(allowed + 7, seen if burst else seen - 32)
        expected.append(allowed)
    assert [taken for _, taken in steps[7:]] == expected
    assert (expected[-1] == steps[-1][0]) is (burst is True)
