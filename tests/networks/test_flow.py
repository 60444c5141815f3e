"""Flows: what a coupling does by hand, and densities against volumes that torch finds itself."""

import math

import numpy as np
import pytest
import torch

from rl_lab.core.schema import HeadConfig
from rl_lab.core.spec import Box
from rl_lab.networks.flow import LARGEST_LOG_SCALE, Coupling, FlowHead

HEAD = HeadConfig(hidden_dims=[16], activation="relu")


def constant(coupling: Coupling, shift: float, log_scale: float) -> Coupling:
    """Makes it say these two numbers, whatever it sees."""
    torch.nn.init.zeros_(coupling.output.weight)
    moved = coupling.output.bias.numel() // 2
    raw = LARGEST_LOG_SCALE * math.atanh(log_scale / LARGEST_LOG_SCALE)
    coupling.output.bias.data = torch.tensor([shift] * moved + [raw] * moved)
    return coupling


def box(size: int) -> Box:
    return Box((size,), np.dtype(np.float32), -np.ones(size), np.ones(size))


def head(size: int, couplings: int = 3) -> FlowHead:
    """With weights large enough that everything depends on everything."""
    torch.manual_seed(0)
    made = FlowHead(HEAD, 4, box(size), couplings)
    for coupling in made.couplings:
        torch.nn.init.normal_(coupling.output.weight, std=0.5)
    return made


@pytest.mark.parametrize(
    ("moves_first", "expected", "count"), [(False, [1, 5, 7], 2), (True, [3, 2, 3], 1)]
)
def test_a_coupling_by_hand(moves_first, expected, count):
    """Of (1, 2, 3) the first half is one number, the second two: what is moved is 2u + 1."""
    coupling = constant(Coupling(HEAD, 4, 3, moves_first=moves_first), 1.0, math.log(2))
    moved, log_volume = coupling(torch.tensor([[1.0, 2.0, 3.0]]), torch.zeros(1, 4))
    assert moved[0].tolist() == pytest.approx(expected)
    assert log_volume.item() == pytest.approx(count * math.log(2))


def test_what_moves_depends_on_the_other_half_and_on_the_features_only():
    coupling = head(4).couplings[0]
    u, features = torch.zeros(1, 4), torch.zeros(1, 4)
    start = coupling(u, features)[0]
    for changed in (torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([[0, 1.0, 0, 0]])):
        after = coupling(changed, features)[0]
        assert torch.equal(after[:, :2], changed[:, :2])
        assert not torch.allclose(after[:, 2:], start[:, 2:])
    assert not torch.allclose(coupling(u, features + 1)[0], start)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_density_is_that_of_the_map(size):
    """log N(noise) − log |det J|, with the Jacobian of noise -> action by autograd."""
    policy = head(size)(torch.randn(4, generator=torch.Generator().manual_seed(1)))
    noise = torch.randn(size, generator=torch.Generator().manual_seed(2))
    action, log_prob = policy.draw(noise)
    jacobian = torch.autograd.functional.jacobian(lambda each: policy.draw(each)[0], noise)
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum()
    assert log_prob.item() == pytest.approx((normal - jacobian.det().abs().log()).item(), abs=1e-4)
    assert action.abs().max() < 1


def test_densities_of_one_number_add_up_to_one():
    noise = torch.linspace(-8, 8, 20_001).unsqueeze(-1)
    policy = head(1)(torch.ones(20_001, 4))
    action, log_prob = policy.draw(noise)
    total = torch.trapezoid(log_prob.exp(), action.squeeze(-1))
    assert total.item() == pytest.approx(1.0, abs=1e-3)


def test_it_begins_as_squashed_noise_and_the_middle_is_the_mode():
    torch.manual_seed(0)
    policy = FlowHead(HEAD, 4, box(2), 2)(torch.randn(50, 4))
    noise = torch.randn(50, 2)
    assert torch.allclose(policy.draw(noise)[0], noise.tanh(), atol=0.05)
    assert policy.mode().shape == (50, 2)
    assert torch.allclose(policy.mode(), policy.draw(torch.zeros(50, 2))[0])


def test_every_number_is_moved_with_two_couplings():
    made = head(3, 2)
    policy = made(torch.ones(1, 4))
    noise = torch.full((1, 3), 0.3)
    moved = policy.draw(noise)[0].atanh()
    assert (moved - noise).abs().min() > 1e-3


def test_a_stretch_is_bounded():
    coupling = constant(Coupling(HEAD, 4, 1, moves_first=True), 0.0, 0.0)
    coupling.output.bias.data = torch.tensor([0.0, 1e9])
    moved, log_volume = coupling(torch.ones(1, 1), torch.zeros(1, 4))
    assert log_volume.item() == pytest.approx(LARGEST_LOG_SCALE)
    assert moved.item() == pytest.approx(math.exp(LARGEST_LOG_SCALE), rel=1e-5)
