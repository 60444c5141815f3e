"""The typed tree of one run: `RunConfig`, and how it becomes plain data again."""

import hashlib
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml

from rl_lab.core.options import option, section, variant, variants
from rl_lab.core.schedule import Schedule
from rl_lab.envs.make import EnvironmentConfig
from rl_lab.networks.actor_critic import NetworkConfig
from rl_lab.records.checkpoint import CheckpointConfig

VERSION = 1
ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Who this run is."""

    name: str = option("", "name of the run's folder; empty: environment and algorithm")
    seed: int = option(0, "the seed from which every random stream is derived")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    tags: list[str] = option([], "free words to find the run again")

    def __post_init__(self) -> None:
        """A seed is a natural number."""
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, and in which phases."""

    total_timesteps: int = option(100_000, "environment steps of the whole run")
    phases: list[dict[str, Any]] = option([], "phases in order; empty: collect and update")
    warm_start: str | None = option(None, "run or checkpoint whose weights to start from")
    warm_start_parts: list[str] = option(
        ["*"], "patterns of the parameters to take from it, e.g. ['torsos.*']"
    )
    callbacks: dict[str, Any] = variants(
        "callback", "code of your own that is called during the run, by name"
    )

    def __post_init__(self) -> None:
        """A run has at least one step."""
        if self.total_timesteps < 1:
            raise ValueError(f"total_timesteps must be 1 or more, got {self.total_timesteps}")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """When and how the policy is measured."""

    every_steps: Literal["auto"] | int = option(
        "auto",
        "environment steps between evaluations; 0: none; auto: 10,000, or a fifth of the run",
    )
    episodes: int = option(20, "episodes of one evaluation")
    num_envs: int = option(8, "environments that share the episodes")
    deterministic: bool = option(True, "act greedily, or sample")
    warmup_steps: int = option(0, "no evaluation before this many environment steps")
    stop_at: float | None = option(None, "stop the run when eval/return_mean reaches this")
    patience: int = option(1, "evaluations in a row at or above stop_at before stopping")
    test_episodes: int = option(20, "episodes of the final test on its own seeds; 0: none")

    def __post_init__(self) -> None:
        """Counts are natural numbers."""
        for name, least in {
            "every_steps": 0,
            "episodes": 1,
            "num_envs": 1,
            "warmup_steps": 0,
            "patience": 1,
            "test_episodes": 0,
        }.items():
            if (value := getattr(self, name)) != "auto" and value < least:
                raise ValueError(f"{name} must be {least} or more, got {value}")


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the arithmetic is run. What `auto` chose is written into the run's config.yaml."""

    compile: Literal["auto", "on", "off"] = option(
        "auto", "compile updates (and rollouts of classic control); auto: if the run is long enough"
    )
    threads: Literal["auto"] | int = option(
        "auto", "torch threads within one operation; auto: 1, or more for wide layers and images"
    )
    on_nonfinite: Literal["raise", "skip", "rollback"] = option(
        "raise",
        "a NaN or an infinity: stop with a dump, drop that update or rollout, or go back to the "
        "last checkpoint with new random numbers",
    )

    def __post_init__(self) -> None:
        """At least one thread."""
        if self.threads != "auto" and self.threads < 1:
            raise ValueError(f"threads must be 1 or more, got {self.threads}")


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """Weights & Biases."""

    enabled: bool = option(False, "also send metrics to Weights & Biases")
    mode: Literal["auto", "online", "offline", "disabled"] = option(
        "auto", "auto: online if you are logged in, otherwise a folder that can be synced later"
    )
    project: str = option("rl-lab", "project there")
    entity: str | None = option(None, "team or user there; empty: your default")
    tags: list[str] = option([], "tags there")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Where metrics are shown besides metrics.jsonl. Nothing here changes the run."""

    every_steps: int = option(0, "environment steps between rows; 0: 500 rows per run")
    every_updates: int = option(100, "updates between rows where nothing is played; 0: none")
    terminal: bool = option(True, "show progress in the terminal")
    tensorboard: bool = option(True, "write TensorBoard events")
    pictures: bool = option(True, "after evaluations, draw what the algorithm has to show, if any")
    report: bool = option(True, "when the run ends, write report.md and report.html about it")
    wandb: WandbConfig = section(WandbConfig, "Weights & Biases")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run does."""

    version: int = option(VERSION, "version of this format")
    plugins: list[str] = option([], "local files whose registered classes may be named here")
    experiment: ExperimentConfig = section(ExperimentConfig, "who this run is")
    environment: EnvironmentConfig = field(metadata={"help": "the world"})
    algorithm: Any = variant("workflow", {"name": "ppo"}, "what learns, and how", key="name")
    network: NetworkConfig = section(NetworkConfig, "encoder, memory and heads")
    components: dict[str, Any] = option({}, "parts of a world model, by role")
    optimizers: dict[str, Any] = option(
        {}, "update rules of its parts: {_target_: torch.optim.AdamW, _partial_: true, …}"
    )
    buffers: dict[str, Any] = variants("buffer", "where data waits, by name")
    training: TrainingConfig = section(TrainingConfig, "how long, and in which phases")
    evaluation: EvaluationConfig = section(EvaluationConfig, "when the policy is measured")
    checkpoint: CheckpointConfig = section(CheckpointConfig, "when state is saved, what is kept")
    compute: ComputeConfig = section(ComputeConfig, "how the arithmetic is run")
    logging: LoggingConfig = section(LoggingConfig, "where metrics are shown")

    def __post_init__(self) -> None:
        """Only this version can be read."""
        if self.version != VERSION:
            raise ValueError(f"version must be {VERSION}, got {self.version}: update rl-lab")


