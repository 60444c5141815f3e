"""Convolutional encoders for images [..., C, H, W] of any size.

uint8 images are divided by 255; others are taken as they are. Weights are orthogonal.
"""

import logging
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from rl_lab.core.errors import UserError
from rl_lab.core.options import Options, option
from rl_lab.core.spec import Box, Space
from rl_lab.networks.mlp import linear, one_hot

log = logging.getLogger(__name__)
_SMALLEST_PICTURE = 16  # pixels: integers on a smaller grid are taken as codes
_SMALLEST_NATURE = 36  # pixels: below this the three layers of the paper leave nothing


@dataclass(frozen=True, kw_only=True)
class NatureConfig(Options):
    """The three convolutions of Mnih et al. 2015."""

    type: str = option("nature", "three convolutions, for images (Mnih et al. 2015)")
    features: int = option(512, "width of the layer after the convolutions", low=1)


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(Options):
    """The residual network of Espeholt et al. 2018."""

    type: str = option("impala", "residual convolutions, for images (Espeholt et al. 2018)")
    channels: list[int] = option(
        [16, 32, 32], "channels of each block; each halves the image", low=1, not_empty=True
    )
    features: int = option(256, "width of the layer after the convolutions", low=1)


@dataclass(frozen=True, kw_only=True)
class ConvConfig(Options):
    """Convolutions that halve the image, each with layer normalization."""

    type: str = option("conv", "normalized convolutions that halve the image, for images")
    channels: list[int] = option(
        [64, 64, 64], "channels of each layer; each halves the image", low=1, not_empty=True
    )
    kernel: int = option(3, "width of each convolution; odd", low=1)
    features: int = option(256, "width of the layer after the convolutions", low=1)

    def __post_init__(self) -> None:
        """A kernel needs a middle."""
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be an odd number, got {self.kernel}")


@dataclass(frozen=True, kw_only=True)
class GridConfig(Options):
    """A grid whose numbers are names of things, not brightness."""

    type: str = option("grid", "convolutions over one-hot cells, for uint8 grids of codes")
    codes: int = option(
        32, "different codes per channel; larger ones are not seen (a warning)", low=1
    )
    features: int = option(128, "width of the layer after the convolutions", low=1)


class ImageEncoder(nn.Module):
    """Convolutions, then one linear layer: what the encoders of images share."""

    def __init__(self, space: Space, layers: nn.Module, features: int) -> None:
        super().__init__()
        self.scale = 1 / 255 if str(space.dtype) == "uint8" else 1.0
        self.layers = layers
        with torch.no_grad():
            width = layers(torch.zeros(1, *space.shape)).numel()
        self.output = linear(width, features)
        self.out_dim = features

    def forward(self, obs: Tensor) -> Tensor:
        """[..., C, H, W] to [..., features]."""
        lead = obs.shape[:-3]
        images = obs.reshape(-1, *obs.shape[-3:]).float() * self.scale
        features = relu(self.output(self.layers(images).flatten(1)))
        return features.reshape(*lead, self.out_dim)


class NatureCNN(ImageEncoder):
    """8×8, 4×4 and 3×3 convolutions with strides 4, 2, 1.

    Images under 36 pixels would vanish in them: those get three 3×3 convolutions instead.
    """

    Config = NatureConfig

    def __init__(self, config: NatureConfig, space: Space) -> None:
        channels, height, width = image_shape(space, "nature")
        if min(height, width) >= _SMALLEST_NATURE:
            sizes = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
        else:
            sizes = [(32, 3, 1, 1), (64, 3, 2, 1), (64, 3, 1, 1)]
        layers: list[nn.Module] = []
        for out, kernel, stride, padding in sizes:
            layers += [convolution(channels, out, kernel, stride, padding), nn.ReLU()]
            channels = out
        super().__init__(space, nn.Sequential(*layers), config.features)


