"""CEM and MPPI against optima that are known, and environments that must not know of each other."""

import math
from functools import partial
from itertools import product

import pytest
import torch

from rl_lab.planning.cem import CEMConfig, categorical_cem, cem, planner_noise
from rl_lab.planning.mppi import MPPIConfig, mppi
from rl_lab.planning.planner import PlannerConfig, plan_actions
from rl_lab.planning.plans import Plan, imagined_return, repeated, shifted, shifted_probabilities

SMALL = {"horizon": 3, "candidates": 200, "elites": 20, "iterations": 10}
CEM = CEMConfig(**SMALL)
MPPI = MPPIConfig(**SMALL, initial_std=1.0, max_std=1.0, min_std=0.01, temperature=1.0)
PLANNERS = pytest.mark.parametrize(("plan", "config"), [(cem, CEM), (mppi, MPPI)])


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@PLANNERS
def test_the_top_of_a_quadratic_is_found(plan, config):
    goal = torch.linspace(-0.9, 0.9, 2 * 3 * 2).view(2, 3, 2)  # another one for each environment
    found = plan(
        lambda candidates: -(candidates - goal[:, None]).square().sum((2, 3)),
        torch.zeros(2, 3, 2),
        planner_noise(config, 2, 2, stream()),
        config,
    )
    assert (found.mean - goal).abs().max() < 1e-2
    assert torch.equal(found.action, found.mean[:, 0])


@PLANNERS
def test_actions_stay_within_their_bounds(plan, config):
    tried = []

    def more_is_better(candidates):
        tried.append(candidates)
        return candidates.sum((2, 3))

    found = plan(
        more_is_better, torch.zeros(1, 3, 1), planner_noise(config, 1, 1, stream()), config
    )
    assert torch.stack(tried).abs().max() == 1.0
    assert found.mean.min() > 0.99 and found.mean.max() <= 1.0


def test_one_iteration_by_hand():
    # candidates .5 + 1 * [-2, -.5, .25, .5] = [-1 (cut), 0, .75, 1]; the better half are .75 and 1:
    # mean .875, deviation .125 (not .177, that of a sample). Half of the old is kept:
    # mean (.5 + .875) / 2 = .6875, std (1 + .125) / 2 = .5625
    config = CEMConfig(horizon=1, candidates=4, elites=2, iterations=1, momentum=0.5)
    noise = torch.tensor([-2.0, -0.5, 0.25, 0.5]).view(1, 1, 4, 1, 1)
    found = cem(lambda plans: plans.sum((2, 3)), torch.full((1, 1, 1), 0.5), noise, config)
    assert found.mean.item() == pytest.approx(0.6875)
    assert found.std.item() == pytest.approx(0.5625)
    bounded = CEMConfig(horizon=1, candidates=4, elites=2, iterations=1, min_std=0.2)
    found = cem(lambda plans: plans.sum((2, 3)), torch.full((1, 1, 1), 0.5), noise, bounded)
    assert found.std.item() == pytest.approx(0.2)


def test_one_iteration_of_mppi_by_hand():
    # the same elites 1 and .75 have returns 1 and .75; temperature .25 / ln 3 weighs them 3 : 1
    # mean .9375, variance 3/4 * .0625² + 1/4 * .1875² = .01171875
    config = MPPIConfig(
        horizon=1,
        candidates=4,
        elites=2,
        iterations=1,
        initial_std=1.0,
        min_std=0.0,
        momentum=0.0,
        temperature=0.25 / math.log(3),
    )
    noise = torch.tensor([-2.0, -0.5, 0.25, 0.5]).view(1, 1, 4, 1, 1)
    found = mppi(lambda plans: plans.sum((2, 3)), torch.full((1, 1, 1), 0.5), noise, config)
    assert found.mean.item() == pytest.approx(0.9375)
    assert found.std.item() == pytest.approx(math.sqrt(0.01171875))


def test_the_planner_is_the_one_that_was_named():
    """Elites 1 and .75 as above: their middle, or 3 : 1; of indices, the shares of the best."""
    sizes = {"horizon": 1, "candidates": 4, "elites": 2, "iterations": 1}
    noise = torch.tensor([-2.0, -0.5, 0.25, 0.5]).view(1, 1, 4, 1, 1)
    first = torch.full((1, 1, 1), 0.5)

    def found(**kind):
        config = PlannerConfig(**sizes, **kind)
        plan = plan_actions(lambda plans: plans.sum((2, 3)), first, noise, config, discrete=False)
        return plan.mean.item()

    assert found() == found(type="cem") == pytest.approx(0.875)
    assert found(type="mppi", temperature=0.25 / math.log(3)) == pytest.approx(0.9375)
    drawn = planner_noise(CEM, 1, 2, stream(), discrete=True)
    probabilities = plan_actions(
        lambda plans: plans[..., 1].sum(2),
        torch.full((1, 3, 2), 0.5),
        drawn,
        PlannerConfig(**SMALL),
        discrete=True,
    ).mean
    assert (
        torch.allclose(probabilities.sum(-1), torch.ones(1, 3))
        and (probabilities[..., 1] > 0.95).all()
    )


