"""A world model: encoder → state-space model → decoder, reward and continuation.

Works on sequences in arrival form [T, B, …]: each row is a frame with the action that led to it and
the reward that came with it. Any observation: vectors, images, indices, or a dict of them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from rl_lab.core.actions import as_vector, vector_size
from rl_lab.core.batch import (
    ACTION_MASK,
    OBS,
    PREVIOUS_ACTION,
    RESET,
    REWARD,
    TERMINATED,
    Batch,
)
from rl_lab.core.spec import Dict, Discrete, EnvSpec, MultiDiscrete, Observation, Space
from rl_lab.core.symlog import symexp, symexp_bins, symlog, two_hot_loss, two_hot_mean
from rl_lab.networks.images import ImageEncoder, PooledDecoder, StridedDecoder, is_picture
from rl_lab.networks.mlp import linear, mlp
from rl_lab.networks.rssm import RSSM, RSSMShape, State
from rl_lab.networks.world_config import WorldModelConfig


class Head(nn.Module):
    """Layers and one output: what predicts rewards, values and the like from features."""

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        config: WorldModelConfig,
        *,
        layers: int | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = config.dimensions()
        hidden = [sizes.units] * (layers or sizes.layers)
        self.layers = mlp(in_dim, hidden, config.activation, config.norm)
        self.output = linear(sizes.units, out_dim, gain)

    def forward(self, features: Tensor) -> Tensor:
        """[..., F] to [..., out]."""
        return self.output(self.layers(features))


class Scalar(Head):
    """A head for one number: itself, its symlog, or weights of bins, which begin as exactly 0."""

    bins: Tensor

    def __init__(self, in_dim: int, config: WorldModelConfig, *, layers: int | None = None) -> None:
        bins = symexp_bins()
        count, gain = (len(bins), 0.0) if config.two_hot else (1, 1.0)
        super().__init__(in_dim, count, config, layers=layers, gain=gain)
        self.two_hot, self.symlog = config.two_hot, config.symlog_scalars
        self.register_buffer("bins", bins, persistent=False)

    def mean(self, features: Tensor) -> Tensor:
        """What it says, [...]."""
        raw = self(features)
        if self.two_hot:
            return two_hot_mean(raw, self.bins)
        return symexp(raw.squeeze(-1)) if self.symlog else raw.squeeze(-1)

    def loss(self, features: Tensor, *targets: Tensor) -> tuple[Tensor, ...]:
        """For each of the targets [...]: cross-entropy, or half the square (of symlogs), [...]."""
        raw = self(features)
        if self.two_hot:
            log_probs = raw.log_softmax(-1)
            return tuple(two_hot_loss(log_probs, each, self.bins) for each in targets)
        wanted = map(symlog, targets) if self.symlog else targets
        return tuple(0.5 * (raw.squeeze(-1) - each).square() for each in wanted)


class VectorDecoder(Head):
    """Features to a vector or to indices."""

    def __init__(self, in_dim: int, space: Space, config: WorldModelConfig) -> None:
        super().__init__(in_dim, vector_size(space), config)
        self.space = space
        self.symlog = config.symlog_inputs

    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Half the squared distance (through symlog) or, of indices, the cross-entropy: [...]."""
        wanted = as_vector(self.space, target)
        if isinstance(self.space, Discrete):
            return -(wanted * predicted.log_softmax(-1)).sum(-1)
        if isinstance(self.space, MultiDiscrete):
            parts = zip(
                wanted.split(self.space.nvec, -1), predicted.split(self.space.nvec, -1), strict=True
            )
            return torch.stack([-(w * p.log_softmax(-1)).sum(-1) for w, p in parts]).sum(0)
        return 0.5 * (predicted - (symlog(wanted) if self.symlog else wanted)).square().sum(-1)


class Seen(NamedTuple):
    """What the model made of a sequence. All [T, B, …]."""

    states: State
    posterior: Tensor
    prior: Tensor
    losses: dict[str, Tensor]  # decoder parts, reward and continuation: each [T, B]


