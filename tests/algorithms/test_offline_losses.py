"""Offline algorithms: targets and losses by hand, and a chain with an action that no data has."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.algorithms import awac, cql, iql
from rl_lab.algorithms.dqn import conservative_gap, dqn_loss
from rl_lab.algorithms.offline import GaussianHead, bounded_sample, weighted_regression
from rl_lab.algorithms.replay import ERROR
from rl_lab.algorithms.td3 import actor_loss
from rl_lab.core.batch import ACTION, NEXT_OBS, OBS, REWARD, STEPS, TERMINATED, TRUNCATED
from rl_lab.core.distributions import Categorical, DiagonalGaussian, SquashedGaussian
from rl_lab.core.schema import HeadConfig
from rl_lab.core.spec import Box

BOX = Box((2,), np.dtype(np.float32), -np.ones(2), np.ones(2))
GAMMA, ONE = torch.tensor(0.9), torch.tensor(1.0)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


class Pair(nn.Module):
    """Two critics of pairs: 10 times the action, and 4."""

    of_pairs = True

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(10.0))

    def forward(self, obs, action=None, *, frozen=False, masks=()):
        factor = self.factor.detach() if frozen else self.factor
        return torch.stack([factor * action[:, 0], torch.full((len(action),), 4.0)])


class Table(nn.Module):
    """Q [N, S, A] of states that are indices: critics of discrete actions, or a Q-network."""

    of_pairs, distribution = False, "none"

    def __init__(self, values: list[list[float]], count: int = 1) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values).repeat(count, 1, 1))

    def forward(self, obs, action=None, *, frozen=False, masks=(), raw=False):
        q = self.values[:, obs]
        return q[0] if raw or len(q) == 1 else q

    def expected(self, outputs):
        return outputs

    def mask(self, obs):
        return None

    def noise_scale(self):
        return None


class Values(nn.Module):
    """V of states that are indices."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, obs):
        return self.values[obs]


def always(value: float):
    return lambda obs: torch.full((len(obs), 1), value)


# -- IQL ------------------------------------------------------------------------------------------


def expectile_of(sample: torch.Tensor, tau: float) -> float:
    """By bisection on its definition: τ Σ (x − m)⁺ = (1 − τ) Σ (m − x)⁺."""
    low, high = sample.min().item(), sample.max().item()
    for _ in range(60):
        middle = (low + high) / 2
        above, below = (sample - middle).clamp(min=0).sum(), (middle - sample).clamp(min=0).sum()
        low, high = (middle, high) if tau * above > (1 - tau) * below else (low, middle)
    return (low + high) / 2


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.7, 0.9])
def test_the_expectile_loss_is_smallest_at_the_expectile(tau):
    sample = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = expectile_of(sample, tau)
    value = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    rule = torch.optim.LBFGS([value], max_iter=50, line_search_fn="strong_wolfe")

    def closure():
        rule.zero_grad()
        loss = iql.expectile_loss(sample - value, torch.tensor(tau, dtype=torch.float64)).mean()
        loss.backward()
        return loss

    rule.step(closure)
    assert value.item() == pytest.approx(expected, abs=1e-5)
    if tau == 0.5:
        assert expected == pytest.approx(sample.mean().item())


def test_the_expectile_of_0_and_1_is_tau():
    # τ (1 − m) = (1 − τ) m has the solution m = τ, where the slope of the loss is 0.
    value = torch.tensor(0.7, requires_grad=True)
    iql.expectile_loss(numbers(0.0, 1.0) - value, torch.tensor(0.7)).mean().backward()
    assert value.grad.item() == pytest.approx(0.0, abs=1e-7)


def test_the_value_loss_by_hand():
    # Q = min(10 · 0.3, 4) = 3 and min(10 · 0.9, 4) = 4; V = 3.5: errors −0.5 and 0.5, τ = 0.7:
    # (0.3 · 0.25 + 0.7 · 0.25) / 2 = 0.125
    action, obs = torch.tensor([[0.3], [0.9]]), torch.tensor([0, 0])
    value = Values([3.5])
    loss, metrics, aux = iql.value_loss(value, obs, action, Pair(), torch.tensor(0.7))
    assert loss.item() == pytest.approx(0.125)
    assert aux[iql.ADVANTAGE].tolist() == pytest.approx([-0.5, 0.5])
    assert metrics["value_mean"].item() == pytest.approx(3.5)


def rows_of(**changes) -> dict:
    """One row: state 0, action 0.5, reward 1, state 1."""
    return {
        OBS: torch.tensor([0]),
        ACTION: torch.tensor([[0.5]]),
        REWARD: numbers(1.0),
        NEXT_OBS: torch.tensor([1]),
        TERMINATED: torch.tensor([False]),
        TRUNCATED: torch.tensor([False]),
        **changes,
    }


