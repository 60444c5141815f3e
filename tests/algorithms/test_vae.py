"""The convolutional VAE: its loss by hand, sizes of images, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.algorithms.world_models.vae import ConvVAE, draw, require_image, vae_loss
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, scalar
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.spec import Box, Dict, Discrete


def image(channels=1, side=16, dtype="uint8") -> Box:
    shape = (channels, side, side)
    high = np.full(shape, 255 if dtype == "uint8" else 1)
    return Box(shape, np.dtype(dtype), np.zeros(shape), high)


class Known(nn.Module):
    """Encodes and decodes as told."""

    def __init__(self, mean, log_var, decoded):
        super().__init__()
        self.mean, self.log_var, self.decoded = mean, log_var, decoded

    def pixels(self, images):
        return images

    def encode(self, images):
        return self.mean, self.log_var

    def decode(self, latent):
        self.latent = latent
        return self.decoded


def test_the_loss_by_hand():
    # Two images of 1 × 1 × 2 pixels, two latents, nothing free.
    #   errors: (1 − 0)² + (0.5 − 0)² = 1.25 and 0: mean 0.625
    #   KL of N(1, 1): 0.5 · 1 = 0.5, of N(0, e²): 0.5 · (e² − 1 − 2) = 2.19453; other one: 0
    model = Known(
        torch.tensor([[1.0, 0.0], [0.0, 0.0]]),
        torch.tensor([[0.0, 2.0], [0.0, 0.0]]),
        torch.zeros(2, 1, 1, 2),
    )
    images = torch.tensor([[[[1.0, 0.5]]], [[[0.0, 0.0]]]])
    noise = torch.tensor([[2.0, 1.0], [0.0, -1.0]])
    loss, metrics, _ = vae_loss(model, images, noise, torch.tensor(0.0))
    kl = 0.5 + 0.5 * (math.e**2 - 3)
    assert metrics["reconstruction"].item() == pytest.approx(0.625)
    assert metrics["kl"].item() == pytest.approx(kl / 2)
    assert loss.item() == pytest.approx(0.625 + kl / 2)
    # z = mean + exp(log_var / 2) · noise: 1 + 2, and e · 1
    assert model.latent[0].tolist() == pytest.approx([3.0, math.e])
    # 1.5 nats per number are 3 per image: the first image has 2.69, the second 0. Both pay 3.
    assert vae_loss(model, images, noise, torch.tensor(1.5))[0].item() == pytest.approx(3.625)
    # 1 nat per number: the first pays its own 2.69, the second 2. Not per number: 0.5 < 1 < 2.19.
    assert vae_loss(model, images, noise, torch.tensor(1.0))[0].item() == pytest.approx(
        0.625 + (kl + 2) / 2
    )


def test_below_the_tolerance_the_kl_has_no_gradient():
    mean = torch.tensor([[0.1, 0.0]], requires_grad=True)
    model = Known(mean, torch.zeros(1, 2), torch.zeros(1, 1, 1, 1))
    arguments = (torch.zeros(1, 1, 1, 1), torch.zeros(1, 2))
    loss, _, _ = vae_loss(model, *arguments, torch.tensor(0.5))
    assert torch.autograd.grad(loss, mean)[0].abs().sum() == 0
    loss, _, _ = vae_loss(model, *arguments, torch.tensor(0.0))
    assert torch.autograd.grad(loss, mean)[0][0].tolist() == pytest.approx([0.1, 0.0])


@pytest.mark.parametrize(
    ("side", "channels"), [(16, [4, 8, 8, 8]), (32, [4, 8, 8, 8]), (24, [4, 4])]
)
def test_images_of_many_sizes_come_back_in_their_own(side, channels):
    vae = ConvVAE(image(3, side), 5, channels)
    frames = torch.randint(0, 256, (2, 7, 3, side, side), dtype=torch.uint8)
    mean, log_var = vae.encode(frames)
    assert mean.shape == log_var.shape == (2, 7, 5)
    decoded = vae.decode(draw(mean, log_var, torch.randn(2, 7, 5)))
    assert decoded.shape == frames.shape
    assert decoded.min() > 0 and decoded.max() < 1
    assert vae.pixels(frames).max() <= 1
    assert torch.allclose(vae.encode(frames[1])[0], mean[1], atol=1e-6)


def test_the_layers_of_the_paper():
    vae = ConvVAE(image(3, 64), 32, [32, 64, 128, 256])
    convolutions = [layer for layer in vae.down if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [32, 64, 128, 256]
    assert vae.smallest == (256, 4, 4)
    assert isinstance(vae.up[-1], nn.ConvTranspose2d)  # no rectifier before the sigmoid


def test_floats_are_taken_as_they_are():
    vae = ConvVAE(image(dtype="float32"), 2, [2])
    assert vae.pixels(torch.full((1, 16, 16), 0.5)).max() == 0.5


def test_what_is_no_image_or_cannot_be_halved_is_refused():
    square = image(3, 64)
    assert require_image(square, 4, "Task-v0") is square
    for other in (Discrete(3), Dict({"a": square})):
        with pytest.raises(UserError, match="'Task-v0' does not show one"):
            require_image(other, 4, "Task-v0")
    with pytest.raises(UserError, match="84 × 84 pixels, which 4 layers cannot halve"):
        require_image(image(3, 84), 4, "Task-v0")
    require_image(image(3, 84), 2, "Task-v0")
    with pytest.raises(UserError, match="'Task-v0' shows a grid of codes"):
        require_image(image(3, 8), 2, "Task-v0")


def test_it_learns_a_dot():
    torch.manual_seed(0)
    vae = ConvVAE(image(1, 16), 2, [8, 16])
    frames = torch.zeros(16, 1, 16, 16)
    for place in range(16):
        frames[place, 0, place // 4 * 4 : place // 4 * 4 + 4, place % 4 * 4 : place % 4 * 4 + 4] = (
            255
        )
    learner = Learner(vae, vae_loss, OptimizerConfig())
    rates = {"learning_rate": scalar(5e-3, "cpu"), "max_grad_norm": scalar(10.0, "cpu")}
    errors = []
    for _ in range(100):
        noise = torch.randn(16, 2)
        found = learner.step(frames.to(torch.uint8), noise, scalar(0.5, "cpu"), **rates)
        errors.append(found.metrics["reconstruction"].item())
    assert errors[-1] < 0.5 * errors[0]
