"""The policies of soft actor-critics: tanh of a Gaussian whose spread depends on what is seen.

Its noise may be a function of the state that is kept for a while (gSDE, Raffin et al. 2021,
arXiv:2005.05719), and a flow (`networks/flow.py`) may take its place.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from rl_lab.core.batch import ACTION_MASK, Obs
from rl_lab.core.distributions import Categorical, SquashedGaussian
from rl_lab.core.errors import UserError
from rl_lab.core.schema import HeadConfig, NetworkConfig
from rl_lab.core.spec import Box, Discrete, EnvSpec
from rl_lab.networks.actor_critic import PolicyHead, check_mask
from rl_lab.networks.encoder import make_encoder, width_of
from rl_lab.networks.ensemble import in_place
from rl_lab.networks.flow import FlowHead, SquashedFlow
from rl_lab.networks.mlp import linear, mlp

SoftPolicy = SquashedGaussian | SquashedFlow | Categorical
PolicyKind = Literal["gaussian", "gsde", "flow"]
LOG_STD_RANGE = (-20.0, 2.0)  # as in the paper's code: beyond it an exponential is of no use
LEAST_VARIANCE = 1e-6
MATRIX, AGE = "matrix", "age"  # of gSDE's noise, for each environment
MEAN_BOUND = (
    2.0  # of gSDE, before tanh: beyond it the action is at its end and noise cannot be seen
)


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


class ExploringHead(nn.Module):
    """Features to a squashed Gaussian whose noise is linear in the last hidden layer.

    With one matrix of normal numbers the noise is a function of the state: the same state, the same
    action, and what is tried is smooth. Over all matrices it is the Gaussian of `forward`. Noise
    does not teach the layers below, and the mean is bounded, as in the paper's code.
    """

    def __init__(self, config: HeadConfig, in_dim: int, action: Box, log_std: float) -> None:
        super().__init__()
        self.hidden = in_place(mlp(in_dim, config.hidden_dims, config.activation))
        self.width = [in_dim, *config.hidden_dims][-1]
        self.mean = linear(self.width, action.size, gain=0.01)
        # Units of size 1 make noise of this size together, however many they are.
        start = log_std - 0.5 * math.log(self.width)
        self.log_std = nn.Parameter(torch.full((self.width, action.size), start))

    def forward(self, features: Tensor) -> SquashedGaussian:
        """[..., D] to a distribution with batch shape [...]."""
        units = self.hidden(features)
        variance = units.detach().square() @ (2 * self.log_std).exp() + LEAST_VARIANCE
        return SquashedGaussian(self._mean(units), (0.5 * variance.log()).clamp(*LOG_STD_RANGE))

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """A noise matrix for each environment, drawn at its first step, and its age in steps."""
        device = self.log_std.device
        age = torch.zeros(batch, dtype=torch.int64, device=device)
        return {MATRIX: torch.zeros(batch, *self.log_std.shape, device=device), AGE: age}

    def explore(
        self, features: Tensor, state: dict[str, Tensor], every: int, rng: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions [N, A], each by its own matrix, and the next state.

        A matrix is drawn again every `every` steps; at 0 only when an episode begins.
        """
        age = state[AGE]
        redrawn = age % every == 0 if every else age == 0
        fresh = torch.empty_like(state[MATRIX]).normal_(generator=rng)
        matrix = torch.where(redrawn[:, None, None], fresh, state[MATRIX])
        return self.noisy_action(features, matrix), {MATRIX: matrix, AGE: age + 1}

    def noisy_action(self, features: Tensor, matrix: Tensor) -> Tensor:
        """Actions [N, A], each by its own matrix [N, width, A] of normal numbers."""
        units = self.hidden(features)
        noise = (units.unsqueeze(1) @ (matrix * self.log_std.exp())).squeeze(1)
        return (self._mean(units) + noise).tanh()

    def _mean(self, units: Tensor) -> Tensor:
        """Bounded smoothly: cut off hard, a mean beyond the bound would have no gradient back."""
        return MEAN_BOUND * (self.mean(units) / MEAN_BOUND).tanh()


class Lent:
    """An encoder that another network trains: it can be looked through, not changed from here."""

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder
        self.out_dim = width_of(encoder)

    @torch.no_grad()
    def __call__(self, obs: Obs) -> Tensor:
        """Features without a gradient."""
        features: Tensor = self.encoder(obs)
        return features


class SoftActor(nn.Module):
    """Observation to a distribution: squashed Gaussian or flow for a Box, else categorical."""

    def __init__(
        self,
        config: NetworkConfig,
        spec: EnvSpec,
        lent: nn.Module | None = None,
        *,
        kind: PolicyKind = "gaussian",
        couplings: int = 2,
    ) -> None:
        """`lent`: the encoder of another network, instead of one of its own."""
        super().__init__()
        own = make_encoder(config.encoder, spec.observation) if lent is None else Lent(lent)
        self.encoder = own
        width = own.out_dim if isinstance(own, Lent) else width_of(own)
        self.is_masked = check_mask(spec)
        self.head: nn.Module
        if isinstance(spec.action, Box) and len(spec.action.shape) == 1:
            if kind == "flow":
                self.head = FlowHead(config.actor, width, spec.action, couplings)
            else:
                head = SquashedHead if kind == "gaussian" else ExploringHead
                self.head = head(config.actor, width, spec.action, config.log_std_init)
        elif kind != "gaussian":
            raise UserError(f"algorithm.policy={kind} needs a flat Box of actions, not '{spec.id}'")
        elif isinstance(spec.action, Discrete):
            self.head = PolicyHead(config.actor, width, spec.action, config.log_std_init)
        else:
            found = f"{type(spec.action).__name__} actions of shape {spec.action.shape}"
            raise UserError(f"'{spec.id}' has {found}: sac takes a flat Box or Discrete; use ppo")

    def forward(self, obs: Obs) -> SoftPolicy:
        """[B, …] to a distribution with batch shape [B]."""
        features = self.encoder(obs)
        if self.is_masked:
            masked: Categorical = self.head(features, obs[ACTION_MASK])
            return masked
        policy: SoftPolicy = self.head(features)
        return policy
