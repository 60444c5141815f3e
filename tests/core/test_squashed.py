"""The squashed Gaussian: numbers by hand, and where naive formulas break."""

import math

import pytest
import torch

from rl_lab.core.distributions import SquashedGaussian


def standard(scale: float = 1.0, dims: int = 1) -> SquashedGaussian:
    return SquashedGaussian(torch.zeros(1, dims), torch.zeros(1, dims), scale)


# log N(u; 0, 1) - 2 (log 2 - u - log(1 + exp(-2u))) - log scale:
#   u = 1:   -0.5 - 0.918939 - 2 (0.693147 - 1 - 0.126928) = -1.418939 + 0.867562 = -0.551377
#   u = 10: -50 - 0.918939 - 2 (0.693147 - 10 - 2e-9) = -32.305233; 1e-6 in a log would give -37.11
#   scale 2 stretches by 2: -0.551377 - log 2 = -1.244524
@pytest.mark.parametrize(
    ("u", "scale", "expected"),
    [(1.0, 1.0, -0.551377), (10.0, 1.0, -32.305233), (-10.0, 1.0, -32.305233),
     (1.0, 2.0, -1.244524)],
)  # fmt: skip
def test_the_density_by_hand(u, scale, expected):
    found = standard(scale).log_prob(torch.tensor([[u]]))
    assert found.shape == (1,)
    assert found.item() == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_density_integrates_to_one(scale):
    policy = SquashedGaussian(torch.tensor([0.3]), torch.tensor([-0.5]), scale)
    u = torch.linspace(-9, 9, 20_001, dtype=torch.float64).unsqueeze(-1)
    action = (scale * u.tanh()).squeeze(-1)
    assert torch.trapezoid(policy.log_prob(u).exp(), action).item() == pytest.approx(1, abs=1e-4)


def test_it_is_summed_over_the_dimensions_and_a_draw_has_the_same():
    mean, log_std, noise = (torch.randn(7, 3) for _ in range(3))
    policy = SquashedGaussian(mean, log_std, scale=1.5)
    action, log_prob = policy.draw(noise)
    u = mean + log_std.exp() * noise
    torch.testing.assert_close(action, 1.5 * u.tanh())
    assert log_prob.shape == (7,)
    torch.testing.assert_close(log_prob, policy.log_prob(u), rtol=1e-4, atol=1e-4)
    single = [
        SquashedGaussian(mean[:, i : i + 1], log_std[:, i : i + 1], 1.5).log_prob(u[:, i : i + 1])
        for i in range(3)
    ]
    torch.testing.assert_close(policy.log_prob(u), sum(single))


def test_the_mode_is_where_the_mean_goes():
    policy = SquashedGaussian(torch.tensor([[0.5, -20.0]]), torch.ones(1, 2), scale=2.0)
    assert policy.mode().tolist() == [[pytest.approx(2 * math.tanh(0.5)), -2.0]]


def test_far_out_the_gradient_is_that_of_the_tail():
    # log density of tanh(u) for u -> +inf is -u²/2 + 2u + const: its slope at 20 is -20 + 2.
    u = torch.tensor([[20.0]], requires_grad=True)
    standard().log_prob(u).sum().backward()
    assert u.grad.item() == pytest.approx(-18.0)


def test_gradients_reach_the_mean_and_the_spread_through_a_draw():
    mean, log_std = (torch.zeros(1, 1, requires_grad=True) for _ in range(2))
    action, log_prob = SquashedGaussian(mean, log_std).draw(torch.tensor([[0.0]]))
    # At noise 0: tanh' = 1; log π = -log_std - const + 2 softplus(0) … its slope by log_std is -1.
    assert torch.autograd.grad(action.sum(), mean, retain_graph=True)[0].item() == 1.0
    assert torch.autograd.grad(log_prob.sum(), log_std)[0].item() == -1.0
