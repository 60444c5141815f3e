"""The typed configuration of a run, `RunConfig`, and what its chosen parts promise.

Which algorithm, network, buffer … a block means is chosen by its `name` or `type`; the chosen
class declares the dataclass of that block. Such a dataclass derives from `AlgorithmConfig` or
`BufferConfig`, which say what the rest of the package asks of it; one that does not derive from
them is given the same defaults when a configuration is read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rl_lab.core.options import Options, option, section, variant, variants

VERSION = 1
HIDDEN = "<redacted>"  # stands for a secret in what is written down
Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]

# ----------------------------------------------------------- what chosen blocks promise


class AlgorithmConfig(Options):
    """Base of the `algorithm:` block: what may be asked of an algorithm before it is built.

    No dataclass itself, so what stands here are defaults and not options: a subclass that is a
    dataclass declares its own.
    """

    name: str = ""  # the registered name, filled in when a configuration is read
    batch_size: int | float | None = None  # rows of one gradient step

    def check(self, run: "RunConfig") -> list[str]:
        """Problems that only show together with the rest of the configuration.

        A message that begins with the name of an option is reported at that option.
        """
        return []

    def warnings(self, run: "RunConfig") -> list[str]:
        """What is legal and probably not meant; printed when a run starts."""
        return []

    def choices(self, run: "RunConfig") -> dict[str, Any]:
        """Values of options that the algorithm chooses itself where nothing is given."""
        return {}

    def gradient_steps(self, run: "RunConfig") -> float:
        """Gradient steps of a whole run that compiling speeds up; 0: never worth compiling."""
        return 0.0

    def rows_per_step(self, run: "RunConfig") -> int:
        """Rows of one gradient step, which decide about threads; 0 if there is no telling."""
        return int(self.batch_size or 0)

    def small(self, run: "RunConfig", *, call: int, before: int) -> list[dict[str, Any]]:
        """Options, by path, with which a run of few steps still does everything.

        Args:
            run: The configuration with its phases already shortened.
            call: Environment steps that one call of collect should take at most.
            before: Environment steps that are taken before learning begins.

        Returns:
            Changes in order. Options in one dict only make sense together.
        """
        return []

    def with_fewer_minibatches(self) -> "Iterable[AlgorithmConfig]":
        """Configs for smaller and smaller rollouts, where the algorithm has minibatches."""
        return ()

    @property
    def latent_size(self) -> int:
        """Numbers of the recurrent state that a buffer keeps with every frame; 0: none."""
        return 0


class BufferConfig(Options):
    """Base of a block of `buffers:`: what an algorithm may ask of a buffer before it is built."""

    type: str = ""  # the registered name
    capacity: int | None = None  # transitions that are kept; None: no fixed number
    only: Sequence[str] = ()  # what a sample has; empty: everything
    latents: bool = False  # keeps a recurrent state with every frame
    burn_in: int = 0  # first frames of a window, which only warm a memory up


class ModuleConfig(Protocol):
    """A block of `network:` that chooses a module."""

    @property
    def type(self) -> str:
        """The registered name."""


# --------------------------------------------------------------------- the blocks of a run


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Options):
    """Layers between the torso and an output."""

    hidden_dims: list[int] = option([], "widths of hidden layers of this head", low=1)
    activation: Activation = option("tanh", "activation between them")


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Options):
    """encoder → memory → heads."""

    encoder: ModuleConfig = variant("encoder", {"type": "auto"}, "observation to features")
    memory: ModuleConfig = variant(
        "memory", {"type": "none"}, "what is remembered within an episode"
    )
    actor: HeadConfig = section(HeadConfig, "features to the action distribution")
    critic: HeadConfig = section(HeadConfig, "features to the value")
    shared_torso: bool = option(False, "one encoder and memory for actor and critic, or two")
    log_std_init: float = option(
        0.0,
        "initial log standard deviation of continuous actions; -1 where wide noise teaches a bad "
        "gait (HalfCheetah), 0 where little noise explores too little (Hopper)",
    )


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig(Options):
    """The `environment:` block of a configuration."""

    id: str = option(
        "", "a registered Gymnasium id; module:Id imports a module first, where Id may be a class"
    )
    num_envs: int = option(8, "how many environments are stepped together in training", low=1)
    vectorization: Literal["auto", "sync", "native", "process", "envpool", "torch"] = option(
        "auto",
        "sync: a loop in this process; native: the environment's own vector; "
        "process: supervised worker processes; envpool: EnvPool's C++ threads; torch: our own "
        "vectorized classic control, which can be compiled together with the policy; "
        "auto: torch for classic control (4 or more environments, or compiled), native for "
        "bandits, otherwise sync or process by a short measurement",
    )
    workers: int | None = option(
        None, "process, envpool: number of workers or threads; one per CPU core if not given", low=1
    )
    step_timeout: float = option(
        60.0, "process: seconds after which a worker that does not answer is replaced", above=0
    )
    restarts: int = option(
        10,
        "process: how many lost workers within 1000 vector steps are replaced before failing",
        low=0,
    )
    wrappers: list[dict[str, Any]] = option(
        [], "wrappers, innermost first: [{id: MaskObservation, indices: [1, 3]}]"
    )
    normalize_obs: Literal[False, True, "running", "static"] = option(
        False, "normalize observations: by running statistics (= true), or static: by their bounds"
    )
    normalize_reward: bool = option(False, "divide rewards by the deviation of the running return")
    max_episode_steps: int | None = option(
        None, "truncate episodes here instead of at the default", low=1
    )
    kwargs: dict[str, Any] = option({}, "arguments of the environment's constructor")
    snapshot: Literal["auto", "replay", "reset"] = option(
        "auto",
        "how a resumed run goes on: auto captures the state, or replays where that is known to be "
        "exact; replay: seed and actions again, in a new object for every episode; "
        "reset: new episodes, inexact",
    )

    def __post_init__(self) -> None:
        """An environment has a name."""
        super().__post_init__()
        if not self.id:
            raise ValueError("environment.id is missing: name an environment, as in CartPole-v1")


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Options):
    """Who this run is."""

    name: str = option("", "name of the run's folder; empty: environment and algorithm")
    seed: int = option(0, "the seed from which every random stream is derived", low=0)
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    tags: list[str] = option([], "free words to find the run again")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Options):
    """How long, and in which phases."""

    total_timesteps: int = option(100_000, "environment steps of the whole run", low=1)
    phases: list[dict[str, Any]] = option([], "phases in order; empty: collect and update")
    warm_start: str | None = option(None, "run or checkpoint whose weights to start from")
    warm_start_parts: list[str] = option(
        ["*"], "patterns of the parameters to take from it, e.g. ['torsos.*']"
    )
    callbacks: dict[str, Any] = variants(
        "callback", "code of your own that is called during the run, by name"
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Options):
    """When and how the policy is measured."""

    every_steps: Literal["auto"] | int = option(
        "auto",
        "environment steps between evaluations; 0: none; auto: 10,000, or a fifth of the run",
        low=0,
    )
    episodes: int = option(20, "episodes of one evaluation", low=1)
    num_envs: Literal["auto"] | int = option(
        "auto",
        "environments that share the episodes; auto: 8, or for vectorized classic control one for "
        "each episode",
        low=1,
    )
    deterministic: bool = option(True, "act greedily, or sample")
    warmup_steps: int = option(0, "no evaluation before this many environment steps", low=0)
    stop_at: float | None = option(None, "stop the run when eval/return_mean reaches this")
    patience: int = option(1, "evaluations in a row at or above stop_at before stopping", low=1)
    test_episodes: int = option(20, "episodes of the final test on its own seeds; 0: none", low=0)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Options):
    """When to save and what to keep."""

    every_steps: Literal["auto"] | int = option(
        "auto",
        "environment steps between checkpoints; 0 = only at the end; "
        "auto: 50,000, or a fifth of the run",
        low=0,
    )
    every_updates: int = option(
        2000,
        "updates between checkpoints where nothing is played (offline phases); 0 = none",
        low=0,
    )
    every_minutes: float = option(
        10.0, "minutes after which one is saved in any case: what a crash may cost; 0 = none", low=0
    )
    keep_last: int = option(2, "the newest checkpoints that are always kept", low=1)
    keep_best: int = option(1, "the best-scoring checkpoints that are always kept", low=0)
    keep_every: int = option(0, "every m-th checkpoint is kept for ever; 0 = none", low=0)


@dataclass(frozen=True, kw_only=True)
class ComputeConfig(Options):
    """How the arithmetic is run. What `auto` chose is written into the run's config.yaml."""

    compile: Literal["auto", "on", "off"] = option(
        "auto", "compile updates (and rollouts of classic control); auto: if the run is long enough"
    )
    threads: Literal["auto"] | int = option(
        "auto",
        "torch threads within one operation; auto: 1, or more for wide layers and images",
        low=1,
    )
    on_nonfinite: Literal["raise", "skip", "rollback"] = option(
        "raise",
        "a NaN or an infinity: stop with a dump, drop that update or rollout, or go back to the "
        "last checkpoint with new random numbers",
    )