ENDS = [
    ({}, 2.8),  # 1 + 0.9 · 2
    ({TRUNCATED: torch.tensor([True])}, 2.8),  # the future exists
    ({TERMINATED: torch.tensor([True])}, 1.0),
    ({TERMINATED: torch.tensor([True]), TRUNCATED: torch.tensor([True])}, 1.0),
    ({REWARD: torch.tensor([[1.0, 2.0, 0.0]]), STEPS: torch.tensor([2])}, 1 + 1.8 + 0.81 * 2),
]


@pytest.mark.parametrize(("end", "target"), ENDS)
def test_nothing_follows_a_termination_and_a_truncation_is_bootstrapped(end, target):
    # IQL: V(s') = 2. Q(a = 0.5) = (5, 4).
    rows, expected = rows_of(**end), 0.5 * ((5 - target) ** 2 + (4 - target) ** 2)
    loss, metrics, aux = iql.q_loss(Pair(), rows, Values([9.0, 2.0]), GAMMA, ONE)
    assert metrics["target"].item() == pytest.approx(target)
    assert loss.item() == pytest.approx(expected)
    assert aux[ERROR].tolist() == pytest.approx([(abs(5 - target) + abs(4 - target)) / 2])
    # AWAC: π(s') = 0.2 without noise, min(10 · 0.2, 4) = 2.
    policy = lambda obs: DiagonalGaussian(torch.full((len(obs), 1), 0.2), torch.zeros(1))  # noqa: E731
    loss, metrics, _ = awac.q_loss(Pair(), rows, policy, Pair(), torch.zeros(1, 1), GAMMA, ONE)
    assert metrics["target"].item() == pytest.approx(target)
    assert loss.item() == pytest.approx(expected)
    # CQL without its term: tanh(0.2027) = 0.2, and no entropy in the target.
    actor = lambda obs: SquashedGaussian(  # noqa: E731
        torch.full((len(obs), 1), math.atanh(0.2)), torch.zeros(1)
    )
    shapes = torch.zeros(1, 1), torch.zeros(3, 1, 1), torch.zeros(2, 3, 1, 1)
    none = torch.tensor(0.0)
    loss, metrics, _ = cql.conservative_loss(Pair(), rows, actor, Pair(), *shapes, GAMMA, ONE, none)
    assert metrics["target"].item() == pytest.approx(target)
    assert loss.item() == pytest.approx(expected)


def test_rewards_are_scaled_before_they_are_learned_from():
    # 0.5 · 1 + 0.9 · 2
    scale = torch.tensor(0.5)
    _, metrics, _ = iql.q_loss(Pair(), rows_of(), Values([9.0, 2.0]), GAMMA, scale)
    assert metrics["target"].item() == pytest.approx(2.3)


def test_weights_grow_with_the_advantage_and_are_cut_off():
    # β = 3: exp(0) = 1, exp(3) = 20.0855, exp(6) = 403 is cut off at 100.
    policy = DiagonalGaussian(torch.zeros(3, 1), torch.zeros(1))
    action = torch.zeros(3, 1)  # log π = −½ log 2π = −0.918939
    advantage = numbers(0.0, 1.0, 2.0)
    loss, metrics = weighted_regression(
        policy, action, advantage, torch.tensor(3.0), torch.tensor(100.0)
    )
    assert metrics["weight"].item() == pytest.approx((1 + 20.085537 + 100) / 3)
    assert metrics["weight_clipped"].item() == pytest.approx(1 / 3)
    assert loss.item() == pytest.approx(0.918939 * (1 + 20.085537 + 100) / 3, rel=1e-5)
    huge = weighted_regression(policy, action, advantage * 1e9, ONE, torch.tensor(100.0))
    assert torch.isfinite(huge[0])


def test_beta_0_is_behavior_cloning():
    head = GaussianHead(HeadConfig(), 3, BOX, 0.3)
    obs, action = torch.randn(5, 3), torch.rand(5, 2) * 2 - 1
    loss, _, _ = iql.policy_loss(
        head, obs, action, torch.randn(5), torch.tensor(0.0), torch.tensor(100.0)
    )
    assert loss.item() == pytest.approx(-head(obs).log_prob(action).mean().item())


