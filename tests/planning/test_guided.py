"""Guided MPPI: weights and draws by hand, a point mass whose model is known, bounds, categories."""

import math
from functools import partial

import pytest
import torch

from rl_lab.planning import guided
from rl_lab.planning.guided import (
    GuidedConfig,
    GuidedNoise,
    chosen,
    guided_categorical,
    guided_mppi,
    guided_noise,
    weighted_elites,
)

HORIZON = 5


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def config(**own) -> GuidedConfig:
    plain = {"candidates": 64, "policy_candidates": 4, "elites": 8, "iterations": 3, "horizon": 2}
    return GuidedConfig(**{**plain, **own})


def no_guides(count: int, horizon: int, actions: int) -> torch.Tensor:
    return torch.zeros(count, 0, horizon, actions)


# -- elites and the draw among them ----------------------------------------------------------------


def test_elites_are_weighted_by_their_returns():
    # The best two of the returns 1, 4, 2 (drawn) and 3 (the policy's) are 4 and 3. A temperature of
    # 1 / ln 3 gives the one that is worse by 1 a third of the weight: 3/4 and 1/4.
    plans = torch.tensor([0.1, 0.4, 0.2]).view(1, 3, 1, 1)
    guides = torch.tensor([0.3]).view(1, 1, 1, 1)
    known = config(
        candidates=4, policy_candidates=1, elites=2, horizon=1, temperature=1 / math.log(3)
    )
    returns = torch.tensor([[1.0, 4.0, 2.0]]), torch.tensor([[3.0]])
    weight, elites = weighted_elites(returns[0], plans, returns[1], guides, known)
    assert weight[0].tolist() == pytest.approx([0.75, 0.25])
    assert elites.flatten().tolist() == pytest.approx([0.4, 0.3])


def test_one_iteration_by_hand():
    # As above, without momentum: mean .75 · .4 + .25 · .3 = .375, and the deviation is
    # sqrt(.75 · .025² + .25 · .075²) = .0433, which the least one of .05 replaces.
    known = config(
        candidates=4, policy_candidates=1, elites=2, iterations=1, horizon=1,
        initial_std=1.0, temperature=1 / (10 * math.log(3)),
    )  # fmt: skip
    noise = GuidedNoise(
        torch.tensor([0.1, 0.4, 0.2]).view(1, 1, 3, 1, 1),
        torch.tensor([[1.0, 0.1]]),  # the clock of the second elite ticks ten times as early
        torch.tensor([[2.0]]),
    )
    arguments = (
        lambda plans: plans.sum((2, 3)),
        torch.zeros(1, 1, 1),
        torch.full((1, 1, 1, 1), 0.3),
        noise,
        known,
    )
    found = guided_mppi(*arguments, 0.05, explore=False)
    assert found.mean.item() == pytest.approx(0.375)
    assert found.std.item() == pytest.approx(0.05)
    assert found.action.item() == pytest.approx(0.3)  # .25 / .1 beats .75 / 1
    loose = guided_mppi(*arguments, 0.0, explore=True)
    assert loose.std.item() == pytest.approx(math.sqrt(0.75 * 0.025**2 + 0.25 * 0.075**2))
    assert loose.action.item() == pytest.approx(0.3 + 2 * loose.std.item())


def test_elites_are_drawn_as_often_as_they_weigh():
    weight = torch.tensor([[0.7, 0.2, 0.1]]).expand(20_000, -1)
    elites = torch.arange(3.0).view(1, 3, 1, 1).expand(20_000, -1, -1, -1)
    drawn = chosen(weight, elites, torch.empty(20_000, 3).exponential_(generator=stream()))
    share = torch.bincount(drawn.flatten().long(), minlength=3) / 20_000
    assert share.tolist() == pytest.approx([0.7, 0.2, 0.1], abs=0.012)


def test_returns_that_are_not_finite_lose_and_are_counted():
    def broken(plans):
        returns = plans.sum((2, 3))
        return torch.where(plans[:, :, 0, 0] > 0, torch.full_like(returns, torch.nan), returns)

    known = config(policy_candidates=0, horizon=1)
    noise = guided_noise(known, 2, 1, 1, stream(), discrete=False)
    found = guided_mppi(
        broken, torch.zeros(2, 1, 1), no_guides(2, 1, 1), noise, known, 0.05, explore=False
    )
    assert found.action.max() <= 0
    assert 0 < found.bad < 1


# -- a point mass whose model is known -------------------------------------------------------------


def point_mass(start: torch.Tensor, plans: torch.Tensor) -> torch.Tensor:
    """Push a mass towards 1 for H steps: rewards 1 - (x - 1)² of plans [B, K, H, 1]."""
    x, v = (each[:, None].expand(plans.shape[:2]) for each in start.unbind(-1))
    total = torch.zeros(plans.shape[:2])
    for push in plans[..., 0].unbind(-1):
        v = v + 0.5 * push
        x = x + 0.5 * v
        total = total + 1 - (x - 1).square()
    return total


def optimum(start: torch.Tensor) -> torch.Tensor:
    """The best return [B]: the sum is concave in the plan, so that projected ascent finds it."""
    plan = torch.zeros(len(start), 1, HORIZON, 1)
    for _ in range(3000):
        plan.requires_grad_()
        (slope,) = torch.autograd.grad(point_mass(start, plan).sum(), plan)
        plan = (plan + 0.05 * slope).detach().clamp(-1, 1)
    return point_mass(start, plan)[:, 0]