@dataclass(frozen=True, kw_only=True)
class WandbConfig(Options):
    """Weights & Biases."""

    enabled: bool = option(False, "also send metrics to Weights & Biases")
    mode: Literal["auto", "online", "offline", "disabled"] = option(
        "auto", "auto: online if you are logged in, otherwise a folder that can be synced later"
    )
    project: str = option("rl-lab", "project there")
    entity: str | None = option(None, "team or user there; empty: your default")
    tags: list[str] = option([], "tags there")


@dataclass(frozen=True, kw_only=True)
class MonitorConfig(Options):
    """What one monitor watches, when it fires, and what to try then. All its conditions must hold.

    A condition is judged on the mean of the last `rows` values of the metric, or on their median.
    """

    metric: str = option("", "full name, with * for every metric of a kind", not_empty=True)
    above: float | None = option(None, "fires above this")
    below: float | None = option(None, "fires below this")
    of: str | None = option(
        None, "above and below are multiples of the largest size of this metric so far, 1 at least"
    )
    absolute: bool = option(False, "compare the size, whatever the sign")
    jumps: float | None = option(None, "fires at this many times its usual size", above=1)
    drops: float | None = option(None, "fires at its usual size divided by this", above=1)
    collapses: float | None = option(
        None, "fires when this share of all that it gained is lost again", above=0, high=1
    )
    stalls: float | None = option(
        None, "fires if it has gained nothing after this share of the run", above=0, high=1
    )
    better: Literal["higher", "lower"] = option("higher", "what a gain is")
    rows: int = option(5, "rows of metrics whose mean is judged", low=1)
    median: bool = option(False, "judge the median of the rows: a few wild ones do not count")
    after: float = option(0.0, "silent before this share of the run", low=0, below=1)
    until: float = option(1.0, "silent after this share of the run", above=0, high=1)
    algorithms: list[str] = option([], "only of these algorithms, with *; empty: all")
    actions: Literal["any", "discrete", "continuous"] = option("any", "only with such actions")
    policy: Literal["warn", "stop"] | None = option(None, "if another than logging.alerts.policy")
    tip: str = option("", "what to try")

    def __post_init__(self) -> None:
        """A monitor needs a condition."""
        super().__post_init__()
        conditions = ("above", "below", "jumps", "drops", "collapses", "stalls")
        if all(getattr(self, name) is None for name in conditions):
            raise ValueError(f"it never fires: give it one of {', '.join(conditions)}")
        if self.of is not None and self.above is None and self.below is None:
            raise ValueError("of needs above or below")


