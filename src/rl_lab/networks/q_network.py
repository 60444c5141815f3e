"""Action values: normalizer → encoder → head, or two heads that duel (Wang et al. 2016).

A head may say a whole distribution of returns for each action, and its layers may be noisy.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Generator, Tensor, cat, nn

from rl_lab.core.batch import ACTION_MASK, Obs
from rl_lab.core.schema import HeadConfig, NetworkConfig
from rl_lab.core.spec import Discrete, EnvSpec
from rl_lab.core.value_distributions import ValueDistribution, support
from rl_lab.networks.actor_critic import check_mask
from rl_lab.networks.encoder import make_encoder, width_of
from rl_lab.networks.mlp import ACTIVATIONS, linear, mlp
from rl_lab.networks.noisy import NoisyLinear, draw_noise, noise_size, through
from rl_lab.networks.normalizer import NormalizeObs, make_normalizer


class QNetwork(nn.Module):
    """The value of every action [..., A] of a Discrete space. Heads are made as `network.critic`.

    Dueling of a distribution is for each of its `count` atoms or quantiles by itself (Rainbow,
    Hessel et al.).
    """

    def __init__(
        self,
        config: NetworkConfig,
        spec: EnvSpec,
        normalize_obs: NormalizeObs = "off",
        *,
        dueling: bool = False,
        noisy: bool = False,
        distribution: ValueDistribution = "none",
        count: int = 1,
        value_range: Sequence[float] = (-10.0, 10.0),
    ) -> None:
        """`value_range` is where the atoms of c51 lie."""
        super().__init__()
        assert isinstance(spec.action, Discrete)
        self.actions, self.count = spec.action.n, count
        self.distribution, self.value_range = distribution, tuple(value_range)
        self.is_masked = check_mask(spec)
        self.normalizer = make_normalizer(normalize_obs, spec.observation)
        self.encoder = make_encoder(config.encoder, spec.observation)
        width = width_of(self.encoder)
        self.advantage = q_head(config.critic, width, self.actions * count, noisy=noisy)
        self.value = q_head(config.critic, width, count, noisy=noisy) if dueling else None
        heads = [self.advantage] if self.value is None else [self.advantage, self.value]
        self.noise_sizes = [noise_size(head) for head in heads]

    def forward(self, obs: Obs, noise: Tensor | None = None, *, raw: bool = False) -> Tensor:
        """[..., *obs] to [..., A]. Forbidden actions have values too: see `mask`.

        `noise` [sum(noise_sizes)], or one for each row, is for noisy layers. `raw`: what the values
        are the means of, [..., A, K]: logits of the atoms, or quantiles.
        """
        features = self.encoder(self.normalizer(obs))
        parts = [None, None] if noise is None else [*noise.split(self.noise_sizes, -1), None]
        outputs = through(self.advantage, features, parts[0])
        actions = -1  # the axis
        if self.distribution != "none":
            outputs, actions = outputs.unflatten(-1, (self.actions, self.count)), -2
        if self.value is not None:
            value = through(self.value, features, parts[1])
            value = value if actions == -1 else value.unsqueeze(actions)
            outputs = duel(value, outputs, actions)
        return outputs if raw else self.expected(outputs)

    def expected(self, outputs: Tensor) -> Tensor:
        """The values [..., A] that raw outputs mean."""
        if self.distribution == "none":
            return outputs
        if self.distribution == "quantile":
            return outputs.mean(-1)
        return (outputs.softmax(-1) * self.atoms(outputs)).sum(-1)

    def atoms(self, like: Tensor) -> Tensor:
        """Where the atoms of c51 lie [K], on the device of another tensor."""
        return support(self.value_range, self.count, like.device)

    def mask(self, obs: Obs) -> Tensor | None:
        """What the observation allows [..., A], if it says so."""
        mask: Tensor | None = obs[ACTION_MASK] if self.is_masked else None
        return mask

    def draw_noise(self, size: tuple[int, ...], generator: Generator) -> Tensor | None:
        """Random numbers [*size, …] for all noisy layers; None, and nothing drawn, without any."""
        numbers = sum(self.noise_sizes)
        if not numbers:
            return None
        return draw_noise((*size, numbers), generator).to(next(self.parameters()).device)

    def noise_scale(self) -> Tensor | None:
        """How much noise is left: the mean of |σ| over the noisy weights; None without any."""
        scales = [each.weight_scale for each in self.modules() if isinstance(each, NoisyLinear)]
        return cat([each.abs().flatten() for each in scales]).mean() if scales else None


def duel(value: Tensor, advantage: Tensor, axis: int = -1) -> Tensor:
    """Q = V + A − mean(A) over actions, so that V and A cannot trade a constant with each other."""
    return value + advantage - advantage.mean(axis, keepdim=True)


def q_head(config: HeadConfig, in_dim: int, out_dim: int, *, noisy: bool = False) -> nn.Sequential:
    """Layers made as `network.critic` says."""
    widths = [in_dim, *config.hidden_dims]
    if not noisy:
        hidden = mlp(in_dim, config.hidden_dims, config.activation)
        return nn.Sequential(*hidden, linear(widths[-1], out_dim, gain=1.0))
    layers: list[nn.Module] = []
    for width, following in pairwise(widths):
        layers += [NoisyLinear(width, following), ACTIVATIONS[config.activation]()]
    return nn.Sequential(*layers, NoisyLinear(widths[-1], out_dim))
