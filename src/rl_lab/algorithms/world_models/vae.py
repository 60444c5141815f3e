"""A convolutional variational autoencoder: images to a few normally distributed numbers, and back.

Every convolution halves the image, every transposed one doubles it again, so the sides must be
multiples of 2 to the power of the number of layers.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rl_lab.core.errors import UserError
from rl_lab.core.spec import Observation, Space
from rl_lab.networks.cnn import is_grid_of_codes, is_image


class ConvVAE(nn.Module):
    """Convolutions of width 4 with stride 2 and padding 1, and their mirror image.

    Ha and Schmidhuber 2018 have 32, 64, 128, 256 channels too, no padding, and a decoder of its own
    widths (5, 5, 6, 6) behind a layer of 1,024: 4.35 million parameters where this has 1.78.
    """

    def __init__(self, space: Space, latent: int, channels: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(space.shape)
        self.scale = 1 / 255 if str(space.dtype) == "uint8" else 1.0
        sides = [side // 2 ** len(channels) for side in self.shape[1:]]
        self.smallest = (channels[-1], *sides)
        features = channels[-1] * sides[0] * sides[1]
        widths = [self.shape[0], *channels]
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for outer, inner in pairwise(widths):
            down += [nn.Conv2d(outer, inner, 4, 2, 1), nn.ReLU()]
            up = [nn.ConvTranspose2d(inner, outer, 4, 2, 1), nn.ReLU(), *up]
        self.down, self.up = nn.Sequential(*down), nn.Sequential(*up[:-1])
        self.mean, self.log_var = nn.Linear(features, latent), nn.Linear(features, latent)
        self.enter = nn.Linear(latent, features)

    def pixels(self, images: Tensor) -> Tensor:
        """Images [..., C, H, W] as numbers in [0, 1]."""
        return images.float() * self.scale

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images [..., C, H, W] to mean and logarithm of the variance, [..., latent]."""
        lead = images.shape[:-3]
        features = self.down(self.pixels(images).reshape(-1, *self.shape)).flatten(1)
        mean, log_var = self.mean(features), self.log_var(features)
        return mean.reshape(*lead, -1), log_var.reshape(*lead, -1)

    def decode(self, latent: Tensor) -> Tensor:
        """Latents [..., latent] to images [..., C, H, W] in [0, 1]."""
        features = self.enter(latent).reshape(-1, *self.smallest)
        return self.up(features).sigmoid().reshape(*latent.shape[:-1], *self.shape)


def draw(mean: Tensor, log_var: Tensor, noise: Tensor) -> Tensor:
    """A sample; `noise` is standard normal and of the same shape."""
    return mean + (0.5 * log_var).exp() * noise


def vae_loss(
    model: ConvVAE, images: Tensor, noise: Tensor, tolerance: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Squared error summed over an image, and the KL to a standard normal; means over images [B].

    A KL below `tolerance` nats per latent number, all of an image's together, costs nothing more.
    """
    mean, log_var = model.encode(images)
    decoded = model.decode(draw(mean, log_var, noise))
    error = (decoded - model.pixels(images)).square().sum((-3, -2, -1))
    kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(-1)
    paid = torch.maximum(kl, tolerance * mean.shape[-1])
    return (error + paid).mean(), {"reconstruction": error.mean(), "kl": kl.mean()}, {}


def require_image(observation: Observation, layers: int, id: str) -> Space:
    """The space of an image that so many layers can halve, or a `UserError`."""
    if not isinstance(observation, Space) or not is_image(observation):
        raise UserError(
            f"world_models looks at images, and '{id}' does not show one: use dreamer_v3"
        )
    if is_grid_of_codes(observation):
        raise UserError(f"world_models looks at images, and '{id}' shows a grid of codes")
    height, width = observation.shape[1:]
    if height % 2**layers or width % 2**layers:
        raise UserError(
            f"'{id}' shows {height} × {width} pixels, which {layers} layers cannot halve: use the "
            f"wrapper Resize, or fewer algorithm.channels"
        )
    return observation
