"""A world model: encoder → state-space model → decoder, reward and continuation.

Works on sequences in arrival form [T, B, …]: each row is a frame with the action that led to it and
the reward that came with it. Any observation: vectors, images, indices, or a dict of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

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
from rl_lab.core.options import option
from rl_lab.core.spec import Dict, Discrete, EnvSpec, MultiDiscrete, Observation, Space
from rl_lab.core.symlog import symexp, symexp_bins, symlog, two_hot_loss, two_hot_mean
from rl_lab.networks.cnn import is_image
from rl_lab.networks.mlp import ACTIVATIONS, Activation, Norm, linear, mlp
from rl_lab.networks.rssm import RSSM, RSSMShape, State

# deter, hidden, classes, units, image channels: the sizes of Dreamer v3's own configurations
SIZES = {
    "1m": (512, 64, 4, 64, 4),
    "12m": (2048, 256, 16, 256, 16),
    "25m": (3072, 384, 24, 384, 24),
    "50m": (4096, 512, 32, 512, 32),
    "100m": (6144, 768, 48, 768, 48),
    "200m": (8192, 1024, 64, 1024, 64),
    "400m": (12288, 1536, 96, 1536, 96),
}
SIZED = ("deter", "hidden", "stoch", "classes", "blocks", "units", "channels")  # by `size`
_SMALLEST = 4  # pixels that the convolutions leave of an image


@dataclass(frozen=True, kw_only=True)
class WorldModelConfig:
    """The sizes and the kind of a world model."""

    # How v3's authors trained all of these sizes: taken with a size in the name of a variant.
    with_size: ClassVar[Mapping[str, float]] = {
        "batch_size": 16,
        "batch_length": 64,
        "replay_ratio": 0.25,
        "learning_starts": 1100,
        **dict.fromkeys(("model_rate", "actor_rate", "critic_rate"), 4e-5),
    }
    size: Literal["own", "1m", "12m", "25m", "50m", "100m", "200m", "400m"] = option(
        "own", "own: the numbers below; else those of the paper for this many parameters"
    )
    deter: int = option(128, "width of the memory")
    hidden: int = option(64, "width of the layers around the memory")
    stoch: int = option(8, "latents")
    classes: int = option(8, "classes of each latent; 0: Gaussian latents")
    blocks: int = option(1, "blocks of the memory's matrix; 8 in Dreamer v3 from 1m on")
    prior_layers: int = option(1, "layers of the prior")
    unimix: float = option(
        0.01, "share of the uniform distribution in categorical latents", fixed=True
    )
    min_std: float = option(0.1, "smallest deviation of Gaussian latents", fixed=True)
    units: int = option(64, "width of the layers of encoder, decoder and heads")
    layers: int = option(2, "layers of the encoder, the decoder and the heads of vectors")
    channels: int = option(16, "channels of the first convolution; each layer doubles them")
    activation: Activation = option("silu", "tanh, relu, elu, gelu or silu")
    norm: Norm = option("rms", "normalisation of layers: none, layer or rms")
    symlog_inputs: bool = option(True, "vectors are seen, and predicted, through symlog")
    two_hot: bool = option(True, "rewards and values as weights of bins; if not, as one number")
    symlog_scalars: bool = option(
        False, "that one number is the symlog of rewards and values; needs two_hot false"
    )

    def __post_init__(self) -> None:
        """Sizes are positive, and blocks divide the memory."""
        least = {"classes": 0, "unimix": 0, "min_std": 0}
        positive = ("deter", "hidden", "stoch", "blocks", "prior_layers", "units", "channels")
        least |= dict.fromkeys((*positive, "layers"), 1)
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be {low} or more, got {getattr(self, name)}")
        if self.unimix >= 1:
            raise ValueError(f"unimix must be below 1, got {self.unimix:g}")
        if self.size != "own" and not self.classes:
            raise ValueError(f"size {self.size} has categorical latents, and classes is 0: set own")
        for name in SIZED if self.size != "own" else ():
            if getattr(self, name) != (default := getattr(type(self), name)):
                raise ValueError(
                    f"{name} is decided by size {self.size}: leave it at {default}, or set size own"
                )
        if self.symlog_scalars and self.two_hot:
            raise ValueError("symlog_scalars needs two_hot false: bins are spaced by symlog anyway")
        if self.deter % self.blocks:
            raise ValueError(f"blocks {self.blocks} does not divide deter {self.deter}")

    def dimensions(self) -> "Dimensions":
        """The sizes that `size` means."""
        if self.size == "own":
            own = (self.deter, self.hidden, self.classes, self.units, self.channels)
            return Dimensions(*own, stoch=self.stoch, blocks=self.blocks)
        return Dimensions(*SIZES[self.size], stoch=32, blocks=8)

    @property
    def latent_size(self) -> int:
        """Numbers of a state of the model."""
        sizes = self.dimensions()
        return sizes.deter + sizes.stoch * max(sizes.classes, 1)


class Dimensions(NamedTuple):
    """What `size` decides."""

    deter: int
    hidden: int
    classes: int
    units: int
    channels: int
    stoch: int
    blocks: int


class ImageEncoder(nn.Module):
    """Convolutions of width 4 that halve the image until 4 pixels are left."""

    def __init__(self, space: Space, channels: int, config: WorldModelConfig) -> None:
        super().__init__()
        self.scale = 1 / 255 if str(space.dtype) == "uint8" else 1.0
        layers: list[nn.Module] = []
        width, size = space.shape[0], min(space.shape[1:])
        while size > _SMALLEST:
            layers += [nn.Conv2d(width, channels, 4, 2, 1), _image_norm(channels, config)]
            layers.append(ACTIVATIONS[config.activation]())
            width, channels, size = channels, channels * 2, size // 2
        self.layers = nn.Sequential(*layers)
        with torch.no_grad():
            self.out_dim = self.layers(torch.zeros(1, *space.shape)).numel()

    def forward(self, image: Tensor) -> Tensor:
        """[..., C, H, W] to [..., features]."""
        flat = image.reshape(-1, *image.shape[-3:]).float() * self.scale - 0.5
        return self.layers(_channels_last(flat)).reshape(*image.shape[:-3], self.out_dim)


class ImageDecoder(nn.Module):
    """The way back: features to a picture in [0, 1], by transposed convolutions."""

    def __init__(self, in_dim: int, space: Space, channels: int, config: WorldModelConfig) -> None:
        super().__init__()
        self.shape = tuple(space.shape)
        self.scale = 1 / 255 if str(space.dtype) == "uint8" else 1.0
        doublings, size = 0, min(self.shape[1:])
        while size > _SMALLEST:
            doublings, size = doublings + 1, size // 2
        start = [-(-each // 2**doublings) for each in self.shape[1:]]
        width = channels * 2 ** max(doublings - 1, 0)
        self.start = (width, *start)
        self.enter = linear(in_dim, width * start[0] * start[1], 1.0)
        layers: list[nn.Module] = []
        for left in range(doublings, 0, -1):
            out = self.shape[0] if left == 1 else width // 2
            layers.append(nn.ConvTranspose2d(width, out, 4, 2, 1))
            if left > 1:
                layers.append(_image_norm(out, config))
                layers.append(ACTIVATIONS[config.activation]())
            width = out
        self.layers = nn.Sequential(*layers)
        # A Gaussian's, as in PlaNet, v1 and v2; v3 takes the whole square.
        self.loss_scale = 1.0 if config.symlog_inputs else 0.5

    def forward(self, features: Tensor) -> Tensor:
        """[..., F] to [..., C, H, W]."""
        lead = features.shape[:-1]
        image = self.layers(_channels_last(self.enter(features).reshape(-1, *self.start)))
        image = image[..., : self.shape[1], : self.shape[2]] + 0.5
        return image.reshape(*lead, *self.shape)

    def loss(self, predicted: Tensor, image: Tensor) -> Tensor:
        """Squared distance, summed over the picture: [...]."""
        distance = (predicted - image.float() * self.scale).square().sum((-3, -2, -1))
        return self.loss_scale * distance


class Head(nn.Module):
    """Layers and one output: what predicts rewards, values and the like from features."""

    def __init__(
        self, in_dim: int, out_dim: int, units: int, config: WorldModelConfig, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.layers = mlp(in_dim, [units] * config.layers, config.activation, config.norm)
        self.output = linear(units, out_dim, gain)

    def forward(self, features: Tensor) -> Tensor:
        """[..., F] to [..., out]."""
        return self.output(self.layers(features))


class Scalar(Head):
    """A head for one number: itself, its symlog, or weights of bins, which begin as exactly 0."""

    bins: Tensor

    def __init__(self, in_dim: int, units: int, config: WorldModelConfig) -> None:
        bins = symexp_bins()
        count = len(bins) if config.two_hot else 1
        super().__init__(in_dim, count, units, config, gain=0.0 if config.two_hot else 1.0)
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

    def __init__(self, in_dim: int, space: Space, units: int, config: WorldModelConfig) -> None:
        super().__init__(in_dim, vector_size(space), units, config)
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
                encoders[_name(key)] = ImageEncoder(space, sizes.channels, config)
        embed = sum(each.out_dim for each in encoders.values())
        self.vectors = vectors
        if vectors:
            width = sum(map(vector_size, vectors.values()))
            hidden = [sizes.units] * config.layers
            encoders["vectors"] = mlp(width, hidden, config.activation, config.norm)
            embed += sizes.units
        self.encoders = nn.ModuleDict(encoders)
        shape = RSSMShape(
            deter=sizes.deter,
            hidden=sizes.hidden,
            stoch=sizes.stoch,
            classes=sizes.classes,
            blocks=sizes.blocks,
            layers=config.prior_layers,
            unimix=config.unimix,
            min_std=config.min_std,
            activation=config.activation,
            norm=config.norm,
        )
        self.rssm = RSSM(shape, vector_size(spec.action), embed)
        self.feature_dim = self.rssm.feature_dim
        self.decoders = nn.ModuleDict(
            {
                _name(key): ImageDecoder(self.feature_dim, space, sizes.channels, config)
                if is_picture(space)
                else VectorDecoder(self.feature_dim, space, sizes.units, config)
                for key, space in self.spaces.items()
            }
        )
        self.reward = Scalar(self.feature_dim, sizes.units, config)
        self.continues = Head(self.feature_dim, 1, sizes.units, config)

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


def is_picture(space: Space) -> bool:
    """An image that convolutions can make smaller; one that is smaller yet is a vector."""
    return is_image(space) and min(space.shape[1:]) > _SMALLEST


def parts_of(observation: Observation) -> dict[str, Space]:
    """The spaces that there are to see, by name; a mask of legal actions is not one of them."""
    if isinstance(observation, Dict):
        return {key: space for key, space in observation.parts.items() if key != ACTION_MASK}
    return {OBS: observation}


def _name(key: str) -> str:
    """torch allows no dots in the names of modules; underscores are doubled, so no two are one."""
    return f"part_{key.replace('_', '__').replace('.', '_')}"


def _channels_last(images: Tensor) -> Tensor:
    """The same images [B, C, H, W], laid out in memory as convolutions on a CPU like them."""
    return images.contiguous(memory_format=torch.channels_last)


def _image_norm(channels: int, config: WorldModelConfig) -> nn.Module:
    return nn.Identity() if config.norm == "none" else nn.GroupNorm(1, channels)