@dataclass(frozen=True, kw_only=True)
class AlertsConfig(Options):
    """Warnings about metrics that look wrong: see docs/monitoring.md."""

    policy: Literal["warn", "stop", "ignore"] = option(
        "warn", "what an alert does: warn; save and stop the run, too; ignore: nothing is watched"
    )
    ignore: list[str] = option([], "monitors that stay silent, with *")
    webhook: str | None = option(
        None,
        "URL to which alerts are posted as JSON; never saved: a resumed run takes it from the "
        "variable RL_LAB_WEBHOOK, which works for a new run, too",
    )
    max_hours: float | None = option(
        None, "an alert if the run is expected to take longer than this", above=0
    )
    monitors: dict[str, MonitorConfig] = option(
        {}, "monitors of your own, or built-in ones declared again, by name"
    )

    def __post_init__(self) -> None:
        """A webhook is reached by HTTP."""
        super().__post_init__()
        if self.webhook and not self.webhook.startswith(("http://", "https://", HIDDEN)):
            raise ValueError("webhook must begin with https:// or http://")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Options):
    """Where metrics are shown besides metrics.jsonl. Nothing here changes the run."""

    every_steps: int = option(0, "environment steps between rows; 0: 500 rows per run", low=0)
    every_updates: int = option(100, "updates between rows where nothing is played; 0: none", low=0)
    terminal: bool = option(True, "show progress in the terminal")
    tensorboard: bool = option(True, "write TensorBoard events")
    pictures: bool = option(True, "after evaluations, draw what the algorithm has to show, if any")
    video_every: int = option(
        0, "record an episode as a video at each n-th evaluation; 0: none", low=0
    )
    final_video: bool = option(
        True,
        "when the run ends, record an episode of the last policy for the report, where the "
        "environment can be drawn",
    )
    report: bool = option(True, "when the run ends, write report.md and report.html about it")
    wandb: WandbConfig = section(WandbConfig, "Weights & Biases")
    alerts: AlertsConfig = section(AlertsConfig, "warnings about metrics that look wrong")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Options):
    """Everything that decides what a run does."""

    version: int = option(VERSION, "version of this format")
    plugins: list[str] = option([], "local files whose registered classes may be named here")
    experiment: ExperimentConfig = section(ExperimentConfig, "who this run is")
    environment: EnvironmentConfig = field(metadata={"help": "the world"})
    algorithm: AlgorithmConfig = variant(
        "workflow", {"name": "ppo"}, "what learns, and how", key="name"
    )
    network: NetworkConfig = section(NetworkConfig, "encoder, memory and heads")
    components: dict[str, Any] = option({}, "parts of a world model, by role")
    optimizers: dict[str, Any] = option(
        {}, "update rules of its parts: {_target_: torch.optim.AdamW, _partial_: true, …}"
    )
    buffers: dict[str, BufferConfig] = variants("buffer", "where data waits, by name")
    training: TrainingConfig = section(TrainingConfig, "how long, and in which phases")
    evaluation: EvaluationConfig = section(EvaluationConfig, "when the policy is measured")
    checkpoint: CheckpointConfig = section(CheckpointConfig, "when state is saved, what is kept")
    compute: ComputeConfig = section(ComputeConfig, "how the arithmetic is run")
    logging: LoggingConfig = section(LoggingConfig, "where metrics are shown")

    def __post_init__(self) -> None:
        """Only this version can be read."""
        super().__post_init__()
        if self.version != VERSION:
            raise ValueError(f"version must be {VERSION}, got {self.version}: update rl-lab")
