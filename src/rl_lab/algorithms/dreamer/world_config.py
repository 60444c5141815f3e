"""Options of world models: sizes (own ones, or those of Dreamer v3's authors by name), replay."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from rl_lab.algorithms.replay import LONGEST, ReplayConfig, window_problems
from rl_lab.core.options import option
from rl_lab.core.schedule import extremes
from rl_lab.core.schema import Activation, RunConfig
from rl_lab.networks.mlp import Norm

Convolutions = Literal["strided", "pooled"]


class Dimensions(NamedTuple):
    """What `size` decides."""

    deter: int
    hidden: int
    classes: int
    units: int
    channels: int
    stoch: int = 32
    blocks: int = 8
    prior_layers: int = 2
    layers: int = 3
    head_layers: int = 1
    convolutions: Convolutions = "pooled"


SIZES = {
    "1m": Dimensions(512, 64, 4, 64, 4),
    "12m": Dimensions(2048, 256, 16, 256, 16),
    "25m": Dimensions(3072, 384, 24, 384, 24),
    "50m": Dimensions(4096, 512, 32, 512, 32),
    "100m": Dimensions(6144, 768, 48, 768, 48),
    "200m": Dimensions(8192, 1024, 64, 1024, 64),
    "400m": Dimensions(12288, 1536, 96, 1536, 96),
}
# Gradient steps per environment step of the authors' runs, by the beginning of a task's id.
FAMILIES = {"dm_control/": 1.0, "ALE/": 0.03125, "procgen": 0.0625, "Crafter": 0.5, "bsuite": 1.0}


@dataclass(frozen=True, kw_only=True)
class WorldModelConfig:
    """The sizes and the kind of a world model."""

    # How v3's authors trained all of these sizes.
    with_size: ClassVar[Mapping[str, Any]] = {
        "batch_size": 16,
        "batch_length": 64,
        "replay_ratio": 0.25,
        "learning_starts": 1100,
        "free_nats": 1.0,
        **dict.fromkeys(("model_rate", "actor_rate", "critic_rate"), 4e-5),
    }
    size: Literal["own", "1m", "12m", "25m", "50m", "100m", "200m", "400m"] = option(
        "own", "own: the numbers below; else those of the paper for this many parameters"
    )
    deter: int = option(128, "width of the memory")
    hidden: int = option(64, "width of the layers around the memory")
    stoch: int = option(8, "latents")
    classes: int = option(8, "classes of each latent; 0: Gaussian latents")
    blocks: int = option(
        1, "1: the memory is a GRU (v1, v2); more: as many GRUs, which read each other (v3: 8)"
    )
    prior_layers: int = option(1, "layers of the prior")
    unimix: float = option(
        0.01, "share of the uniform distribution in categorical latents", fixed=True
    )
    min_std: float = option(0.1, "smallest deviation of Gaussian latents", fixed=True)
    units: int = option(64, "width of the layers of encoder, decoder and heads")
    layers: int = option(2, "layers of the encoder and decoder of vectors, of policy and values")
    head_layers: int = option(0, "layers of rewards and continuations; 0: as many as `layers`")
    channels: int = option(
        16, "channels of convolutions: of the first one, or a quarter of the last"
    )
    convolutions: Convolutions = option(
        "strided", "strided: width 4, channels double; pooled: as in v3, width 5 and max-pooling"
    )
    activation: Activation = option("silu", "tanh, relu, elu, gelu or silu")
    norm: Norm = option("rms", "normalization of layers: none, layer or rms")
    symlog_inputs: bool = option(True, "vectors are seen, and predicted, through symlog")
    two_hot: bool = option(True, "rewards and values as weights of bins; if not, as one number")
    symlog_scalars: bool = option(
        False, "that one number is the symlog of rewards and values; needs two_hot false"
    )

    def __post_init__(self) -> None:
        """Sizes are positive, and blocks divide the memory."""
        least = {"classes": 0, "unimix": 0, "min_std": 0, "head_layers": 0}
        positive = ("deter", "hidden", "stoch", "blocks", "prior_layers", "units", "channels")
        least |= dict.fromkeys((*positive, "layers"), 1)
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be {low} or more, got {getattr(self, name)}")
        if self.unimix >= 1:
            raise ValueError(f"unimix must be below 1, got {self.unimix:g}")
        if self.size != "own" and not self.classes:
            raise ValueError(f"size {self.size} has categorical latents, and classes is 0: set own")
        for name in Dimensions._fields if self.size != "own" else ():
            if getattr(self, name) != (default := getattr(type(self), name)):
                raise ValueError(
                    f"{name} is decided by size {self.size}: leave it at {default}, or set size own"
                )
        if self.symlog_scalars and self.two_hot:
            raise ValueError("symlog_scalars needs two_hot false: bins are spaced by symlog anyway")
        if self.deter % self.blocks:
            raise ValueError(f"blocks {self.blocks} does not divide deter {self.deter}")
        if self.convolutions == "pooled" and 4 * self.channels % self.blocks:
            raise ValueError(f"blocks {self.blocks} does not divide 4 · channels {self.channels}")

    def dimensions(self) -> Dimensions:
        """The sizes that `size` means."""
        if self.size != "own":
            return SIZES[self.size]
        own = {name: getattr(self, name) for name in Dimensions._fields}
        return Dimensions(**own | {"head_layers": self.head_layers or self.layers})

    @classmethod
    def named_size(cls, size: str, environment: str) -> dict[str, Any]:
        """What `ENV:dreamer_v3_SIZE` means: a size, trained as its authors did on such tasks."""
        ratios = [each for start, each in FAMILIES.items() if environment.startswith(start)]
        return {"size": size, **cls.with_size, **({"replay_ratio": ratios[0]} if ratios else {})}

    @property
    def latent_size(self) -> int:
        """Numbers of a state of the model."""
        sizes = self.dimensions()
        return sizes.deter + sizes.stoch * max(sizes.classes, 1)


@dataclass(frozen=True, kw_only=True)
class WorldConfig(WorldModelConfig, ReplayConfig):
    """A world model, and when it learns. Any float may be a schedule."""

    batch_size: int = option(8, "sequences of one gradient step")
    batch_length: int = option(32, "frames of each sequence")
    continue_scale: float = option(
        1.0, "weight of the loss of the continue probability; 0: ends of episodes are not predicted"
    )

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        WorldModelConfig.__post_init__(self)
        ReplayConfig.__post_init__(self)
        if self.batch_length < 2:
            raise ValueError(f"batch_length must be at least 2, got {self.batch_length}")
        if self.optimizer.accumulate > 1:
            raise ValueError("optimizer.accumulate must be 1: a sequence cannot be cut into pieces")

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay: a few minutes, but each step then takes half as long.

        The memory is unrolled, so with long sequences it would be many minutes.
        """
        return 6 * super().gradient_steps(run) if self.batch_length <= LONGEST else 0.0

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.environment.normalize_obs:
            problems.append("a world model sees frames as they are: set normalize_obs to false")
        return problems + window_problems(run, *self.rows_needed())

    @property
    def predicts_ends(self) -> bool:
        """Whether imagined episodes may end: only if the continue head is trained."""
        return extremes(self.continue_scale)[1] > 0

    def memory_problem(self) -> str:
        """Why `network.memory` would do nothing."""
        return "the world model is the memory"

    def rows_needed(self) -> tuple[str, int]:
        """Frames of one window."""
        return "batch_length", self.batch_length