def test_a_model_that_runs_off_promises_nothing():
    def evaluate(candidates):
        value = candidates.sum((2, 3))
        return torch.where(value > 0.5, math.nan, torch.where(value < -0.5, math.inf, value))

    for plan, config in ((cem, CEM), (mppi, MPPI)):
        noise = planner_noise(config, 1, 1, stream())
        found = plan(evaluate, torch.zeros(1, 3, 1), noise, config)
        assert torch.isfinite(found.mean).all() and found.mean.sum() < 0.51
        lost = plan(lambda plans: plans.sum((2, 3)) * math.nan, torch.zeros(1, 3, 1), noise, config)
        assert torch.isfinite(lost.mean).all()


# -- discrete actions ------------------------------------------------------------------------------


def test_discrete_actions_are_found_one_by_one():
    goal = torch.tensor([[2, 0, 1], [1, 1, 2]])  # of three actions, for each environment

    def evaluate(candidates):
        assert torch.equal(candidates.sum(-1), torch.ones(candidates.shape[:-1]))  # one-hot
        return (candidates.argmax(-1) == goal[:, None]).float().sum(-1)

    even = torch.full((2, 3, 3), 1 / 3)
    noise = planner_noise(CEM, 2, 3, stream(), discrete=True)
    found = categorical_cem(evaluate, even, noise, CEM)
    assert torch.equal(found.mean.argmax(-1), goal)
    assert torch.allclose(found.mean.sum(-1), torch.ones(2, 3))
    assert found.mean.min() >= 0.009 / 3  # nothing is ruled out for ever


def test_discrete_candidates_are_drawn_with_their_chances():
    probabilities = torch.tensor([0.6, 0.3, 0.1]).expand(1, 1, 3)
    config = CEMConfig(horizon=1, candidates=20_000, elites=20_000, iterations=1)
    noise = planner_noise(config, 1, 3, stream(), discrete=True)
    found = categorical_cem(lambda plans: plans.sum((2, 3)), probabilities, noise, config)
    assert torch.allclose(found.mean, probabilities, atol=0.012)  # 3.5 standard errors


# -- true models ----------------------------------------------------------------------------------


def pendulum(state, action, t):
    """Gymnasium's Pendulum-v1 as equations: state [R, 2] is angle and speed."""
    angle, speed = state.unbind(-1)
    torque = 2.0 * action[:, 0]
    wrapped = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
    cost = wrapped.square() + 0.1 * speed.square() + 0.001 * torque.square()
    speed = (speed + (15.0 * angle.sin() + 3.0 * torque) * 0.05).clamp(-8, 8)
    return torch.stack([angle + 0.05 * speed, speed], -1), -cost


def point_mass(state, action, t):
    """Push a mass to 0: state [R, 2] is place and speed."""
    place, speed = state.unbind(-1)
    speed = speed + 0.5 * action[:, 0]
    place = place + 0.5 * speed
    return torch.stack([place, speed], -1), -place.square() - 0.1 * speed.square()


@PLANNERS
@pytest.mark.parametrize("model", [pendulum, point_mass])
def test_a_true_model_is_planned_with_as_well_as_by_brute_force(model, config, plan):
    horizon, levels = 5, torch.linspace(-1, 1, 7).tolist()
    state = torch.tensor([[0.5, 0.0], [1.5, -1.0], [-1.0, 0.5]])
    evaluate = partial(imagined_return, model, state)
    everything = torch.tensor(list(product(levels, repeat=horizon)))  # 7^5 = 16807 plans
    brute = evaluate(everything[None, :, :, None].expand(3, -1, -1, -1)).amax(1)
    idle = evaluate(torch.zeros(3, 1, horizon, 1))[:, 0]
    config = type(config)(**{**vars(config), "horizon": horizon})
    noise = planner_noise(config, 3, 1, stream())
    found = plan(evaluate, torch.zeros(3, horizon, 1), noise, config)
    reached = evaluate(found.mean[:, None])[:, 0]
    assert ((reached - idle) >= 0.95 * (brute - idle)).all()


def test_the_true_pendulum_swings_up_when_replanned_with_a_warm_start():
    config = CEMConfig(horizon=20, candidates=100, elites=10, iterations=3, warm_start=True)
    state, mean, generator = torch.tensor([[math.pi, 0.0]]), torch.zeros(1, 20, 1), stream()
    rewards = []
    for _ in range(100):
        found = cem(
            partial(imagined_return, pendulum, state),
            mean,
            planner_noise(config, 1, 1, generator),
            config,
        )
        state, reward = pendulum(state, found.action, 0)
        rewards.append(reward.item())
        mean = shifted(found.mean)
    assert sum(rewards[-20:]) > -1.0  # upright, and at rest; hanging it would be -197
    assert rewards[0] < -9


