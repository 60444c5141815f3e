"""A world model: encoder → state-space model → decoder, reward and continue heads.

Works on sequences in arrival form [T, B, …]: each row is a frame with the action that led to it and
the reward that came with it. Any observation: vectors, images, indices, or a dict of them.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from rl_lab.algorithms.dreamer.images import ImageEncoder, PooledDecoder, StridedDecoder, is_picture
from rl_lab.algorithms.dreamer.rssm import RSSM, LatentState, RSSMShape
from rl_lab.algorithms.dreamer.world_config import WorldModelConfig
from rl_lab.core.batch import (
    ACTION_MASK,
    OBS,
    PREVIOUS_ACTION,
    RESET,
    REWARD,
    TERMINATED,
    Batch,
    Obs,
)
from rl_lab.core.spec import Dict, Discrete, EnvSpec, MultiDiscrete, Observation, Space
from rl_lab.core.symlog import symexp, symexp_bins, symlog, two_hot_loss, two_hot_mean
from rl_lab.networks.mlp import as_vector, linear, mlp, vector_size

WORLD_PARTS = {  # roles of `components:`, and what is called of each
    "representation": ("out_dim",),
    "dynamics": (
        *("feature_dim", "initial", "noise", "observe", "observe_sequence"),
        *("imagine_step", "features", "prior", "kl"),
    ),
    "decoder": ("loss", "decode"),
}


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
        """The predicted number, [...]."""
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


class Observed(NamedTuple):
    """A sequence as the model sees it, with its prediction losses. All [T, B, …]."""

    states: LatentState
    posterior: Tensor
    prior: Tensor
    losses: dict[str, Tensor]  # of decoder parts, reward and continue flag: each [T, B]


class Representation(nn.ModuleDict):
    """Observations to embeddings: an encoder for each picture, one for all vectors together."""

    def __init__(self, spaces: Mapping[str, Space], config: WorldModelConfig) -> None:
        super().__init__()
        sizes = config.dimensions()
        self.flat_parts, self.symlog = vectors_of(spaces), config.symlog_inputs
        self.pictures = [key for key in spaces if key not in self.flat_parts]
        self.out_dim = 0
        for key in self.pictures:
            encoder = ImageEncoder(spaces[key], config)
            self[_name(key)] = encoder
            self.out_dim += encoder.out_dim
        if self.flat_parts:
            width = sum(map(vector_size, self.flat_parts.values()))
            hidden = [sizes.units] * sizes.layers
            self["vectors"] = mlp(width, hidden, config.activation, config.norm)
            self.out_dim += sizes.units

    def forward(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Parts of an observation, [..., *part] each, to [..., E]."""
        features = [self[_name(key)](parts[key]) for key in self.pictures]
        if self.flat_parts:
            seen = joined_vectors(self.flat_parts, parts, symlogs=self.symlog)
            features.append(self["vectors"](seen))
        return torch.cat(features, -1)


