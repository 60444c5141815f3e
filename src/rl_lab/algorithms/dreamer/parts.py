"""Alternative parts of world models, named under `components:` (docs/plugins.md)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.algorithms.dreamer.actor import LatentActor
from rl_lab.algorithms.dreamer.rssm import RSSM, RSSMShape
from rl_lab.algorithms.dreamer.world_config import WorldModelConfig
from rl_lab.algorithms.dreamer.world_model import (
    Decoder,
    Scalar,
    VectorDecoder,
    joined_vectors,
    vectors_of,
)
from rl_lab.algorithms.world_models.mdn_rnn import MDNRNN
from rl_lab.core.errors import UserError
from rl_lab.core.returns import lambda_return, multi_step_return
from rl_lab.core.spec import Space
from rl_lab.networks.memory.recurrent import GRU, RecurrentConfig
from rl_lab.networks.mlp import linear, mlp, vector_size

# ------------------------------------------------------------------ representations


class Identity(nn.Module):
    """Vectors as they are (or through symlog): nothing is learned."""

    def __init__(self, spaces: Mapping[str, Space], config: WorldModelConfig) -> None:
        super().__init__()
        self.vectors, self.symlog = vectors_of(spaces), config.symlog_inputs
        if len(self.vectors) < len(spaces):
            raise UserError("components.representation takes vectors here, not images")
        self.out_dim = sum(map(vector_size, self.vectors.values()))

    def forward(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Parts of an observation, [..., *part] each, to [..., E]."""
        return joined_vectors(self.vectors, parts, symlogs=self.symlog)


class LinearRepresentation(Identity):
    """One linear layer on vectors."""

    def __init__(
        self, spaces: Mapping[str, Space], config: WorldModelConfig, *, units: int | None = None
    ) -> None:
        super().__init__(spaces, config)
        width = units or config.dimensions().units
        self.layer = linear(self.out_dim, width, 1.0)
        self.out_dim = width

    def forward(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Parts of an observation, [..., *part] each, to [..., E]."""
        return self.layer(super().forward(parts))


# ------------------------------------------------------------------ dynamics


class ResidualMemory(nn.Module):
    """The memory changes by what a small network adds to it; there are no gates."""

    def __init__(self, shape: RSSMShape, stoch_dim: int, action_dim: int) -> None:
        super().__init__()
        inputs = shape.deter + stoch_dim + action_dim
        self.layers = mlp(inputs, [shape.hidden], shape.activation, shape.norm)
        self.output = linear(shape.hidden, shape.deter, 0.1)

    def forward(self, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
        """deter [B, D], stoch [B, S], action [B, A] to the next deter [B, D], within (-1, 1)."""
        change = self.output(self.layers(torch.cat([deter, stoch, action], -1)))
        return torch.tanh(deter + change)


class ResidualRSSM(RSSM):
    """A recurrent state-space model with a residual memory instead of a GRU."""

    def __init__(self, shape: RSSMShape, action_dim: int, embed_dim: int) -> None:
        super().__init__(shape, action_dim, embed_dim)
        self.memory = ResidualMemory(shape, self.stoch_dim, action_dim)


class MixtureGRU(MDNRNN):
    """World Models' M with a GRU instead of an LSTM."""

    def __init__(self, latent: int, action: int, hidden: int, mixtures: int) -> None:
        super().__init__(latent, action, hidden, mixtures)
        self.memory = GRU(RecurrentConfig(type="gru", hidden_dim=hidden), latent + action)


# ------------------------------------------------------------------ decoder, actor and critic


class _LinearPart(VectorDecoder):
    """One linear layer for a part that is a vector."""

    def __init__(self, in_dim: int, space: Space, config: WorldModelConfig) -> None:
        super().__init__(in_dim, space, config)
        self.layers = nn.Sequential()
        self.output = linear(in_dim, vector_size(space), 1.0)


class LinearDecoder(Decoder):
    """Vectors by one linear layer each; images as ever."""

    def make_part(
        self, space: Space, config: WorldModelConfig, deter: int, stoch: int
    ) -> nn.Module:
        """The decoder of one part."""
        made = super().make_part(space, config, deter, stoch)
        return _LinearPart(deter + stoch, space, config) if type(made) is VectorDecoder else made


class SizedActor(LatentActor):
    """The policy with a width and a depth of its own."""

    def __init__(
        self,
        in_dim: int,
        space: Space,
        config: WorldModelConfig,
        *,
        units: int | None = None,
        layers: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(in_dim, space, sized(config, units, layers), **more)


class SizedCritic(Scalar):
    """The values with a width and a depth of their own."""

    def __init__(
        self,
        in_dim: int,
        config: WorldModelConfig,
        *,
        units: int | None = None,
        layers: int | None = None,
    ) -> None:
        super().__init__(in_dim, sized(config, units, layers))


def sized(config: WorldModelConfig, units: int | None, layers: int | None) -> WorldModelConfig:
    """A config of its own size, whose heads are this wide and this deep."""
    sizes = config.dimensions()._asdict()
    changed = {"units": units or sizes["units"], "layers": layers or sizes["layers"]}
    return replace(config, size="own", **{**sizes, **changed})


# ------------------------------------------------------------------ returns


def n_step(
    reward: Tensor,
    next_value: Tensor,
    continues: Tensor,
    *,
    gamma: float | Tensor,
    lambda_: float | Tensor,
    truncated: Tensor | None = None,
    steps: int = 5,
) -> Tensor:
    """`steps` rewards, then a value."""
    return multi_step_return(
        reward, next_value, continues, gamma=gamma, steps=steps, truncated=truncated
    )


def monte_carlo(
    reward: Tensor,
    next_value: Tensor,
    continues: Tensor,
    *,
    gamma: float | Tensor,
    lambda_: float | Tensor,
    truncated: Tensor | None = None,
) -> Tensor:
    """All rewards up to the end of the sequence, and the value there."""
    return lambda_return(
        reward, next_value, continues, gamma=gamma, lambda_=1.0, truncated=truncated
    )
