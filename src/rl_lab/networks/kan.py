"""Kolmogorov-Arnold networks (Liu et al. 2024): a learned function of one number on every edge.

Departures from the paper: the grid is fixed, so a layer is two matrix products; nothing is pruned.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_lab.core.options import Options, option
from rl_lab.core.spec import Space
from rl_lab.networks.mlp import as_vector, linear, vector_size


@dataclass(frozen=True, kw_only=True)
class KANConfig(Options):
    """Widths, and the splines of an edge."""

    type: str = option("kan", "Kolmogorov-Arnold network")
    hidden_dims: list[int] = option([32, 32], "width of each layer", low=1)
    grid: int = option(5, "intervals of a spline", low=1)
    k: int = option(3, "degree of a spline's polynomials: 3 is cubic", low=1)
    grid_range: float = option(
        3.0,
        "the grid reaches from its negative to it; outside, splines fade to 0 within `k` intervals",
        above=0,
    )


class KANLayer(nn.Module):
    """Sums of one function per input: a weight times SiLU, plus a B-spline."""

    def __init__(self, in_dim: int, out_dim: int, config: KANConfig) -> None:
        super().__init__()
        self.k = config.k
        knots = torch.arange(-config.k, config.grid + config.k + 1, dtype=torch.float32)
        width = 2 * config.grid_range / config.grid
        self.register_buffer("knots", knots * width - config.grid_range, persistent=False)
        self.base = linear(in_dim, out_dim, 1.0)
        self.spline = nn.Linear(in_dim * (config.grid + config.k), out_dim, bias=False)
        nn.init.normal_(self.spline.weight, std=0.1 / in_dim**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_dim] to [..., out_dim]."""
        assert isinstance(self.knots, Tensor)
        waves = b_splines(x, self.knots, self.k).flatten(-2)
        y: Tensor = self.base(functional.silu(x)) + self.spline(waves)
        return y


class KANEncoder(nn.Module):
    """Observation to features."""

    Config = KANConfig

    def __init__(self, config: KANConfig, space: Space) -> None:
        super().__init__()
        self.space = space
        widths = [vector_size(space), *config.hidden_dims]
        self.layers = nn.Sequential(*(KANLayer(*pair, config) for pair in pairwise(widths)))
        self.out_dim = widths[-1]

    def forward(self, obs: Tensor) -> Tensor:
        """[..., *obs] to [..., out_dim]."""
        features: Tensor = self.layers(as_vector(self.space, obs))
        return features


def b_splines(x: Tensor, knots: Tensor, degree: int) -> Tensor:
    """All B-splines of a degree at x [...], [..., knots - degree - 1], by Cox and de Boor.

    `knots` are evenly spaced. Between the first and last `degree` of them, the splines sum to 1.
    """
    x = x.unsqueeze(-1)
    found = ((x >= knots[:-1]) & (x < knots[1:])).to(x.dtype)
    for order in range(1, degree + 1):
        span = order * (knots[1] - knots[0])
        rising = (x - knots[: -order - 1]) / span * found[..., :-1]
        falling = (knots[order + 1 :] - x) / span * found[..., 1:]
        found = rising + falling
    return found
