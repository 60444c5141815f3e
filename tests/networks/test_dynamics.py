"""Models of steps: likelihoods by hand, units, members that are alone, and CEM on top of them."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from rl_lab.core.learner import Learner, scalar
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.spec import Box, Discrete, MultiDiscrete
from rl_lab.networks.dynamics import (
    LOG_STD_RANGE,
    DynamicsConfig,
    GaussianEnsemble,
    Identity,
    MLPDynamics,
    change,
    dynamics_loss,
    nll,
)
from rl_lab.planning.cem import CEMConfig, cem, planner_noise
from rl_lab.planning.plans import imagined_return

SMALL = DynamicsConfig(hidden_dims=[16], members=3)
PACE = {"learning_rate": scalar(3e-3, "cpu"), "max_grad_norm": scalar(100.0, "cpu")}


def fill(model, value=0.0):
    for parameter in model.parameters():
        parameter.data.fill_(value)


def test_likelihood_by_hand():
    # two members, one row of two numbers, target [1, 2]
    # member 0: mean 0, std 1:  .5 * 1 + .5 * 4 + 0 + 2 c;   member 1: mean [1, 0], std 2:
    # .5 * 0 + .5 * 1 + 2 ln 2 + 2 c, with c = .5 ln 2π
    mean = torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]]])
    log_std = torch.tensor([[[0.0, 0.0]], [[math.log(2.0)] * 2]])
    target = torch.tensor([[1.0, 2.0]])
    constant = math.log(2 * math.pi)
    expected = [2.5 + constant, 0.5 + 2 * math.log(2) + constant]
    assert nll(mean, log_std, target).item() == pytest.approx(sum(expected), rel=1e-6)
    weight = torch.tensor([[2.0], [0.0]])
    assert nll(mean, log_std, target, weight).item() == pytest.approx(2 * expected[0], rel=1e-6)


def test_likelihood_is_a_mean_over_rows():
    mean, log_std, target = torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), torch.ones(1, 2)
    one = nll(mean, log_std, target)
    many = nll(mean.expand(1, 5, 2), log_std.expand(1, 5, 2), target.expand(5, 2))
    assert torch.allclose(one, many)


def test_units_by_hand():
    # states 0 and 4, actions 1 and 1, changes 2 and 6, rewards 10 and 30
    state, action = torch.tensor([[0.0], [4.0]]), torch.ones(2, 1)
    next_state, reward = torch.tensor([[2.0], [10.0]]), torch.tensor([10.0, 30.0])
    assert change(state, next_state, reward).tolist() == [[2.0, 10.0], [6.0, 30.0]]
    model = MLPDynamics(SMALL, 1, 1)
    model.calibrate(state, action, next_state, reward)
    assert model.inputs.mean.tolist() == [2.0, 1.0]
    assert model.inputs.std.tolist() == [2.0, 1.0]  # an action that never varies is not scaled
    assert model.outputs.mean.tolist() == [4.0, 20.0] and model.outputs.std.tolist() == [2.0, 10.0]
    fill(model)  # the output 0 means an average step: 4 further, for a reward of 20
    moved, paid = model.imagine_step(torch.tensor([[1.0]]), torch.zeros(1, 1))
    assert moved.tolist() == [[5.0]] and paid.tolist() == [20.0]
    # half the squares of the scaled targets ±1, summed over the two outputs
    loss, _, _ = dynamics_loss(model, state, action, next_state, reward)
    assert loss.item() == pytest.approx(1.0)


def test_an_ensembles_deviation_lies_in_its_range():
    model = GaussianEnsemble(SMALL, 2, 1)
    fill(model)
    low, high = LOG_STD_RANGE
    mean, log_std = model(torch.zeros(4, 2), torch.zeros(4, 1))
    assert mean.shape == log_std.shape == (3, 4, 3)
    assert log_std.unique().item() == pytest.approx((low + high) / 2)
    model.layers.biases[-1].data.fill_(100.0)
    assert model(torch.zeros(4, 2), torch.zeros(4, 1))[1].max().item() == pytest.approx(high)


def test_members_with_rows_of_their_own_are_the_same_members():
    model = GaussianEnsemble(SMALL, 2, 1)
    state, action = torch.randn(4, 2), torch.randn(4, 1)
    shared = model(state, action)
    own = model(state.expand(3, 4, 2), action.expand(3, 4, 1))
    for one, other in zip(shared, own, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_member_learns_as_if_it_were_alone():
    model = GaussianEnsemble(SMALL, 2, 1)
    rows = [torch.randn(8, 2), torch.randn(8, 1), torch.randn(8, 2), torch.randn(8)]
    weight = torch.tensor([1.0, 0.0, 0.0])[:, None].expand(3, 8)
    dynamics_loss(model, *rows, weight)[0].backward()
    gradient = model.layers.weights[0].grad
    assert gradient[0].abs().max() > 0 and gradient[1:].abs().max() == 0
    model.zero_grad()
    dynamics_loss(model, *rows)[0].backward()
    assert torch.allclose(model.layers.weights[0].grad[0], gradient[0])


def test_every_member_goes_its_own_way():
    model = GaussianEnsemble(SMALL, 2, 1)
    fill(model)
    # member m always moves by m and pays 10 m
    for member in range(3):
        model.layers.biases[-1].data[member, 0, :3] = torch.tensor([1.0, 1.0, 10.0]) * member
    states = model.every(torch.zeros(4, 2))
    noise = torch.zeros(4, 3, 3)
    for steps in (1, 2):
        states, reward = model.imagine_step(states, torch.zeros(4, 1), noise)
        assert states[0, :, 0].tolist() == [0.0, steps, 2.0 * steps]
        assert reward.tolist() == [10.0] * 4  # the mean of 0, 10, 20
    # the deviation of 0, 1, 2 is √(2/3), that of the rewards ten times as much: on average 4 times
    told = model.disagreement(torch.zeros(1, 2), torch.zeros(1, 1))
    assert told.item() == pytest.approx(4 * math.sqrt(2 / 3), rel=1e-5)
    _, drawn = model.imagine_step(model.every(torch.zeros(1, 2)), torch.zeros(1, 1), noise[:1] + 1)
    assert drawn.item() == pytest.approx(10 + math.exp(sum(LOG_STD_RANGE) / 2), rel=1e-5)


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (Box((2, 3), np.dtype("float32"), np.full((2, 3), -1.0), np.full((2, 3), 1.0)), None),
        (Discrete(4), torch.tensor([3, 0])),
        (MultiDiscrete((2, 3)), torch.tensor([[1, 2], [0, 1]])),
    ],
)
def test_the_identity_goes_both_ways(space, obs):
    obs = torch.rand(5, 2, 3) if obs is None else obs
    identity = Identity(space)
    assert identity(obs).shape == (len(obs), identity.out_dim)
    assert torch.equal(identity.decode(identity(obs)), obs)


@pytest.mark.parametrize("wrong", [{"hidden_dims": [0]}, {"members": 0}])
def test_what_cannot_work_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        DynamicsConfig(**wrong)


# -- learning, and planning with what was learnt --------------------------------------------------


def pushed(state, action):
    """A mass on a line: place and speed; it is paid for being at 0."""
    place, speed = state.unbind(-1)
    speed = 0.9 * speed + 0.5 * action[..., 0]
    place = place + 0.5 * speed
    return torch.stack([place, speed], -1), 1 - place.square()


def train(model, rows, steps):
    model.calibrate(*rows)
    learner = Learner(model, dynamics_loss, OptimizerConfig())
    for _ in range(steps):
        step = learner.step(*rows, **PACE)
    return step.metrics["model_error"].item()


@pytest.mark.parametrize("kind", [MLPDynamics, GaussianEnsemble])
def test_cem_on_a_learned_model_pushes_the_mass_home(kind):
    """How the parts go together: calibrate, learn, plan with `imagined_return`, act, replan."""
    torch.manual_seed(0)
    state, action = 2 * torch.randn(400, 2), 2 * torch.rand(400, 1) - 1
    next_state, reward = pushed(state, action)
    model = kind(DynamicsConfig(hidden_dims=[32], members=3), 2, 1)
    assert train(model, (state, action, next_state, reward), 600) < 0.2

    config = CEMConfig(horizon=6, candidates=100, elites=10, iterations=4)
    generator = torch.Generator().manual_seed(1)
    ensemble = isinstance(model, GaussianEnsemble)
    calm = [torch.zeros(200, 3, 3)] if ensemble else []  # no noise: the members' means
    place = torch.tensor([[1.5, 0.0], [-1.0, 0.5]])  # two environments
    for _ in range(12):
        with torch.no_grad():
            plan = cem(
                partial(
                    imagined_return,
                    lambda rows, action, t: model.imagine_step(rows, action, *calm),
                    model.every(place) if ensemble else place,
                ),
                torch.zeros(2, 6, 1),
                planner_noise(config, 2, 1, generator),
                config,
            )
        place, _ = pushed(place, plan.action)
    assert place.abs().max() < 0.3


def test_members_disagree_where_they_have_seen_nothing():
    torch.manual_seed(0)
    state, action = torch.rand(300, 2), 2 * torch.rand(300, 1) - 1
    next_state, reward = pushed(state, action)
    model = GaussianEnsemble(SMALL, 2, 1)
    train(model, (state, action, next_state, reward), 200)
    near = model.disagreement(state, action).mean()
    far = model.disagreement(state + 10.0, action).mean()
    assert far > 5 * near
