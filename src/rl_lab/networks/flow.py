"""A policy that bends noise into actions, by couplings whose volume is known (RealNVP).

Dinh et al. 2017 (arXiv:1605.08803); as a policy of soft actor-critics: Haarnoja et al. 2018
(arXiv:1804.02808). A Gaussian has one hill; this may have several.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rl_lab.core.distributions import HALF_LOG_TWO_PI, log_slope_of_tanh
from rl_lab.core.schema import HeadConfig
from rl_lab.core.spec import Box
from rl_lab.networks.mlp import linear, mlp

LARGEST_LOG_SCALE = 2.0  # of one coupling: it stretches or shrinks by a factor of 7 at most


class Coupling(nn.Module):
    """Stretches and shifts one half of u, by numbers made of the other half and of the features.

    The other half passes through, so that what was done can be undone, and its volume is a product.
    """

    def __init__(self, config: HeadConfig, features: int, size: int, *, moves_first: bool) -> None:
        """A single number has no halves: it is moved by the features alone."""
        super().__init__()
        half = size // 2
        self.border, self.moves_first = half, moves_first and half > 0
        moved = half if self.moves_first else size - half
        self.hidden = mlp(features + size - moved, config.hidden_dims, config.activation)
        # A small last layer: the first policy is the noise itself, squashed.
        width = [features + size - moved, *config.hidden_dims][-1]
        self.output = linear(width, 2 * moved, gain=0.01)

    def forward(self, u: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """u [..., A] moved, and the log volume [...] by which that stretched the space."""
        first, second = u[..., : self.border], u[..., self.border :]
        kept, moved = (second, first) if self.moves_first else (first, second)
        numbers = self.output(self.hidden(torch.cat([features, kept], dim=-1)))
        shift, log_scale = numbers.chunk(2, dim=-1)
        log_scale = LARGEST_LOG_SCALE * (log_scale / LARGEST_LOG_SCALE).tanh()
        moved = moved * log_scale.exp() + shift
        parts = (moved, kept) if self.moves_first else (kept, moved)
        return torch.cat(parts, dim=-1), log_scale.sum(-1)


@dataclass(frozen=True)
class SquashedFlow:
    """tanh of normal numbers that couplings have moved, one after the other, given the features."""

    couplings: Iterable[nn.Module]  # each a `Coupling`
    features: Tensor
    size: int

    def draw(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The action that normal numbers [..., A] become, and its log density [...]."""
        u, log_prob = noise, (-0.5 * noise.square() - HALF_LOG_TWO_PI).sum(-1)
        for coupling in self.couplings:
            u, log_volume = coupling(u, self.features)
            log_prob = log_prob - log_volume
        return u.tanh(), log_prob - log_slope_of_tanh(u).sum(-1)

    def mode(self) -> Tensor:
        """The action of noise 0: the deterministic action."""
        zeros = self.features.new_zeros(*self.features.shape[:-1], self.size)
        return self.draw(zeros)[0]


class FlowHead(nn.Module):
    """Features to a flow over actions in [-1, 1]; couplings take turns with the halves."""

    def __init__(self, config: HeadConfig, in_dim: int, action: Box, couplings: int) -> None:
        super().__init__()
        self.size = action.size
        self.couplings = nn.ModuleList(
            Coupling(config, in_dim, action.size, moves_first=index % 2 == 1)
            for index in range(couplings)
        )

    def forward(self, features: Tensor) -> SquashedFlow:
        """[..., D] to a distribution with batch shape [...]."""
        return SquashedFlow(self.couplings, features, self.size)