class WorldModel(nn.Module):
    """Everything that is learned about the world; what to do in it is another's."""

    def __init__(self, config: WorldModelConfig, spec: EnvSpec) -> None:
        super().__init__()
        sizes = config.dimensions()
        self.config, self.action = config, spec.action
        self.spaces = parts_of(spec.observation)
        encoders: dict[str, Any] = {}
        vectors = {key: each for key, each in self.spaces.items() if not is_picture(each)}
        for key, space in self.spaces.items():
            if key not in vectors:
                encoders[_name(key)] = ImageEncoder(space, config)
        embed = sum(each.out_dim for each in encoders.values())
        self.vectors = vectors
        if vectors:
            width = sum(map(vector_size, vectors.values()))
            hidden = [sizes.units] * sizes.layers
            encoders["vectors"] = mlp(width, hidden, config.activation, config.norm)
            embed += sizes.units
        self.encoders = nn.ModuleDict(encoders)
        shape = RSSMShape(
            deter=sizes.deter,
            hidden=sizes.hidden,
            stoch=sizes.stoch,
            classes=sizes.classes,
            blocks=sizes.blocks,
            layers=sizes.prior_layers,
            unimix=config.unimix,
            min_std=config.min_std,
            activation=config.activation,
            norm=config.norm,
        )
        self.rssm = RSSM(shape, vector_size(spec.action), embed)
        self.feature_dim = self.rssm.feature_dim
        made = {_name(key): self._make_decoder(space) for key, space in self.spaces.items()}
        self.decoders = nn.ModuleDict(made)
        self.reward = Scalar(self.feature_dim, config, layers=sizes.head_layers)
        self.continues = Head(self.feature_dim, 1, config, layers=sizes.head_layers)

    def _make_decoder(self, space: Space) -> nn.Module:
        if not is_picture(space):
            return VectorDecoder(self.feature_dim, space, self.config)
        if self.config.dimensions().convolutions == "strided":
            return StridedDecoder(self.feature_dim, space, self.config)
        return PooledDecoder(self.rssm.shape.deter, self.rssm.stoch_dim, space, self.config)

    def embed(self, obs: Any) -> Tensor:
        """Observations [..., *obs] to what the posterior reads, [..., E]."""
        parts = obs if isinstance(obs, Mapping) else {OBS: obs}
        images = [key for key in self.spaces if key not in self.vectors]
        features = [self.encoders[_name(key)](parts[key]) for key in images]
        if self.vectors:
            flat = [as_vector(space, parts[key]) for key, space in self.vectors.items()]
            joined = torch.cat(flat, -1)
            seen = symlog(joined) if self.config.symlog_inputs else joined
            features.append(self.encoders["vectors"](seen))
        return torch.cat(features, -1)

    def observe(self, state: State, batch: Batch, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        """The states, posteriors and priors of a sequence [T, B, …], from a state before it."""
        action = as_vector(self.action, batch[PREVIOUS_ACTION])
        return self.rssm.observe_sequence(
            state, action, self.embed(batch[OBS]), batch[RESET], noise
        )

    def learn_from(self, state: State, batch: Batch, noise: Tensor) -> Seen:
        """The same, with what the heads' predictions of it cost."""
        states, posterior, prior = self.observe(state, batch, noise)
        features = self.rssm.features(states)
        parts = batch[OBS] if isinstance(batch[OBS], Mapping) else {OBS: batch[OBS]}
        losses = {
            f"decode/{key}": self._decoder(key).loss(self._decoder(key)(features), parts[key])
            for key in self.spaces
        }
        losses["reward"] = self.reward.loss(features, batch[REWARD])[0]
        going_on = (~batch[TERMINATED]).to(features.dtype)
        logit = self.continues(features).squeeze(-1)
        losses["continue"] = binary_cross_entropy_with_logits(logit, going_on, reduction="none")
        return Seen(states, posterior, prior, losses)

    def decode(self, features: Tensor) -> Any:
        """What the features look like: images in [0, 1], vectors in their own units."""
        decoded = {key: self._looks(key, features) for key in self.spaces}
        return decoded[OBS] if list(decoded) == [OBS] else decoded

    def going_on(self, features: Tensor) -> Tensor:
        """The chance that the episode goes on after this moment, [...]."""
        return self.continues(features).squeeze(-1).sigmoid()

    def noise(self, lead: tuple[int, ...], generator: Generator) -> Tensor:
        """Random numbers for that many draws of the latent."""
        return self.rssm.noise(lead, generator)

    def _decoder(self, key: str) -> Any:
        return self.decoders[_name(key)]

    def _looks(self, key: str, features: Tensor) -> Tensor:
        raw, space = self._decoder(key)(features), self.spaces[key]
        if isinstance(space, Discrete):
            return raw.argmax(-1)
        if isinstance(space, MultiDiscrete):
            return torch.stack([part.argmax(-1) for part in raw.split(space.nvec, -1)], -1)
        if is_picture(space):
            return raw.clamp(0, 1)
        vector = symexp(raw) if self.config.symlog_inputs else raw
        return vector.reshape(*vector.shape[:-1], *space.shape)


def parts_of(observation: Observation) -> dict[str, Space]:
    """The spaces that there are to see, by name; a mask of legal actions is not one of them."""
    if isinstance(observation, Dict):
        return {key: space for key, space in observation.parts.items() if key != ACTION_MASK}
    return {OBS: observation}


def _name(key: str) -> str:
    """torch allows no dots in the names of modules; underscores are doubled, so no two are one."""
    return f"part_{key.replace('_', '__').replace('.', '_')}"
