"""Several critics in one product: the same as one by one, and frozen where they must be."""

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.core.schema import HeadConfig, NetworkConfig
from rl_lab.core.spec import Box, Discrete, EnvSpec
from rl_lab.networks.ensemble import Ensemble, QEnsemble
from rl_lab.networks.mlp import ACTIVATIONS, MLPEncoderConfig
from rl_lab.networks.sac_policies import SoftActor

ENCODER = MLPEncoderConfig(hidden_dims=[6])


def box(size: int) -> Box:
    ones = np.ones(size, np.float32)
    return Box((size,), np.dtype(np.float32), -ones, ones)


def separate(ensemble: Ensemble, index: int, activation: str) -> nn.Sequential:
    """The same weights as an ordinary perceptron."""
    layers: list[nn.Module] = []
    for weight, bias in zip(ensemble.weights, ensemble.biases, strict=True):
        layer = nn.Linear(*weight.shape[1:])
        layer.weight.data, layer.bias.data = weight[index].T.clone(), bias[index, 0].clone()
        layers += [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [[], [6], [6, 5]])
@pytest.mark.parametrize("outputs", [1, 2])
def test_it_equals_separate_perceptrons_with_their_gradients(outputs, hidden, activation):
    ensemble = Ensemble(3, 4, hidden, outputs, activation)
    for bias in ensemble.biases:
        nn.init.normal_(bias)
    x = torch.randn(7, 4)
    out = ensemble(x)
    assert out.shape == (3, 7, outputs)
    out.square().sum().backward()
    for index in range(3):
        twin = separate(ensemble, index, activation)
        torch.testing.assert_close(out[index], twin(x))
        twin(x).square().sum().backward()
        for weight, layer in zip(ensemble.weights, twin[::2], strict=True):
            torch.testing.assert_close(weight.grad[index], layer.weight.grad.T)


def test_norm_and_masks_equal_those_of_separate_perceptrons():
    """Linear, mask, layer norm, activation (DroQ's order), by torch's own layers."""
    ensemble = Ensemble(3, 4, [6, 5], 1, "relu", norm=True)
    for each in (*ensemble.biases, *ensemble.scales, *ensemble.shifts):
        nn.init.normal_(each)
    x, generator = torch.randn(7, 4), torch.Generator().manual_seed(0)
    masks = ensemble.masks(7, 0.5, generator)
    out = ensemble(x, masks=masks)
    for index in range(3):
        first, _, second, _, last = separate(ensemble, index, "relu")
        y = x
        for layer, linear in enumerate((first, second)):
            norm = nn.LayerNorm(linear.out_features)
            norm.weight.data = ensemble.scales[layer][index, 0].clone()
            norm.bias.data = ensemble.shifts[layer][index, 0].clone()
            y = norm(linear(y) * masks[layer][:, index]).relu()
        torch.testing.assert_close(out[index], last(y))


def test_dropout_leaves_out_its_share_and_keeps_the_mean():
    ensemble = Ensemble(2, 4, [300, 200], 1, "relu")
    first, second = ensemble.masks(64, 0.25, torch.Generator().manual_seed(0))
    assert first.shape == (64, 2, 300) and second.shape == (64, 2, 200)
    assert first.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert not torch.equal(first[:, 0], first[:, 1]) and not torch.equal(first[0], first[1])
    assert ensemble.masks(64, 0.0, torch.Generator()) == ()


def test_a_masked_unit_says_nothing():
    ensemble = Ensemble(2, 4, [6], 1, "relu")
    nn.init.normal_(ensemble.biases[-1])
    silent = ensemble(torch.randn(7, 4), masks=(torch.zeros(7, 2, 6),))
    torch.testing.assert_close(silent, ensemble.biases[-1].expand(2, 7, 1))


def test_its_members_begin_differently():
    out = Ensemble(2, 4, [8], 1, "relu")(torch.randn(5, 4))
    assert not torch.allclose(out[0], out[1])


def test_frozen_critics_hand_a_gradient_to_the_action_only():
    network = NetworkConfig(encoder=ENCODER, critic=HeadConfig(hidden_dims=[8]))
    critic = QEnsemble(network, EnvSpec("e", box(3), box(2)), count=2)
    obs, action = torch.randn(5, 3), torch.randn(5, 2, requires_grad=True)
    free, frozen = critic(obs, action), critic(obs, action, frozen=True)
    assert free.shape == (2, 5)
    assert torch.equal(free, frozen)
    inputs = [action, *critic.parameters()]
    gradients = torch.autograd.grad(frozen.sum(), inputs, allow_unused=True)
    assert gradients[0].abs().sum() > 0
    assert all(each is None for each in gradients[1:])
    gradients = torch.autograd.grad(free.sum(), inputs, allow_unused=True)
    assert all(each is not None for each in gradients)


def test_discrete_critics_value_every_action():
    network = NetworkConfig(encoder=ENCODER, critic=HeadConfig(hidden_dims=[8]))
    critic = QEnsemble(network, EnvSpec("e", box(3), Discrete(4)), count=3)
    assert critic(torch.randn(5, 3)).shape == (3, 5, 4)


def test_an_actor_looks_through_a_lent_encoder_and_does_not_own_it():
    network = NetworkConfig(encoder=ENCODER, actor=HeadConfig(hidden_dims=[8]))
    spec = EnvSpec("e", box(3), box(2))
    critic = QEnsemble(network, spec, count=2)
    lent, own = SoftActor(network, spec, critic.encoder), SoftActor(network, spec)
    assert not any(name.startswith("encoder") for name, _ in lent.named_parameters())
    assert any(name.startswith("encoder") for name, _ in own.named_parameters())
    for actor, encoder in ((lent, critic.encoder), (own, own.encoder)):
        loss = actor(torch.randn(5, 3)).mode().sum()
        found = torch.autograd.grad(loss, list(encoder.parameters()), allow_unused=True)
        assert [each is None for each in found] == [actor is lent] * 2
