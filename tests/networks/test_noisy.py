"""Noisy layers: factorised noise that is an argument, and its mean without any."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.core.schema import HeadConfig, NetworkConfig
from rl_lab.core.spec import Box, Discrete, EnvSpec
from rl_lab.networks.encoder import AutoEncoderConfig
from rl_lab.networks.noisy import NoisyLinear, draw_noise, noise_size, through
from rl_lab.networks.numpy_policy import fast_values
from rl_lab.networks.q_network import QNetwork


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def box(size: int) -> Box:
    low = np.full(size, -np.inf, np.float32)
    return Box((size,), np.dtype(np.float32), low, -low)


def q_network(**options: object) -> QNetwork:
    encoder = AutoEncoderConfig(hidden_dims=[6], activation="relu")
    config = NetworkConfig(encoder=encoder, memory=None, critic=HeadConfig(hidden_dims=[5]))
    return QNetwork(config, EnvSpec("x", box(4), Discrete(3)), **options)


def test_a_layer_begins_as_in_the_paper():
    layer, bound = NoisyLinear(16, 400), 1 / 4
    for mean in (layer.weight, layer.bias):
        assert mean.abs().max() <= bound and mean.std().item() == pytest.approx(
            bound / math.sqrt(3), rel=0.15
        )
    for scale in (layer.weight_scale, layer.bias_scale):
        assert (scale == 0.5 / 4).all()


def test_the_noise_of_the_weights_is_an_outer_product():
    layer = NoisyLinear(3, 4)
    for scale in (layer.weight_scale, layer.bias_scale):
        nn.init.uniform_(scale, 0.5, 1.5)
    noise = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0, -1.0, 2.0])  # 3 of inputs, 4 of outputs
    bias = layer(torch.zeros(3), noise)
    weight = (layer(torch.eye(3), noise) - bias).T  # [out, in]
    torch.testing.assert_close((bias - layer.bias) / layer.bias_scale, noise[3:])
    found = (weight - layer.weight) / layer.weight_scale
    torch.testing.assert_close(found, torch.outer(noise[3:], noise[:3]))
    assert torch.linalg.matrix_rank(found, atol=1e-4) == 1


def test_without_noise_it_is_the_mean_of_those_with_noise():
    layer, x = NoisyLinear(3, 2), torch.randn(5, 3)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(layer(x, torch.zeros(5)), layer(x))
    drawn = layer(x, draw_noise((20_000, 1, 5), generator()))
    torch.testing.assert_close(drawn.mean(0), layer(x), atol=0.02, rtol=0)
    assert (drawn.std(0) > 0.1).all()


def test_the_numbers_are_signed_roots_of_normal_ones():
    noise, plain = draw_noise((100_000,), generator()), torch.randn(100_000, generator=generator())
    torch.testing.assert_close(noise * noise.abs(), plain)
    assert noise.mean().item() == pytest.approx(0, abs=0.02)
    assert noise.var().item() == pytest.approx(math.sqrt(2 / math.pi), abs=0.02)  # E|ε|


def test_the_global_generator_is_left_alone():
    model = q_network(noisy=True)
    before = torch.get_rng_state()
    model(torch.zeros(2, 4), model.draw_noise((2,), generator()))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_row_may_have_noise_of_its_own():
    model, obs = q_network(noisy=True, dueling=True), torch.randn(7, 4)
    noise = model.draw_noise((7,), generator())
    alone = torch.stack([model(*pair) for pair in zip(obs, noise, strict=True)])
    torch.testing.assert_close(model(obs, noise), alone)
    many = model.draw_noise((9, 7), generator(1))  # several draws for each row, encoded once
    torch.testing.assert_close(model(obs, many)[4], model(obs, many[4]))


def test_every_layer_of_both_heads_has_its_own_numbers():
    layers = [NoisyLinear(2, 3), nn.ReLU(), NoisyLinear(3, 1)]
    assert noise_size(layers) == 2 + 3 + 3 + 1
    noise, x = draw_noise((9,), generator()), torch.randn(4, 2)
    by_hand = layers[2](layers[0](x, noise[:5]).relu(), noise[5:])
    torch.testing.assert_close(through(layers, x, noise), by_hand)
    model, obs = q_network(noisy=True, dueling=True), torch.randn(200, 4)
    assert model.noise_sizes == [6 + 5 + 5 + 3, 6 + 5 + 5 + 1]
    noise = model.draw_noise((), generator())
    for changed in noise + torch.eye(len(noise)):  # one number at a time
        assert not torch.equal(model(obs, changed), model(obs, noise))


def test_only_heads_are_noisy_and_only_torch_runs_them():
    model = q_network(noisy=True)
    noisy = [name for name, each in model.named_modules() if isinstance(each, NoisyLinear)]
    assert noisy == ["advantage.0", "advantage.2"]
    assert fast_values(model) is None
    assert q_network().draw_noise((2,), generator()) is None and q_network().noise_scale() is None
    assert model.noise_scale().item() == pytest.approx(
        (30 * 0.5 / math.sqrt(6) + 15 * 0.5 / math.sqrt(5)) / 45
    )
