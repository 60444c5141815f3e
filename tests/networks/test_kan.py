"""B-splines against arithmetic and scipy, and the encoder that is made of them."""

import numpy as np
import pytest
import torch

from rl_lab.core.spec import Box, Discrete
from rl_lab.networks.encoder import make_encoder
from rl_lab.networks.kan import KANConfig, KANLayer, b_splines


def test_hats_by_hand():
    # degree 1, knots -1, 0, 1, 2, 3: hats around 0, 1 and 2; 0.25 is between the first two
    found = b_splines(torch.tensor([0.25, 1.0, 2.5]), torch.arange(-1.0, 4.0), 1)
    assert found.tolist() == [[0.75, 0.25, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]]


@pytest.mark.parametrize("degree", [1, 2, 3, 5])
def test_splines_sum_to_one_inside_of_the_grid_and_to_zero_far_away(degree):
    layer = KANLayer(1, 1, KANConfig(k=degree, grid=4, grid_range=2.0))
    inside = b_splines(torch.linspace(-2, 2, 101), layer.knots, degree)
    assert inside.shape == (101, 4 + degree) and (inside >= 0).all()
    torch.testing.assert_close(inside.sum(-1), torch.ones(101))
    assert b_splines(torch.tensor([-50.0, 50.0]), layer.knots, degree).abs().sum() == 0


@pytest.mark.needs("scipy")
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_splines_are_those_of_scipy(degree):
    from scipy.interpolate import BSpline

    knots = torch.arange(-4.0, 9.0, dtype=torch.float64) * 0.5
    coefficients = torch.randn(len(knots) - degree - 1, dtype=torch.float64)
    x = torch.linspace(-0.5, 2, 61, dtype=torch.float64)  # inside: scipy extrapolates
    expected = BSpline(knots.numpy(), coefficients.numpy(), degree)(x.numpy())
    found = b_splines(x, knots, degree) @ coefficients
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_a_layer_learns_a_function_of_one_number_per_input():
    torch.manual_seed(0)
    layer = KANLayer(2, 1, KANConfig(grid=8))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    x = torch.rand(512, 2) * 4 - 2
    wanted = (2 * x[:, :1]).sin() + x[:, 1:].square()
    for _ in range(300):
        loss = (layer(x) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.01  # a linear layer is left with a variance of 1.9


@pytest.mark.parametrize("space", ["box", "discrete"])
def test_the_encoder_reads_vectors_and_indices(space):
    bounds = np.full(3, -np.inf), np.full(3, np.inf)
    space = Box((3,), np.dtype(np.float32), *bounds) if space == "box" else Discrete(3)
    encoder = make_encoder(KANConfig(hidden_dims=[7, 5], k=2), space)
    obs = (
        torch.zeros(4, 2, dtype=torch.long) if isinstance(space, Discrete) else torch.ones(4, 2, 3)
    )
    assert encoder(obs).shape == (4, 2, 5) and encoder.out_dim == 5
    assert "knots" not in "".join(encoder.state_dict())


def test_impossible_splines_are_refused():
    for options in ({"grid": 0}, {"k": 0}, {"grid_range": 0.0}, {"hidden_dims": [0]}):
        with pytest.raises(ValueError, match=next(iter(options))):
            KANConfig(**options)