# -- batches ---------------------------------------------------------------------------------------


@PLANNERS
def test_all_environments_at_once_are_each_of_them_alone(plan, config):
    state = torch.tensor([[0.5, 0.0], [1.5, -1.0], [-2.0, 0.5]])
    noise = planner_noise(config, 3, 1, stream())
    first = torch.linspace(-0.5, 0.5, 3)[:, None, None].expand(3, 3, 1)
    together = plan(partial(imagined_return, pendulum, state), first, noise, config)
    for row in range(3):
        own = slice(row, row + 1)
        evaluate = partial(imagined_return, pendulum, state[own])
        alone = plan(evaluate, first[own], noise[:, own], config)
        assert torch.allclose(together.mean[own], alone.mean, atol=1e-5)
        assert torch.allclose(together.std[own], alone.std, atol=1e-5)


@PLANNERS
def test_another_environments_state_changes_nothing(plan, config):
    noise = planner_noise(config, 2, 1, stream())
    plans = [
        plan(
            partial(imagined_return, pendulum, torch.tensor([[0.5, 0.0], [other, -1.0]])),
            torch.zeros(2, 3, 1),
            noise,
            config,
        ).mean
        for other in (1.5, -2.5)
    ]
    assert torch.equal(plans[0][0], plans[1][0])
    assert not torch.equal(plans[0][1], plans[1][1])


def test_rows_lie_environment_by_environment():
    # reward = place of the environment's own state + ten times the candidate's action
    state = {"place": torch.tensor([1.0, 2.0])}
    candidates = torch.tensor([[[[0.1]], [[0.2]], [[0.3]]], [[[0.4]], [[0.5]], [[0.6]]]])
    returns = imagined_return(
        lambda rows, action, t: (rows, rows["place"] + 10 * action[:, 0]), state, candidates
    )
    assert torch.allclose(returns, torch.tensor([[2.0, 3.0, 4.0], [6.0, 7.0, 8.0]]))
    assert repeated(state, 3)["place"].tolist() == [1, 1, 1, 2, 2, 2]


def test_rewards_of_all_steps_are_summed():
    # the state counts the steps; arriving at 1, 2, 3 pays 1, 2, 3
    def step(rows, action, t):
        assert torch.equal(rows, torch.full((2,), float(t)))
        return rows + 1, rows + 1

    assert imagined_return(step, torch.zeros(1), torch.zeros(1, 2, 3, 1)).tolist() == [[6.0, 6.0]]


def test_a_plan_one_step_later():
    plan = Plan(torch.arange(6.0).view(1, 3, 2), torch.ones(1, 3, 2))
    assert plan.action.tolist() == [[0.0, 1.0]]
    assert shifted(plan.mean).tolist() == [[[2.0, 3.0], [4.0, 5.0], [0.0, 0.0]]]
    assert shifted(plan.mean, 0.5)[0, -1].tolist() == [0.5, 0.5]


def test_a_plan_of_discrete_actions_one_step_later():
    # Half of 1, 0, 0, 0 and half of a quarter for each: 0.5 + 0.125, and 0.125 for the others.
    sure = torch.tensor([[[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]])
    later = shifted_probabilities(sure)
    assert later.tolist() == [[[0.625, 0.125, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]]]


def test_a_warm_start_can_be_left():
    """The old plan is good, a better one begins when all actions change together."""

    def evaluate(candidates):
        chosen = candidates.argmax(-1)
        return (chosen == 0).all(-1) + 2.0 * (chosen == 1).all(-1)

    sure = torch.tensor([0.99, 0.005, 0.005]).expand(1, 3, 3)
    few = CEMConfig(**{**SMALL, "candidates": 1000, "elites": 2})
    noise = planner_noise(few, 1, 3, stream(), discrete=True)
    stuck = categorical_cem(evaluate, shifted(sure, 1 / 3), noise, few)
    free = categorical_cem(evaluate, shifted_probabilities(sure), noise, few)
    assert stuck.mean[0].argmax(-1).tolist() == [0, 0, 0]
    assert free.mean[0].argmax(-1).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"elites": 2000}, r"elites must be at most candidates \(1000\), got 2000"),
        ({"initial_std": 0.0}, "initial_std must be positive, got 0"),
        ({"min_std": 2.0}, r"min_std must be at most max_std \(1\), got 2"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1"),
    ],
)
def test_what_cannot_work_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        CEMConfig(**wrong)


def test_a_temperature_is_positive():
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        MPPIConfig(temperature=0.0)
    with pytest.raises(ValueError, match="temperature has no use with type cem: set type to mppi"):
        PlannerConfig(temperature=1.0)
    assert PlannerConfig(type="mppi", temperature=1.0).temperature == 1.0
