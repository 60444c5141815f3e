"""Options of TD-MPC2, and of TD-MPC as other values of the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rl_lab.algorithms.replay import (
    ReplayConfig,
    require_not_negative,
    require_positive,
    require_probabilities,
    window_problems,
)
from rl_lab.algorithms.tdmpc.world_model import SIZES, Dimensions
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.options import option, section, with_defaults
from rl_lab.core.protocols import AlgorithmContext
from rl_lab.core.schedule import extremes
from rl_lab.core.schema import RunConfig
from rl_lab.core.spec import EnvSpec
from rl_lab.planning.guided import GuidedConfig

SCALES = {
    "consistency": "consistency_scale",
    "reward": "reward_scale",
    "value": "value_scale",
    "termination": "termination_scale",
    "rho": "rho",
}
REPEATS = {"ActionRepeat": ("times", 2), "FrameSkip": ("skip", 4)}  # wrappers, and their defaults
# Tasks of which it is known that only a time limit ends them.
ENDLESS = ("dm_control/", "Pendulum-v", "HalfCheetah-v", "Reacher-v", "Pusher-v", "Swimmer-v")


@dataclass(frozen=True, kw_only=True)
class ModelOptimizerConfig(OptimizerConfig):
    """Adam and its relatives; the learning rate belongs to the algorithm."""

    eps: float = option(1e-8, "added to the root of the second moment; not in sgd", above=0)


@dataclass(frozen=True, kw_only=True)
class TDMPC2Config(ReplayConfig):
    """TD-MPC2, small enough for a CPU; `tdmpc2_5m` is the paper's. Any float may be a schedule."""

    # How the authors trained all sizes.
    with_size: ClassVar[Mapping[str, Any]] = {
        "batch_size": 256,
        "learning_starts": 2500,
        "planner": {"candidates": 512, "policy_candidates": 24, "elites": 64, "iterations": 6},
    }
    size: Literal["own", "tiny", "small", "1m", "5m", "19m", "48m", "317m"] = option(
        "small", "own: the five numbers below; tiny, small: for a CPU; else those of the paper"
    )
    encoder_width: int = option(256, "width of the encoder's layers; size own only", low=1)
    units: int = option(512, "width of all other layers; size own only", low=1)
    latent: int = option(512, "numbers of a latent; size own only", low=1)
    encoder_layers: int = option(2, "layers of the encoder of vectors; size own only", low=1)
    critics: int = option(5, "Q functions; size own only", low=2)
    simnorm: int = option(
        8, "SimNorm: units of a latent that share a softmax; 0: latents are free (v1)", low=0
    )
    bins: int = option(
        101, "rewards and values as weights of these bins in symlog units; 0: as one number", low=0
    )
    activation: Literal["mish", "silu", "elu"] = option(
        "mish", "mish, silu or elu; silu costs a seventh of mish on a CPU"
    )
    norm: bool = option(True, "layer normalization of hidden layers; values always have it")
    dropout: float = option(0.01, "dropout in the first layer of the values", low=0, below=1)
    random_shift: int = option(3, "pixels by which pictures are moved while learning", low=0)
    batch_size: int = option(128, "sequences of one gradient step", low=1)
    learning_starts: int = option(
        1000, "environment steps of random actions; the authors: five episodes, at least 1000"
    )
    burst: bool = option(
        True, "the random steps are learned from as well, all at once when learning starts"
    )
    consistency_scale: float = option(20.0, "weight of the loss of predicted latents")
    reward_scale: float = option(0.1, "weight of the loss of rewards")
    value_scale: float = option(0.1, "weight of the loss of values")
    termination_scale: float = option(1.0, "weight of the loss of terminations")
    rho: float = option(0.5, "each step of the horizon counts this much less; Gymnasium: 0.7")
    gamma: float | Literal["auto"] = option(  # type: ignore[assignment]  # wider than its base
        "auto",
        "discount factor; auto: (T/5 - 1) / (T/5) of episodes of T decisions, at least 0.95",
        low=0,
        high=1,
    )
    gamma_max: float = option(
        0.995, "largest discount factor that auto gives; Gymnasium: 0.99", above=0, below=1
    )
    entropy: float = option(1e-4, "weight of the policy's scaled entropy")
    normalize_values: bool = option(
        True, "the policy's loss is divided by the range of values, if above 1 (RunningScale)"
    )
    normalizer_rate: float = option(0.01, "EMA step of that range")
    policy_std: float = option(
        0.0, "0: the policy learns its deviation; else this one is fixed (v1)", low=0, fixed=True
    )
    pessimistic_policy: bool = option(
        False, "the policy climbs the least of two values (v1); if not, their mean"
    )
    target_rate: float = option(0.01, "EMA step of the target network")
    target_every: int = option(1, "gradient steps between them", low=1)
    target_encoder: bool = option(False, "latents to predict are the target network's (v1)")
    episodic: Literal["auto", True, False] = option(
        "auto", "learn which latents terminate; auto: unless only a time limit ends the task"
    )
    learning_rate: float = option(3e-4, "step size of model and policy")
    encoder_rate: float = option(
        0.3, "step size of the encoder, as a share of the other", fixed=True
    )
    max_grad_norm: float = option(20.0, "largest norm of the gradients of model and policy")
    optimizer: ModelOptimizerConfig = section(ModelOptimizerConfig, "the model's optimizer")
    policy_optimizer: OptimizerConfig = section(OptimizerConfig, "the policy's optimizer")
    planner: GuidedConfig = section(GuidedConfig, "the planner that chooses actions")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        require_positive(self, "learning_rate", "target_rate")
        require_probabilities(self, "rho", "normalizer_rate", "target_rate")
        weights = [each for each in SCALES.values() if each != "rho"]
        require_not_negative(self, *weights, "entropy")
        for name in Dimensions._fields if self.size != "own" else ():
            if getattr(self, name) != (default := getattr(type(self), name)):
                raise ValueError(
                    f"{name} is decided by size {self.size}: leave it at {default}, or set size own"
                )
        if self.simnorm and self.dimensions().latent % self.simnorm:
            raise ValueError(
                f"simnorm must divide the {self.dimensions().latent} numbers of a latent, got "
                f"{self.simnorm}"
            )
        if self.bins and not self.bins % 2:
            raise ValueError(f"bins must be odd, so that one of them is 0, got {self.bins}")
        if self.optimizer.accumulate > 1 or self.policy_optimizer.accumulate > 1:
            raise ValueError("accumulate must be 1: a sequence cannot be cut into pieces")

    def dimensions(self) -> Dimensions:
        """The sizes that `size` means."""
        if self.size != "own":
            return SIZES[self.size]
        return Dimensions(**{name: getattr(self, name) for name in Dimensions._fields})

    @classmethod
    def named_size(cls, size: str, environment: str) -> dict[str, Any]:
        """What `ENV:tdmpc2_SIZE` means: a size, trained as its authors did on such tasks."""
        own = {} if size in ("own", "tiny", "small") else dict(cls.with_size)
        return {"size": size, **own}

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.environment.normalize_obs:
            problems.append("a world model sees frames as they are: set normalize_obs to false")
        return problems + window_problems(run, *self.rows_needed())

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay: minutes for plans and updates, which then take half as long.

        A decision costs a plan, and a gradient step here is as long as a dozen of small networks.
        """
        behind = extremes(self.replay_ratio)[1] * self.learning_starts if self.burst else 0.0
        return 12 * (super().gradient_steps(run) + behind)

    def memory_problem(self) -> str:
        """Why `network.memory` would do nothing."""
        return "the latent has no memory: stack frames instead (FrameStack)"

    def rows_needed(self) -> tuple[str, int]:
        """Frames of one window."""
        return "planner.horizon", self.planner.horizon + 1


TDMPC1Config = with_defaults(
    TDMPC2Config, "TDMPC1Config", "TD-MPC. Any float may be a schedule.",
    size="own", encoder_width=256, units=512, latent=50, critics=2,
    simnorm=0, bins=0, activation="elu", norm=False, dropout=0.0, random_shift=4,
    batch_size=512, learning_starts=5000, consistency_scale=2.0, reward_scale=0.5, value_scale=0.2,
    gamma=0.99, entropy=0.0, normalize_values=False, policy_std=0.05, pessimistic_policy=True,
    target_every=2, target_encoder=True, learning_rate=1e-3, encoder_rate=1.0, max_grad_norm=10.0,
    planner=with_defaults(
        GuidedConfig, "PlannerConfig", "How far, how wide and how often to look ahead.",
        horizon=5, candidates=537, policy_candidates=25, elites=64, iterations=6, momentum=0.1,
        ramp=25_000, first_min_std=0.5,
    ),
)  # fmt: skip


# ------------------------------------------------------------------------------ what auto means


def discount(episode_length: float | None, largest: float) -> float:
    """The paper's rule: (T/5 - 1) / (T/5), within [0.95, largest]; largest without a limit."""
    if episode_length is None:
        return largest
    share = max(episode_length / 5, 1.0)
    return min(max((share - 1) / share, 0.95), largest)


def expects_ends(episodic: Literal["auto"] | bool, environment: str) -> bool:
    """Whether terminations are learned: auto is no for tasks that only a time limit ends."""
    if episodic != "auto":
        return bool(episodic)
    name = environment.rpartition(":")[2]
    return not name.startswith(ENDLESS) or name.startswith("dm_control/lqr")


def decisions_per_episode(context: AlgorithmContext) -> float | None:
    """The time limit in decisions: wrappers may repeat each one. None without a limit."""
    spec: EnvSpec = context.spec
    if spec.max_episode_steps is None:
        return None
    repeats = 1
    for wrapper in context.config.environment.wrappers:
        if wrapper.get("id") in REPEATS:
            key, usual = REPEATS[wrapper["id"]]
            repeats *= int(wrapper.get(key, usual))
    return spec.max_episode_steps / repeats
