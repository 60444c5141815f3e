"""The policy of soft actor-critics: tanh of a Gaussian whose spread depends on what is seen."""

from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.core.batch import ACTION_MASK
from rl_lab.core.distributions import Categorical, SquashedGaussian
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, Discrete, EnvSpec
from rl_lab.networks.encoder import make_encoder
from rl_lab.networks.ensemble import in_place
from rl_lab.networks.mlp import linear, mlp
from rl_lab.networks.model import HeadConfig, NetworkConfig, PolicyHead, check_mask

LOG_STD_RANGE = (-20.0, 2.0)  # as in the paper's code: beyond it an exponential is of no use


class SquashedHead(nn.Module):
    """Features to a squashed Gaussian over actions in [-1, 1]."""

    def __init__(self, config: HeadConfig, in_dim: int, action: Box, log_std: float) -> None:
        super().__init__()
        self.hidden = in_place(mlp(in_dim, config.hidden_dims, config.activation))
        # A small last layer: the first policy is the same everywhere, and near to uniform.
        self.output = linear([in_dim, *config.hidden_dims][-1], 2 * action.size, gain=0.01)
        nn.init.constant_(self.output.bias[action.size :], log_std)

    def forward(self, features: Tensor) -> SquashedGaussian:
        """[..., D] to a distribution with batch shape [...]."""
        mean, log_std = self.output(self.hidden(features)).chunk(2, dim=-1)
        return SquashedGaussian(mean, log_std.clamp(*LOG_STD_RANGE))


class Lent:
    """An encoder that another network trains: it can be looked through, not changed from here."""

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder
        self.out_dim: Any = encoder.out_dim

    @torch.no_grad()
    def __call__(self, obs: Any) -> Tensor:
        """Features without a gradient."""
        features: Tensor = self.encoder(obs)
        return features


class SoftActor(nn.Module):
    """Observation to a distribution: squashed Gaussian for a Box, categorical for indices."""

    def __init__(self, config: NetworkConfig, spec: EnvSpec, lent: nn.Module | None = None) -> None:
        """`lent`: the encoder of another network, instead of one of its own."""
        super().__init__()
        own = make_encoder(config.encoder, spec.observation) if lent is None else Lent(lent)
        self.encoder = own
        width: Any = own.out_dim
        self.is_masked = check_mask(spec)
        self.head: nn.Module
        if isinstance(spec.action, Box) and len(spec.action.shape) == 1:
            self.head = SquashedHead(config.actor, width, spec.action, config.log_std_init)
        elif isinstance(spec.action, Discrete):
            self.head = PolicyHead(config.actor, width, spec.action, config.log_std_init)
        else:
            kind = f"{type(spec.action).__name__} actions of shape {spec.action.shape}"
            raise UserError(f"'{spec.id}' has {kind}: sac takes a flat Box or Discrete; use ppo")

    def forward(self, obs: Any) -> SquashedGaussian | Categorical:
        """[B, …] to a distribution with batch shape [B]."""
        features = self.encoder(obs)
        if self.is_masked:
            masked: Categorical = self.head(features, obs[ACTION_MASK])
            return masked
        policy: SquashedGaussian | Categorical = self.head(features)
        return policy
