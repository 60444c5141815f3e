"""Denoisers of chunks of actions [B, T, A]: an MLP, and a 1-D U-Net with FiLM.

Both take the noise level (or time) and a vector that says what was seen. Only diffusion and flow
policies use them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from rl_lab.core.batch import Obs
from rl_lab.core.options import Options, option
from rl_lab.core.tree import map_leaves

KERNEL = 5  # of the U-Net's convolutions over time
LONGEST_PERIOD = 10_000.0  # of the sinusoids that stand for a noise level


@dataclass(frozen=True, kw_only=True)
class DenoiserConfig(Options):
    """Kind and widths of the network that is asked for every denoising step."""

    type: Literal["mlp", "unet"] = option(
        "mlp", "mlp: residual layers on the whole chunk; unet: convolutions over its time"
    )
    hidden_dim: int = option(256, "mlp: width of the layers", low=1)
    blocks: int = option(3, "mlp: residual blocks", low=1)
    channels: list[int] = option(
        [32, 64, 128], "unet: channels of each resolution, from fine to coarse", low=1
    )
    groups: int = option(8, "unet: groups of the group normalization; they divide channels", low=1)
    step_dim: int = option(64, "width of the embedding of the noise level; even", low=2)

    def __post_init__(self) -> None:
        """Groups are of equal size."""
        super().__post_init__()
        if self.step_dim % 2:
            raise ValueError(f"step_dim must be even, got {self.step_dim}")
        if self.type == "unet" and (bad := [c for c in self.channels if c % self.groups]):
            raise ValueError(f"channels must be multiples of groups {self.groups}, got {bad[0]}")


def sinusoids(level: Tensor, size: int) -> Tensor:
    """Noise levels [B] as sines and cosines [B, size] of geometrically spaced periods."""
    half = size // 2
    rates = torch.arange(half, device=level.device) * (-math.log(LONGEST_PERIOD) / max(half - 1, 1))
    angles = level.float().unsqueeze(-1) * rates.exp()
    return torch.cat([angles.sin(), angles.cos()], -1)


class StepEmbedding(nn.Module):
    """A noise level as a vector."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.layers = nn.Sequential(nn.Linear(size, 4 * size), nn.Mish(), nn.Linear(4 * size, size))

    def forward(self, level: Tensor) -> Tensor:
        """[B] to [B, size]."""
        vector: Tensor = self.layers(sinusoids(level, self.size))
        return vector