def test_the_policy_is_not_squashed_and_its_deviation_is_the_same_everywhere():
    head = GaussianHead(HeadConfig(), 3, BOX, 0.3)
    policy = head(10 * torch.randn(50, 3))
    assert policy.log_std.tolist() == pytest.approx([0.3, 0.3])
    edge = policy.log_prob(torch.ones(50, 2))  # a bound, where a squashed density is infinite
    assert torch.isfinite(edge).all()
    assert policy.mean.abs().max() <= 1
    drawn = bounded_sample(policy, 100 * torch.ones(50, 2))
    assert drawn.max() == 1


# -- AWAC -----------------------------------------------------------------------------------------


def test_the_advantage_of_awac_by_hand():
    # a = 0.35: min(3.5, 4) = 3.5; π(s) = 0.2 + 1 · 0.1 = 0.3: 3. A = 0.5, β = 2: w = e = 2.71828.
    # log π(0.35) = −½ · 0.15² − 0.918939 = −0.930189
    policy = lambda obs: DiagonalGaussian(torch.full((1, 1), 0.2), torch.zeros(1))  # noqa: E731
    loss, metrics, _ = awac.policy_loss(
        policy,
        torch.tensor([0]),
        torch.tensor([[0.35]]),
        Pair(),
        torch.tensor([[0.1]]),
        torch.tensor(2.0),
        torch.tensor(100.0),
    )
    assert metrics["advantage"].item() == pytest.approx(0.5)
    assert loss.item() == pytest.approx(math.e * 0.930189, rel=1e-5)


def test_the_value_of_a_discrete_policy_is_expected_over_all_actions():
    # π = (¼, ¾), Q = (2, 6): ½ + 4½ = 5
    policy = Categorical(torch.tensor([[0.0, math.log(3.0)]]))
    value = awac.policy_value(policy, Table([[2.0, 6.0]], count=2), torch.tensor([0]), ONE)
    assert value.tolist() == pytest.approx([5.0])


# -- TD3+BC ---------------------------------------------------------------------------------------


class Constant(nn.Module):
    """An actor with one action."""

    def __init__(self, action: float) -> None:
        super().__init__()
        self.action = nn.Parameter(torch.tensor([[action]]))

    def forward(self, obs):
        return self.action.expand(len(obs), 1)


def test_td3_bc_weighs_the_value_by_its_own_size():
    # Q = 10 · 0.3 = 3, λ = 2.5 / 3; (0.3 − 0.5)² − λ · 3 = 0.04 − 2.5.
    # Slope: 2 (0.3 − 0.5) − λ · 10 = −0.4 − 8.3333: none through λ, which would make it −0.4.
    actor, obs, taken = Constant(0.3), torch.zeros(4, 1), torch.full((4, 1), 0.5)
    loss, metrics, _ = actor_loss(actor, obs, Pair(), taken, torch.tensor(2.5))
    assert loss.item() == pytest.approx(0.04 - 2.5)
    assert metrics["imitation_loss"].item() == pytest.approx(0.04)
    (slope,) = torch.autograd.grad(loss, actor.parameters())
    assert slope.item() == pytest.approx(-0.4 - 25 / 3)


def test_td3_bc_with_alpha_0_is_behavior_cloning():
    actor, taken = Constant(0.3), torch.tensor([[0.5], [-0.1]])
    loss, _, _ = actor_loss(actor, torch.zeros(2, 1), Pair(), taken, torch.tensor(0.0))
    assert loss.item() == pytest.approx((actor(taken) - taken).square().mean().item())


# -- CQL ------------------------------------------------------------------------------------------


def test_the_conservative_term_of_a_table():
    # log(e + e² + e³) = 3.407606; − Q(a = 1) = 2: 1.407606
    gap = conservative_gap(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1]), None)
    assert gap.tolist() == pytest.approx([1.407606])
    # The third action is not legal: log(e + e²) − 2 = 0.313262
    legal = torch.tensor([[1, 1, 0]])
    gap = conservative_gap(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1]), legal)
    assert gap.tolist() == pytest.approx([0.313262], abs=1e-6)


def test_discrete_cql_is_dqn_and_the_term():
    rows = rows_of(**{ACTION: torch.tensor([1])})
    model, target = Table([[1.0, 2.0, 3.0], [0.0, 0.0, 2.0]]), Table([[0.0] * 3, [1.0, 1.0, 5.0]])
    settings = {"double": True, "huber": False}
    plain, _, _ = dqn_loss(model, rows, target, GAMMA, **settings)
    loss, metrics, _ = dqn_loss(model, rows, target, GAMMA, None, torch.tensor(2.0), **settings)
    assert plain.item() == pytest.approx(0.5 * (1 + 0.9 * 5 - 2) ** 2)
    assert loss.item() == pytest.approx(plain.item() + 2 * 1.407606)
    assert metrics["conservative_gap"].item() == pytest.approx(1.407606)