class Decoder(nn.ModuleDict):
    """Features back to the parts of an observation."""

    def __init__(
        self, spaces: Mapping[str, Space], config: WorldModelConfig, deter: int, stoch: int
    ) -> None:
        super().__init__()
        self.spaces, self.symlog = dict(spaces), config.symlog_inputs
        for key, space in spaces.items():
            self[_name(key)] = self.make_part(space, config, deter, stoch)

    def make_part(
        self, space: Space, config: WorldModelConfig, deter: int, stoch: int
    ) -> nn.Module:
        """The decoder of one part."""
        if not is_picture(space):
            return VectorDecoder(deter + stoch, space, config)
        if config.dimensions().convolutions == "strided":
            return StridedDecoder(deter + stoch, space, config)
        return PooledDecoder(deter, stoch, space, config)

    def loss(self, features: Tensor, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The prediction loss of each part, [...]."""
        decoders: dict[str, Any] = {key: self[_name(key)] for key in self.spaces}
        return {key: each.loss(each(features), parts[key]) for key, each in decoders.items()}

    def decode(self, features: Tensor) -> dict[str, Tensor]:
        """The observation: images in [0, 1], vectors in their own units."""
        return {key: self._decode_part(key, features) for key in self.spaces}

    def _decode_part(self, key: str, features: Tensor) -> Tensor:
        raw, space = self[_name(key)](features), self.spaces[key]
        if isinstance(space, Discrete):
            return raw.argmax(-1)
        if isinstance(space, MultiDiscrete):
            return torch.stack([part.argmax(-1) for part in raw.split(space.nvec, -1)], -1)
        if is_picture(space):
            return raw.clamp(0, 1)
        vector = symexp(raw) if self.symlog else raw
        return vector.reshape(*vector.shape[:-1], *space.shape)


class WorldModel(nn.Module):
    """Encoder, RSSM, decoder, reward and continue heads; the policy is not part of it.

    `parts` replaces the representation, the dynamics and the decoder: see docs/plugins.md.
    """

    def __init__(
        self,
        config: WorldModelConfig,
        spec: EnvSpec,
        parts: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        sizes = config.dimensions()
        self.config, self.action = config, spec.action
        self.spaces = parts_of(spec.observation)
        self.vectors = vectors_of(self.spaces)
        self.encoders = parts.get("representation", Representation)(self.spaces, config)
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
        dynamics = parts.get("dynamics", RSSM)
        self.rssm = dynamics(shape, vector_size(spec.action), self.encoders.out_dim)
        self.feature_dim = self.rssm.feature_dim
        stoch = self.feature_dim - shape.deter
        self.decoders = parts.get("decoder", Decoder)(self.spaces, config, shape.deter, stoch)
        self.reward = Scalar(self.feature_dim, config, layers=sizes.head_layers)
        self.continues = Head(self.feature_dim, 1, config, layers=sizes.head_layers)

    def embed(self, obs: Obs) -> Tensor:
        """Observations [..., *obs] to what the posterior reads, [..., E]."""
        embedding: Tensor = self.encoders(obs if isinstance(obs, Mapping) else {OBS: obs})
        return embedding

    def observe(
        self, state: LatentState, batch: Batch, noise: Tensor
    ) -> tuple[LatentState, Tensor, Tensor]:
        """The states, posteriors and priors of a sequence [T, B, …], from a state before it."""
        action = as_vector(self.action, batch[PREVIOUS_ACTION])
        return self.rssm.observe_sequence(
            state, action, self.embed(batch[OBS]), batch[RESET], noise
        )

    def prediction_losses(self, state: LatentState, batch: Batch, noise: Tensor) -> Observed:
        """`observe`, and the losses of the heads' predictions."""
        states, posterior, prior = self.observe(state, batch, noise)
        features = self.rssm.features(states)
        parts = batch[OBS] if isinstance(batch[OBS], Mapping) else {OBS: batch[OBS]}
        decoded = self.decoders.loss(features, parts)
        losses = {f"decode/{key}": each for key, each in decoded.items()}
        losses["reward"] = self.reward.loss(features, batch[REWARD])[0]
        continues = (~batch[TERMINATED]).to(features.dtype)
        logit = self.continues(features).squeeze(-1)
        losses["continue"] = binary_cross_entropy_with_logits(logit, continues, reduction="none")
        return Observed(states, posterior, prior, losses)

    def decode(self, features: Tensor) -> Any:
        """The observation: images in [0, 1], vectors in their own units."""
        decoded = self.decoders.decode(features)
        return decoded[OBS] if list(decoded) == [OBS] else decoded

    def continue_probability(self, features: Tensor) -> Tensor:
        """The probability that the episode does not end here, [...]."""
        return self.continues(features).squeeze(-1).sigmoid()

    def noise(self, lead: tuple[int, ...], generator: Generator) -> Tensor:
        """The random numbers of `lead` samples of the latent."""
        return self.rssm.noise(lead, generator)


def parts_of(observation: Observation) -> dict[str, Space]:
    """The spaces that there are to see, by name; a mask of legal actions is not one of them."""
    if isinstance(observation, Dict):
        return {key: space for key, space in observation.parts.items() if key != ACTION_MASK}
    return {OBS: observation}


def vectors_of(spaces: Mapping[str, Space]) -> dict[str, Space]:
    """The parts that are no pictures."""
    return {key: each for key, each in spaces.items() if not is_picture(each)}


def joined_vectors(
    spaces: Mapping[str, Space], parts: Mapping[str, Tensor], *, symlogs: bool
) -> Tensor:
    """Vectors and indices of an observation side by side, [..., V]."""
    joined = torch.cat([as_vector(space, parts[key]) for key, space in spaces.items()], -1)
    return symlog(joined) if symlogs else joined


def _name(key: str) -> str:
    """torch allows no dots in the names of modules; underscores are doubled, so no two are one."""
    return f"part_{key.replace('_', '__').replace('.', '_')}"