class Residual(nn.Module):
    """x + MLP(LayerNorm(x)), whose hidden units are scaled and shifted by the condition (FiLM)."""

    def __init__(self, width: int, condition: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rise = nn.Linear(width, width)
        self.film = nn.Linear(condition, 2 * width)
        self.fall = nn.Linear(width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, width]"""
        scale, shift = self.film(condition).chunk(2, -1)
        hidden = nn.functional.mish(self.rise(self.norm(x)) * (1 + scale) + shift)
        return x + self.fall(hidden)


class MLPDenoiser(nn.Module):
    """The whole chunk as one vector, through residual blocks."""

    def __init__(self, config: DenoiserConfig, horizon: int, size: int, seen: int) -> None:
        super().__init__()
        width, condition = config.hidden_dim, seen + config.step_dim
        self.embed = StepEmbedding(config.step_dim)
        self.first = nn.Linear(horizon * size + condition, width)
        self.blocks = nn.ModuleList(Residual(width, condition) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, horizon * size)

    def forward(self, noisy: Tensor, level: Tensor, seen: Tensor) -> Tensor:
        """[B, T, A], [B] and [B, D] to a prediction [B, T, A]."""
        condition = torch.cat([self.embed(level), seen], -1)
        x = self.first(torch.cat([noisy.flatten(1), condition], -1))
        for block in self.blocks:
            x = block(x, condition)
        predicted: Tensor = self.last(nn.functional.mish(self.norm(x)))
        return predicted.view_as(noisy)


def convolution(in_dim: int, out_dim: int, groups: int) -> nn.Sequential:
    """Over time, with group normalization: averages of weights suit it, unlike batch statistics."""
    layer = nn.Conv1d(in_dim, out_dim, KERNEL, padding=KERNEL // 2)
    return nn.Sequential(layer, nn.GroupNorm(groups, out_dim), nn.Mish())


class ConvolutionBlock(nn.Module):
    """Two convolutions with a shortcut; the condition scales and shifts channels in between."""

    def __init__(self, in_dim: int, out_dim: int, condition: int, groups: int) -> None:
        super().__init__()
        self.first = convolution(in_dim, out_dim, groups)
        self.film = nn.Linear(condition, 2 * out_dim)
        self.second = convolution(out_dim, out_dim, groups)
        self.shortcut = nn.Conv1d(in_dim, out_dim, 1) if in_dim != out_dim else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, C, T]"""
        scale, shift = self.film(nn.functional.mish(condition)).unsqueeze(-1).chunk(2, 1)
        hidden = self.second(self.first(x) * (1 + scale) + shift)
        short: Tensor = self.shortcut(x)
        return hidden + short


class UNet(nn.Module):
    """Convolutions over time: down to few frames with many channels, and up again with shortcuts.

    A chunk whose length the resolutions do not divide is padded with its last frame.
    """

    def __init__(self, config: DenoiserConfig, horizon: int, size: int, seen: int) -> None:
        super().__init__()
        channels, groups = config.channels, config.groups
        condition = seen + config.step_dim
        self.multiple = 2 ** (len(channels) - 1)
        self.embed = StepEmbedding(config.step_dim)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        width = size
        for index, each in enumerate(channels):
            self.down.append(_pair(width, each, condition, groups))
            last = index + 1 == len(channels)
            self.shrink.append(nn.Identity() if last else nn.Conv1d(each, each, 3, 2, 1))
            width = each
        self.middle = _pair(width, width, condition, groups)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for each, finer in zip(channels[:0:-1], channels[-2::-1], strict=True):
            self.up.append(_pair(2 * each, finer, condition, groups))
            self.grow.append(nn.ConvTranspose1d(finer, finer, 4, 2, 1))
        self.last = nn.Sequential(
            convolution(channels[0], channels[0], groups), nn.Conv1d(channels[0], size, 1)
        )

    def forward(self, noisy: Tensor, level: Tensor, seen: Tensor) -> Tensor:
        """[B, T, A], [B] and [B, D] to a prediction [B, T, A]."""
        condition = torch.cat([self.embed(level), seen], -1)
        length = noisy.shape[1]
        x = pad(noisy.transpose(1, 2), (0, -length % self.multiple), mode="replicate")
        shortcuts = []
        for blocks, shrink in zip(self.down, self.shrink, strict=True):
            x = _through(blocks, x, condition)
            shortcuts.append(x)
            x = shrink(x)
        x = _through(self.middle, x, condition)
        for blocks, grow in zip(self.up, self.grow, strict=True):
            x = grow(_through(blocks, torch.cat([x, shortcuts.pop()], 1), condition))
        predicted: Tensor = self.last(x)[..., :length]
        return predicted.transpose(1, 2)


def _pair(in_dim: int, out_dim: int, condition: int, groups: int) -> nn.ModuleList:
    return nn.ModuleList(
        [
            ConvolutionBlock(in_dim, out_dim, condition, groups),
            ConvolutionBlock(out_dim, out_dim, condition, groups),
        ]
    )


def _through(blocks: Any, x: Tensor, condition: Tensor) -> Tensor:
    for block in blocks:
        x = block(x, condition)
    return x


KINDS: dict[str, type[MLPDenoiser | UNet]] = {"mlp": MLPDenoiser, "unet": UNet}


class ChunkNetwork(nn.Module):
    """The encoder of what was seen, and the denoiser of what is done then."""

    def __init__(
        self, encoder: nn.Module, config: DenoiserConfig, shape: Sequence[int], history: int
    ) -> None:
        """`shape` is (prediction horizon, numbers of an action); `history` frames are seen."""
        super().__init__()
        self.encoder, self.history = encoder, history
        width: Any = encoder.out_dim
        self.denoiser = KINDS[config.type](config, shape[0], shape[1], history * width)

    def condition(self, obs: Obs) -> Tensor:
        """Frames [B, To, …] to what the denoiser knows of them, [B, To · D]."""
        features: Tensor = self.encoder(map_leaves(lambda leaf: leaf.flatten(0, 1), obs))
        return features.reshape(-1, self.history * features.shape[-1])

    def forward(self, noisy: Tensor, level: Tensor, obs: Obs) -> Tensor:
        """A prediction [B, Tp, A] for noisy chunks, their levels [B], and frames [B, To, …]."""
        predicted: Tensor = self.denoiser(noisy, level, self.condition(obs))
        return predicted