STARTS = torch.tensor([[0.0, 0.0], [0.5, 0.5], [1.6, -0.2], [-0.3, 0.4]])


def planned(starts: torch.Tensor, *, seed: int = 0, **own) -> guided.GuidedPlan:
    known = config(candidates=512, policy_candidates=0, elites=64, iterations=6, horizon=HORIZON)
    known = GuidedConfig(**{**vars(known), **own})
    noise = guided_noise(known, len(starts), HORIZON, 1, stream(seed), discrete=False)
    first, guides = torch.zeros(len(starts), HORIZON, 1), no_guides(len(starts), HORIZON, 1)
    return guided_mppi(
        partial(point_mass, starts), first, guides, noise, known, known.min_std, explore=True
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_plans_with_a_true_model_are_near_the_optimum(seed):
    found = planned(STARTS, seed=seed)
    best, got = optimum(STARTS), point_mass(STARTS, found.mean[:, None])[:, 0]
    worst = point_mass(STARTS, -found.mean.sign()[:, None])[:, 0]
    assert ((got - worst) >= 0.95 * (best - worst)).all()
    assert (got >= 0.95 * best)[best > 0].all()
    assert found.std.min() >= 0.05
    assert found.mean.abs().max() <= 1
    assert found.action.abs().max() <= 1


def test_with_the_sign_of_the_temperature_changed_they_are_not(monkeypatch):
    """Elites that are weighted towards the worst of all plans."""
    honest = guided.best
    monkeypatch.setattr(
        guided, "best", lambda returns, plans, count: honest(-returns, plans, count)
    )
    found = planned(STARTS)
    best, got = optimum(STARTS), point_mass(STARTS, found.mean[:, None])[:, 0]
    assert (got < 0.5 * best).all()


def test_environments_do_not_know_of_each_other():
    known = config(horizon=HORIZON, policy_candidates=0)
    noise = guided_noise(known, 1, HORIZON, 1, stream(), discrete=False)
    plan = partial(guided_mppi, noise=noise, config=known, min_std=0.05, explore=True)

    def alone(starts):
        first, guides = torch.zeros(len(starts), HORIZON, 1), no_guides(len(starts), HORIZON, 1)
        return plan(partial(point_mass, starts), first, guides)

    together = alone(STARTS)
    for index in range(len(STARTS)):
        single = alone(STARTS[index : index + 1])
        assert torch.allclose(single.mean[0], together.mean[index], atol=1e-6)
        assert torch.allclose(single.action[0], together.action[index], atol=1e-6)


def test_a_policy_that_knows_the_plan_is_listened_to():
    # With one iteration of few candidates nothing else comes near the policy's plan.
    goal = torch.tensor([0.9, -0.9, 0.9]).view(1, 1, 3, 1)
    known = config(candidates=8, policy_candidates=1, elites=1, iterations=1, horizon=3)
    noise = guided_noise(known, 1, 3, 1, stream(), discrete=False)
    found = guided_mppi(
        lambda plans: -(plans - goal).square().sum((2, 3)),
        torch.zeros(1, 3, 1), goal, noise, known, 0.05, explore=False,
    )  # fmt: skip
    assert torch.equal(found.mean, goal[0])


# -- discrete actions ------------------------------------------------------------------------------


def test_categories_find_the_best_of_all_plans():
    wanted = torch.tensor([[2, 0, 1], [1, 1, 0]])
    goal = torch.nn.functional.one_hot(wanted, 3).float()
    known = config(candidates=200, policy_candidates=0, elites=20, iterations=6, horizon=3)
    noise = guided_noise(known, 2, 3, 3, stream(), discrete=True)
    found = guided_categorical(
        lambda plans: 4 * (plans * goal[:, None]).sum((2, 3)),
        torch.full((2, 3, 3), 1 / 3), no_guides(2, 3, 3), noise, known, 0.01, explore=False,
    )  # fmt: skip
    assert torch.equal(found.mean.argmax(-1), wanted)
    assert torch.equal(found.action.argmax(-1), wanted[:, 0])
    assert torch.allclose(found.mean.sum(-1), torch.ones(2, 3))
    assert found.mean.min() > 0.005


# -- options ---------------------------------------------------------------------------------------


def test_the_ramp_of_the_first_version():
    known = config(horizon=5, ramp=1000, first_min_std=0.5, min_std=0.05)
    assert [known.horizon_at(step) for step in (0, 249, 250, 999, 1000, 5000)] == [1, 1, 2, 4, 5, 5]
    assert known.min_std_at(0) == 0.5
    assert known.min_std_at(500) == pytest.approx(0.275)
    assert known.min_std_at(9999) == 0.05
    assert config(horizon=5).horizon_at(0) == 5


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"policy_candidates": 64}, "policy_candidates must be fewer than candidates"),
        ({"elites": 65}, "elites must be at most candidates"),
        ({"first_min_std": 0.5}, "first_min_std needs a ramp"),
    ],
)
def test_options_that_do_not_go_together(own, said):
    with pytest.raises(ValueError, match=said):
        config(**own)
