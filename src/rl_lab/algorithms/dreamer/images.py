"""Images for world models: convolutions down to a few pixels, and the way back.

`strided` ones are those of PlaNet and Dreamer v1 and v2, `pooled` ones those of v3's authors.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from rl_lab.algorithms.dreamer.rssm import BlockLinear
from rl_lab.algorithms.dreamer.world_config import WorldModelConfig
from rl_lab.core.spec import Space
from rl_lab.networks.cnn import is_grid_of_codes, is_image
from rl_lab.networks.mlp import ACTIVATIONS, RMS_EPS, linear, mlp

_SMALLEST = 4  # pixels that the convolutions leave of an image
_MULTIPLES = (2, 3, 4, 4)  # of `channels`, layer by layer, if pooled


def is_picture(space: Space) -> bool:
    """True for an image that convolutions can make smaller. Smaller ones and codes are vectors."""
    is_large = is_image(space) and min(space.shape[1:]) > _SMALLEST
    return is_large and not is_grid_of_codes(space)


class ImageEncoder(nn.Module):
    """Convolutions that halve the image until about 4 pixels are left."""

    def __init__(self, space: Space, config: WorldModelConfig) -> None:
        super().__init__()
        self.scale = 1 / 255 if str(space.dtype) == "uint8" else 1.0
        pooled = config.dimensions().convolutions == "pooled"
        layers: list[nn.Module] = []
        width = space.shape[0]
        for channels in layer_channels(space, config):
            if pooled:
                layers += [nn.Conv2d(width, channels, 5, 1, 2), nn.MaxPool2d(2)]
            else:
                layers.append(nn.Conv2d(width, channels, 4, 2, 1))
            layers += [_image_norm(channels, config), ACTIVATIONS[config.activation]()]
            width = channels
        self.layers = nn.Sequential(*layers)
        with torch.no_grad():
            self.out_dim = self.layers(torch.zeros(1, *space.shape)).numel()

    def forward(self, image: Tensor) -> Tensor:
        """[..., C, H, W] to [..., features]."""
        flat = image.reshape(-1, *image.shape[-3:]).float() * self.scale - 0.5
        return self.layers(_channels_last(flat)).reshape(*image.shape[:-3], self.out_dim)


class ImageDecoder(nn.Module):
    """Features to a picture in [0, 1]; its loss is the squared distance."""

    def __init__(self, space: Space, config: WorldModelConfig) -> None:
        super().__init__()
        self.shape = tuple(space.shape)
        self.scale = 1 / 255 if str(space.dtype) == "uint8" else 1.0
        self.channels = layer_channels(space, config)
        start = [-(-each // 2 ** len(self.channels)) for each in self.shape[1:]]
        self.start = (self.channels[-1] if self.channels else 1, *start)
        # A Gaussian's, as in PlaNet, v1 and v2; v3 takes the whole square.
        self.loss_scale = 1.0 if config.symlog_inputs else 0.5

    def loss(self, predicted: Tensor, image: Tensor) -> Tensor:
        """Squared distance, summed over the picture: [...]."""
        distance = (predicted - image.float() * self.scale).square().sum((-3, -2, -1))
        return self.loss_scale * distance

    def _cut(self, image: Tensor, lead: torch.Size) -> Tensor:
        """The picture's own size, and the leading axes of the features."""
        return image[..., : self.shape[1], : self.shape[2]].reshape(*lead, *self.shape)


class StridedDecoder(ImageDecoder):
    """One layer to the smallest image, then transposed convolutions."""

    def __init__(self, in_dim: int, space: Space, config: WorldModelConfig) -> None:
        super().__init__(space, config)
        width, height, breadth = self.start
        self.enter = linear(in_dim, width * height * breadth, 1.0)
        layers: list[nn.Module] = []
        for out in self.channels[-2::-1]:
            layers += [nn.ConvTranspose2d(width, out, 4, 2, 1), _image_norm(out, config)]
            layers.append(ACTIVATIONS[config.activation]())
            width = out
        if self.channels:
            layers.append(nn.ConvTranspose2d(width, self.shape[0], 4, 2, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """[..., F] to [..., C, H, W]."""
        image = self.layers(_channels_last(self.enter(features).reshape(-1, *self.start)))
        return self._cut(image + 0.5, features.shape[:-1])


class PooledDecoder(ImageDecoder):
    """v3's: memory and latent enter apart, the memory in blocks; then doubling and convolving.

    Each block of the memory gives its own channels of the smallest image.
    """

    def __init__(self, deter: int, stoch_dim: int, space: Space, config: WorldModelConfig) -> None:
        super().__init__(space, config)
        sizes, kind = config.dimensions(), config.activation
        width, height, breadth = self.start
        pixels = width * height * breadth
        self.deter = deter
        self.enter_deter = BlockLinear(deter, pixels, sizes.blocks)
        self.enter_stoch = mlp(stoch_dim, [2 * sizes.units], kind, config.norm)
        self.stoch_pixels = linear(2 * sizes.units, pixels, 1.0)
        layers: list[nn.Module] = [_image_norm(width, config), ACTIVATIONS[kind]()]
        for out in self.channels[-2::-1]:
            layers += [Doubled(), nn.Conv2d(width, out, 5, 1, 2), _image_norm(out, config)]
            layers.append(ACTIVATIONS[kind]())
            width = out
        layers += [Doubled(), nn.Conv2d(width, self.shape[0], 5, 1, 2), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """[..., F] to [..., C, H, W]."""
        flat = features.reshape(-1, features.shape[-1])
        deter, stoch = flat[:, : self.deter], flat[:, self.deter :]
        pixels = self.enter_deter(deter) + self.stoch_pixels(self.enter_stoch(stoch))
        image = self.layers(_channels_last(pixels.reshape(-1, *self.start)))
        return self._cut(image, features.shape[:-1])


class Doubled(nn.Module):
    """Twice as high and wide: every pixel four times."""

    def forward(self, image: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C, 2 H, 2 W]."""
        return interpolate(image, scale_factor=2.0, mode="nearest")


class ChannelRMSNorm(nn.Module):
    """RMS normalization over the channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        """[B, C, H, W]."""
        return image * (image.square().mean(1, keepdim=True) + RMS_EPS).rsqrt() * self.weight


def layer_channels(space: Space, config: WorldModelConfig) -> list[int]:
    """The channels that each convolution of an encoder gives."""
    sizes, size, count = config.dimensions(), min(space.shape[1:]), 0
    while size > _SMALLEST:
        count, size = count + 1, size // 2
    if sizes.convolutions == "strided":
        return [sizes.channels * 2**index for index in range(count)]
    return [sizes.channels * each for each in _MULTIPLES[max(len(_MULTIPLES) - count, 0) :]]


def _channels_last(images: Tensor) -> Tensor:
    """The same images [B, C, H, W], laid out in memory as convolutions on a CPU like them."""
    return images.contiguous(memory_format=torch.channels_last)


def _image_norm(channels: int, config: WorldModelConfig) -> nn.Module:
    """Of each pixel if `rms`, of a whole image if `layer`."""
    if config.norm == "rms":
        return ChannelRMSNorm(channels)
    return nn.Identity() if config.norm == "none" else nn.GroupNorm(1, channels)