class ConvEncoder(ImageEncoder):
    """Strided convolutions with layer normalization: common with soft actor-critics.

    The statistics of an image are its own, so a batch's other rows do not change its features.
    """

    Config = ConvConfig

    def __init__(self, config: ConvConfig, space: Space) -> None:
        channels = image_shape(space, "conv")[0]
        layers: list[nn.Module] = []
        for out in config.channels:
            layers.append(convolution(channels, out, config.kernel, 2, config.kernel // 2))
            layers += [nn.GroupNorm(1, out), nn.ReLU()]
            channels = out
        super().__init__(space, nn.Sequential(*layers), config.features)


class GridCNN(nn.Module):
    """Two 3×3 convolutions over cells, each channel of which is a one-hot code (MiniGrid)."""

    Config = GridConfig

    def __init__(self, config: GridConfig, space: Space) -> None:
        super().__init__()
        channels, height, width = image_shape(space, "grid")
        self.codes = config.codes
        self.warned = False
        self.layers = nn.Sequential(
            convolution(channels * config.codes, 32, 3, 1, 1),
            nn.ReLU(),
            convolution(32, 64, 3, 1, 1),
            nn.ReLU(),
        )
        self.output = linear(64 * height * width, config.features)
        self.out_dim = config.features

    def forward(self, obs: Tensor) -> Tensor:
        """[..., C, H, W] to [..., features]."""
        lead = obs.shape[:-3]
        if not self.warned and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._check_codes(obs)  # while acting: learning sees the same frames
        cells = one_hot(obs.reshape(-1, *obs.shape[-3:]), self.codes)  # [B, C, H, W, codes]
        planes = cells.movedim(-1, 2).flatten(1, 2)
        features = relu(self.output(self.layers(planes).flatten(1)))
        return features.reshape(*lead, self.out_dim)

    def _check_codes(self, obs: Tensor) -> None:
        """Warn once about a code that has no plane."""
        largest = int(obs.max()) if obs.numel() else 0
        if largest >= self.codes:
            self.warned = True
            log.warning(
                "the observation has the code %d, and the encoder `grid` only tells those below %d "
                "apart: set network.encoder.type=grid network.encoder.codes=%d or more, or a type "
                "for pictures",
                largest,
                self.codes,
                largest + 1,
                extra={"once": "grid codes"},
            )


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, 1, 1)
        self.second = convolution(channels, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W]."""
        return x + self.second(relu(self.first(relu(x))))


class ImpalaBlock(nn.Module):
    """A convolution, half the size, two residual parts."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.enter = convolution(in_channels, channels, 3, 1, 1)
        self.residuals = nn.Sequential(Residual(channels), Residual(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, channels, H / 2, W / 2], rounded up."""
        smaller = max_pool2d(self.enter(x), kernel_size=3, stride=2, padding=1)
        return self.residuals(smaller)


class ImpalaCNN(ImageEncoder):
    """Residual blocks: slower than `nature`, better where images have much detail."""

    Config = ImpalaConfig

    def __init__(self, config: ImpalaConfig, space: Space) -> None:
        entering = [image_shape(space, "impala")[0], *config.channels[:-1]]
        blocks = [ImpalaBlock(*pair) for pair in zip(entering, config.channels, strict=True)]
        super().__init__(space, nn.Sequential(*blocks, nn.ReLU()), config.features)


def convolution(
    in_channels: int, out_channels: int, kernel: int, stride: int, padding: int
) -> nn.Conv2d:
    """A convolution with orthogonal weights and zero bias."""
    layer = nn.Conv2d(in_channels, out_channels, kernel, stride, padding)
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def is_image(space: Space) -> bool:
    """True for three axes: channels, height, width."""
    return isinstance(space, Box) and len(space.shape) == 3


def is_grid_of_codes(space: Space) -> bool:
    """True for integer grids that are no pictures: less than 16 cells wide, or codes below 255.

    MiniGrid, for example, says which thing of which color is in each of 7×7 cells.
    """
    if not is_image(space) or not np.issubdtype(space.dtype, np.integer):
        return False
    assert isinstance(space, Box)
    return min(space.shape[1:]) < _SMALLEST_PICTURE or float(space.high.max()) < 255


def image_shape(space: Space, name: str) -> tuple[int, int, int]:
    """Channels, height and width, or a `UserError` that names the encoder."""
    if not is_image(space):
        shape = getattr(space, "shape", ())
        raise UserError(
            f"network.encoder.type {name} needs an image, but the observation has the shape "
            f"{tuple(shape)}: use mlp"
        )
    channels, height, width = space.shape
    return channels, height, width