class FreeConfig:
    """The block of an algorithm that declares no `Config`: its YAML keys, read-only.

    `config.gamma`, `config["gamma"]` and `config.get("gamma", 0.99)` all work; a key that is a
    schedule is a schedule.
    """

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __getattr__(self, key: str) -> Any:
        raise AttributeError(f"the algorithm block has no key '{key}': write it in the YAML")

    def __contains__(self, key: str) -> bool:
        return key in vars(self)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return vars(self).get(key, default)


@cache
def free_config_class(keys: tuple[str, ...]) -> type:
    """The frozen dataclass of an undeclared block with exactly these keys."""
    return make_dataclass(
        "FreeConfig", [(key, Any) for key in keys], bases=(FreeConfig,), frozen=True, kw_only=True
    )


@cache
def named_config_class(config: type, keys: tuple[str, ...]) -> type:
    """A `Config` that also carries the keys by which it was chosen (`name`, `type`, `_target_`)."""
    known = {each.name for each in fields(config)}
    extra = [(key, str) for key in keys if key not in known]
    if not extra:
        return config
    names = {"__module__": config.__module__, "__qualname__": config.__qualname__}
    return make_dataclass(
        config.__name__, extra, bases=(config,), namespace=names, frozen=True, kw_only=True
    )


def to_tree(config: Any) -> Any:
    """A config as plain data that JSON and YAML can hold; validating it gives the same config."""
    if isinstance(config, Schedule):
        return config.to_tree()
    if is_dataclass(config) and not isinstance(config, type):
        names = [each.name for each in fields(config)]
        names.sort(key=lambda name: name not in ("name", "type", "_target_"))
        return {name: to_tree(getattr(config, name)) for name in names}
    if isinstance(config, Mapping):
        return {str(key): to_tree(each) for key, each in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_tree(each) for each in config]
    return config


def to_yaml(config: Any) -> str:
    """A config as the text of a config.yaml."""
    return yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True, width=100)


def config_hash(config: Any) -> str:
    """sha256 of what decides the run: everything but its name, its tags and its logging."""
    return tree_hash(to_tree(config))


def tree_hash(tree: Mapping[str, Any]) -> str:
    """The same of a config as plain data, such as a config.yaml of an earlier version."""
    tree = {key: each for key, each in tree.items() if key != "logging"}
    names = dict(tree.get("experiment") or {})
    tree["experiment"] = {key: each for key, each in names.items() if key not in ("name", "tags")}
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every `(path, value)` of a tree; a list is one value, an empty block too."""
    if isinstance(tree, Mapping) and tree:
        for key, each in tree.items():
            yield from leaves(each, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def diff(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Where two trees differ: `(path, left, right)`, with `ABSENT` where one has nothing."""
    one, other = dict(leaves(left)), dict(leaves(right))
    paths = list(one) + [path for path in other if path not in one]
    pairs = [(path, one.get(path, ABSENT), other.get(path, ABSENT)) for path in paths]
    return [(path, a, b) for path, a, b in pairs if a != b or type(a) is not type(b)]


class OptionRow(NamedTuple):
    """One option, for `--help` and the docs."""

    path: str
    type: str
    default: Any
    help: str


def describe(config: type, prefix: str = "") -> list[OptionRow]:
    """Every option of a config dataclass, nested ones by dotted path, with its description."""
    rows: list[OptionRow] = []
    hints = get_type_hints(config)
    for each in fields(config):
        path, help = f"{prefix}{each.name}", each.metadata.get("help", "")
        if kind := each.metadata.get("variant"):
            key = each.metadata["key"]
            rows.append(OptionRow(f"{path}.{key}", kind, each.metadata["default"].get(key), help))
        elif is_dataclass(hints[each.name]):
            rows += describe(hints[each.name], f"{path}.")
        else:
            default = each.default
            if each.default_factory is not MISSING:
                default = each.default_factory()
            rows.append(OptionRow(path, type_name(hints[each.name]), to_tree(default), help))
    return rows


def type_name(annotation: Any) -> str:
    """An annotation as a reader wants it: `int`, `list[int]`, `'auto' | int`."""
    if get_origin(annotation) is Literal:
        return " | ".join(repr(each) for each in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(type_name(each) for each in get_args(annotation))
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is list:
        return f"list[{type_name(get_args(annotation)[0])}]"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")
