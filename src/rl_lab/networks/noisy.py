"""Linear layers whose weights have learned, factorised Gaussian noise (Fortunato et al. 2018).

The random numbers are an argument (arXiv:1706.10295, section 3): layers draw nothing by themselves,
so a gradient step is a pure function and a resumed run meets the very same noise.
"""

import math
from collections.abc import Iterable

import torch
from torch import Generator, Tensor, nn

INITIAL_SCALE = 0.5  # σ₀ of the paper


class NoisyLinear(nn.Module):
    """y = (μ + σ ⊙ ε) x + b, where ε is the outer product of one number per output and per input.

    Made as in the paper: means uniform in ±1/√inputs, σ all the same.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        bound, scale = 1 / math.sqrt(in_dim), INITIAL_SCALE / math.sqrt(in_dim)
        self.weight = nn.Parameter(torch.empty(out_dim, in_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_dim).uniform_(-bound, bound))
        self.weight_scale = nn.Parameter(torch.full((out_dim, in_dim), scale))
        self.bias_scale = nn.Parameter(torch.full((out_dim,), scale))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """[..., in] to [..., out]. `noise` [in + out] is for all rows, or [..., in + out] for each.

        Without any it is the mean. No matrix of noise is made: (σ ⊙ u vᵀ) x = u ⊙ (σ (v ⊙ x)).
        """
        mean = nn.functional.linear(x, self.weight, self.bias)
        if noise is None:
            return mean
        inner, outer = noise.split([self.in_dim, self.out_dim], -1)
        return mean + outer * nn.functional.linear(x * inner, self.weight_scale, self.bias_scale)


def draw_noise(size: tuple[int, ...], generator: Generator) -> Tensor:
    """Numbers for `NoisyLinear`: sign(ε) √|ε| of standard normal ones."""
    raw = torch.randn(size, generator=generator)
    return raw.sign() * raw.abs().sqrt()


def noise_size(layers: Iterable[nn.Module]) -> int:
    """How many random numbers the noisy ones of these layers take."""
    return sum(each.in_dim + each.out_dim for each in layers if isinstance(each, NoisyLinear))


def through(layers: Iterable[nn.Module], x: Tensor, noise: Tensor | None) -> Tensor:
    """Layers one after the other; the noisy ones take their part of `noise` in this order."""
    used = 0
    for layer in layers:
        if isinstance(layer, NoisyLinear):
            size = layer.in_dim + layer.out_dim
            x = layer(x, None if noise is None else noise[..., used : used + size])
            used += size
        else:
            x = layer(x)
    return x
