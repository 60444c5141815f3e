"""What algorithms that learn from a dataset share: phases, buffers, a policy, weighted regression.

Updates take place in an offline phase, from a buffer of type `offline`; the same algorithms go on
online with a replay buffer, or a union of both (docs/algorithms/offline.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl_lab.algorithms.replay import TransitionConfig
from rl_lab.core.batch import ACTION_MASK, Obs
from rl_lab.core.distributions import Categorical, DiagonalGaussian
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.schema import HeadConfig, NetworkConfig
from rl_lab.core.spec import Box, Discrete, EnvSpec
from rl_lab.networks.actor_critic import PolicyHead, check_mask
from rl_lab.networks.encoder import make_encoder
from rl_lab.networks.ensemble import QEnsemble, in_place
from rl_lab.networks.mlp import linear, mlp

Policy = DiagonalGaussian | Categorical
PHASES: list[dict[str, Any]] = [  # 100,000 updates, evaluated every 5,000
    {
        "name": "offline",
        "type": "offline",
        "duration_updates": 100_000,
        "hooks": [{"update": 5_000}, "evaluate"],
    }
]
LOG_STD_RANGE = (-5.0, 2.0)
LAYERS = {"hidden_dims": [256, 256], "activation": "relu"}
NETWORK = {
    "encoder": {"type": "auto", "hidden_dims": [], "image": "conv"},
    "actor": LAYERS,
    "critic": LAYERS,
}


def offline_defaults(online: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Defaults of other blocks: a dataset, whose `path` the user gives, and normalized frames.

    `online` are those of the algorithm that this one is a version of.
    """
    blocks = {"network": NETWORK, **(online or {})}
    buffers = {"data": {"type": "offline"}, "replay": {"type": "uniform"}}
    return {**blocks, "buffers": buffers, "environment": {"num_envs": 1, "normalize_obs": True}}


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(TransitionConfig):
    """Options of algorithms that learn from a dataset first. Any float may be a schedule."""

    default_phases: ClassVar[Sequence[Mapping[str, Any]]] = PHASES
    learning_starts: int = option(0, "environment steps of random actions before learning online")
    reward_scale: float = option(1.0, "factor of every reward that is learned from", above=0)
    target_rate: float = option(
        5e-3, "how far target critics move towards the critics (tau)", above=0, high=1
    )
    max_grad_norm: float = option(1000.0, "largest norm of a gradient, for outliers")


class GaussianHead(nn.Module):
    """Features to a Gaussian with its mean in [-1, 1] and one standard deviation for all states.

    It is not squashed: actions at the bounds of the data have a finite likelihood.
    """

    def __init__(self, config: HeadConfig, in_dim: int, action: Box, log_std: float) -> None:
        super().__init__()
        self.hidden = in_place(mlp(in_dim, config.hidden_dims, config.activation))
        self.output = linear([in_dim, *config.hidden_dims][-1], action.size, gain=0.01)
        self.log_std = nn.Parameter(torch.full((action.size,), log_std))

    def forward(self, features: Tensor) -> DiagonalGaussian:
        """[..., D] to a distribution with batch shape [...]."""
        mean = self.output(self.hidden(features)).tanh()
        return DiagonalGaussian(mean, self.log_std.clamp(*LOG_STD_RANGE))


class OfflinePolicy(nn.Module):
    """Observation to a distribution whose likelihood is maximized: a Gaussian, or categorical."""

    def __init__(self, config: NetworkConfig, spec: EnvSpec, name: str) -> None:
        super().__init__()
        self.encoder = make_encoder(config.encoder, spec.observation)
        self.is_masked = check_mask(spec)
        width: Any = self.encoder.out_dim
        self.head: nn.Module
        if isinstance(spec.action, Box) and len(spec.action.shape) == 1:
            self.head = GaussianHead(config.actor, width, spec.action, config.log_std_init)
        elif isinstance(spec.action, Discrete):
            self.head = PolicyHead(config.actor, width, spec.action, config.log_std_init)
        else:
            found = f"{type(spec.action).__name__} actions of shape {spec.action.shape}"
            raise UserError(f"'{spec.id}' has {found}: {name} takes a flat Box or Discrete")

    def forward(self, obs: Obs) -> Policy:
        """[B, …] to a distribution with batch shape [B]."""
        features = self.encoder(obs)
        given = (features, obs[ACTION_MASK]) if self.is_masked else (features,)
        policy: Policy = self.head(*given)
        return policy


def bounded_sample(policy: Policy, noise: Tensor) -> Tensor:
    """The action that random numbers choose; those of a Gaussian are clipped to [-1, 1]."""
    action = policy.pick(noise)
    return action if isinstance(policy, Categorical) else action.clamp(-1.0, 1.0)


def taken_q(critic: QEnsemble, obs: Obs, action: Tensor) -> Tensor:
    """Q [N, B] of the actions of the data by every critic."""
    q: Tensor = critic(obs, action)
    if critic.of_pairs:
        return q
    return q.gather(-1, action.expand(len(q), -1).unsqueeze(-1)).squeeze(-1)


def weighted_regression(
    policy: Policy, action: Tensor, advantage: Tensor, beta: Tensor, max_weight: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """−w log π(a|s) with w = exp(β A), cut off at `max_weight`; β = 0 is behavior cloning.

    Actions of the data are the only ones whose likelihood grows, the better ones faster.
    """
    weight = torch.minimum((beta * advantage).exp(), max_weight)
    log_prob = policy.log_prob(action)
    fixed = log_prob.detach()
    metrics = {"advantage": advantage.mean(), "log_prob": fixed.mean(), "weight": weight.mean()}
    metrics["weight_clipped"] = (weight >= max_weight).float().mean()
    return -(weight * log_prob).mean(), metrics