class Slope(nn.Module):
    """One critic: 2 times the action."""

    of_pairs = True

    def forward(self, obs, action=None, *, frozen=False, masks=()):
        return 2 * action[:, 0].unsqueeze(0)


def test_the_integral_over_actions_is_estimated_from_any_proposal():
    # ∫ exp(2 a) da over [−1, 1] = sinh 2 = 3.626860, by uniform actions and by those of a policy.
    draw, count = torch.Generator().manual_seed(0), 40_000
    obs = torch.zeros(1, 1)
    uniform = torch.rand(count, 1, 1, generator=draw) * 2 - 1
    noise = torch.randn(2, count, 1, 1, generator=draw)
    actor = lambda obs: SquashedGaussian(torch.full((1, 1), 0.4), torch.full((1, 1), 0.2))  # noqa: E731
    action, density = cql.proposals(actor, obs, obs, uniform, noise)
    assert action.shape == (3 * count, 1, 1) and density.shape == (3 * count, 1)
    for part in (slice(0, count), slice(count, 2 * count), slice(0, 3 * count)):
        found = cql.log_integral(Slope(), obs, action[part], density[part])
        assert found.item() == pytest.approx(math.log(math.sinh(2)), abs=0.02)


def test_cql_lowers_all_actions_and_raises_those_of_the_data():
    critic, rows = Pair(), rows_of()
    actor = lambda obs: SquashedGaussian(torch.zeros(len(obs), 1), torch.zeros(1))  # noqa: E731
    uniform = torch.tensor([[[1.0]], [[0.9]]])  # better than the action of the data, says Q
    given = torch.zeros(1, 1), uniform, torch.zeros(2, 2, 1, 1), GAMMA, ONE

    def slope(weight: float) -> float:
        loss, _, _ = cql.conservative_loss(
            critic, rows, actor, Pair(), *given, torch.tensor(weight)
        )
        return torch.autograd.grad(loss, critic.factor)[0].item()

    assert slope(1.0) > slope(0.0)  # the factor falls: 0.5 is in the data, 1 and 0.9 are not


# -- a chain --------------------------------------------------------------------------------------

# 0 → 1 → 2 → end with reward 1, by action 0. Action 1 is in no transition, and looks good: 5.
CHAIN = {
    OBS: torch.tensor([0, 1, 2]),
    ACTION: torch.tensor([0, 0, 0]),
    REWARD: numbers(0.0, 0.0, 1.0),
    NEXT_OBS: torch.tensor([1, 2, 2]),
    TERMINATED: torch.tensor([False, False, True]),
}
OPTIMUM = [0.81, 0.9, 1.0]  # of what the data supports


def descend(parameters, loss_of, steps: int = 1500) -> None:
    rule = torch.optim.SGD(parameters, lr=0.2)
    for _ in range(steps):
        rule.zero_grad()
        loss_of().backward()
        rule.step()


@pytest.mark.parametrize(("weight", "overestimates"), [(None, True), (1.0, False)])
def test_on_a_chain_cql_stays_below_the_optimum_and_plain_q_learning_does_not(
    weight, overestimates
):
    model = Table([[0.0, 5.0]] * 3)
    conservative = None if weight is None else torch.tensor(weight)
    given = CHAIN, model, GAMMA, None, conservative  # its own target, always up to date
    descend(model.parameters(), lambda: dqn_loss(model, *given, double=False, huber=False)[0])
    found = model.values[0].detach()
    if overestimates:
        assert found[:2, 0].tolist() == pytest.approx([4.5, 4.5], abs=0.01)  # 0.9 · 5
    else:  # what is not in the data ends below what is
        assert (found.amax(-1) <= numbers(*OPTIMUM) + 0.05).all()
        assert found.argmax(-1).tolist() == [0, 0, 0]


def test_on_a_chain_iql_finds_the_optimum_that_the_data_supports():
    critic, value = Table([[0.0, 5.0]] * 3, count=2), Values([0.0] * 3)

    def both():
        loss = iql.q_loss(critic, CHAIN, value, GAMMA, ONE)[0]
        expectile = torch.tensor(0.9)
        return loss + iql.value_loss(value, CHAIN[OBS], CHAIN[ACTION], critic, expectile)[0]

    descend([*critic.parameters(), *value.parameters()], both)
    assert critic.values[0, :, 0].tolist() == pytest.approx(OPTIMUM, abs=1e-3)
    assert value.values.tolist() == pytest.approx(OPTIMUM, abs=1e-3)
    assert (value.values.detach() <= numbers(*OPTIMUM) + 1e-3).all()
