"""Action values: normaliser → encoder → head, or two heads that duel (Wang et al. 2016)."""

from typing import Any

from torch import Tensor, nn

from rl_lab.core.batch import ACTION_MASK
from rl_lab.core.spec import Discrete, EnvSpec
from rl_lab.networks.encoder import make_encoder
from rl_lab.networks.mlp import linear, mlp
from rl_lab.networks.model import HeadConfig, NetworkConfig, check_mask
from rl_lab.networks.normalizer import NormalizeObs, make_normalizer


class QNetwork(nn.Module):
    """The value of every action [..., A] of a Discrete space. Heads are made as `network.critic`.

    Dueling: Q = V + A − mean(A), so that V and A cannot trade a constant with each other.
    """

    def __init__(
        self,
        config: NetworkConfig,
        spec: EnvSpec,
        normalize_obs: NormalizeObs = "off",
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        assert isinstance(spec.action, Discrete)
        self.actions = spec.action.n
        self.is_masked = check_mask(spec)
        self.normalizer = make_normalizer(normalize_obs, spec.observation)
        self.encoder = make_encoder(config.encoder, spec.observation)
        width: Any = self.encoder.out_dim
        self.advantage = _head(config.critic, width, self.actions)
        self.value = _head(config.critic, width, 1) if dueling else None

    def forward(self, obs: Any) -> Tensor:
        """[..., *obs] to [..., A]. Forbidden actions have values too: see `mask`."""
        features = self.encoder(self.normalizer(obs))
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True)

    def mask(self, obs: Any) -> Tensor | None:
        """What the observation allows [..., A], if it says so."""
        mask: Tensor | None = obs[ACTION_MASK] if self.is_masked else None
        return mask


def _head(config: HeadConfig, in_dim: int, out_dim: int) -> nn.Sequential:
    width = [in_dim, *config.hidden_dims][-1]
    hidden = mlp(in_dim, config.hidden_dims, config.activation)
    return nn.Sequential(*hidden, linear(width, out_dim, gain=1.0))
