"""The cells of the benchmark: a task and a memory, as a preset and settings of equal size."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from rl_lab.benchmarking.networks.matching import Match, match_width
from rl_lab.benchmarking.networks.task_set import Task, TaskSet
from rl_lab.config.compose import compose
from rl_lab.config.tree import tree_hash
from rl_lab.config.validate import validate
from rl_lab.config.values import as_override
from rl_lab.core.errors import ConfigError, UserError, did_you_mean
from rl_lab.core.schema import NetworkConfig, RunConfig
from rl_lab.core.spec import EnvSpec
from rl_lab.networks.actor_critic import ActorCritic
from rl_lab.run.build import make_environment

Settings = dict[str, Any]
Tell = Callable[[str], None]
By = Literal["parameters", "width"]
WIDEST = 4096
FLAWED = "_flawed"
HEADS = ("network.actor.hidden_dims", "network.critic.hidden_dims")
DIM = ("network.memory.dim",)
HIDDEN_DIM = ("network.memory.hidden_dim",)
TYPE, TARGET = "network.memory.type", "network.memory._target_"


@dataclass(frozen=True)
class Memory:
    """One contestant: where its width goes, and what else it sets."""

    title: str
    width_keys: tuple[str, ...]
    settings: Settings
    step: int = 1  # widths are multiples of this
    frames: int = 1  # observations that are stacked

    def value(self, width: int) -> int | list[int]:
        """A width, as its keys take it."""
        return [width] if self.width_keys == HEADS else width


_CODE = "rl_lab.benchmarking.networks.flawed"
MEMORIES = {
    # Without a memory, its parameters go into a layer of the policy and one of the value.
    "none": Memory("no memory", HEADS, {TYPE: "none"}),
    "stack4": Memory("4 frames", HEADS, {TYPE: "none"}, frames=4),
    "gru": Memory("GRU", HIDDEN_DIM, {TYPE: "gru"}),
    "lstm": Memory("LSTM", HIDDEN_DIM, {TYPE: "lstm"}),
    "trxl": Memory("TrXL", DIM, {TYPE: "trxl", "network.memory.heads": 2}, step=2),
    "gtrxl": Memory("GTrXL", DIM, {TYPE: "gtrxl", "network.memory.heads": 2}, step=2),
    "mamba": Memory("Mamba", DIM, {TYPE: "mamba"}),
    "mamba2": Memory("Mamba-2", DIM, {TYPE: "mamba2"}, step=2),
    # Ablations: not part of a benchmark unless they are named.
    "gru_flawed": Memory("GRU, flawed update", HIDDEN_DIM, {TARGET: f"{_CODE}.FlawedGRU"}),
    "mamba_flawed": Memory("Mamba, flawed update", DIM, {TARGET: f"{_CODE}.FlawedMamba"}),
    "mamba2_flawed": Memory(
        "Mamba-2, flawed update", DIM, {TARGET: f"{_CODE}.FlawedMamba2"}, step=2
    ),
}
DEFAULT = tuple(name for name in MEMORIES if not name.endswith(FLAWED))


@dataclass(frozen=True)
class Cell:
    """A task with a memory: what every seed of it runs."""

    task: str
    memory: str
    base_config: str
    settings: Settings  # of each run, the seed aside
    width: int
    parameters: int
    state_bytes: int  # of one environment
    hash: str  # of its configuration

    @property
    def label(self) -> str:
        """How it is called in names of runs."""
        return f"{self.task}-{self.memory}"


@dataclass(frozen=True)
class Plan:
    """What will be run, and what cannot be."""

    cells: list[Cell]
    skipped: dict[str, str]  # task -> why


def check_memories(names: Sequence[str]) -> None:
    """`UserError` for a name that no memory has."""
    for name in names:
        if name not in MEMORIES:
            raise UserError(f"--memories {name}: no such memory{did_you_mean(name, MEMORIES)}")


def plan(tasks: TaskSet, memories: Sequence[str], by: By, tell: Tell) -> Plan:
    """The cells of some tasks and memories. A task that cannot be made here is left out."""
    check_memories([*memories, *tasks.memories])
    found = Plan([], {})
    for name, task in tasks.tasks.items():
        try:
            spec = _observed(_configured(task.base_config, _common(task, tasks)))
        except ConfigError:
            raise
        except UserError as error:  # a package is missing, or the environment
            found.skipped[name] = str(error)
            tell(f"{name} is left out: {error}")
            continue
        for memory in memories:
            try:
                cell = make_cell(name, memory, tasks, by, spec)
            except UserError as error:
                raise UserError(f"{name}, {memory}: {error}") from error
            off = f" ({cell.parameters / tasks.parameters - 1:+.1%})" if by == "parameters" else ""
            tell(f"{name}, {memory}: width {cell.width}, {cell.parameters:,} parameters{off}")
            found.cells.append(cell)
    return found


def make_cell(name: str, memory: str, tasks: TaskSet, by: By, spec: EnvSpec) -> Cell:
    """One cell; its width by the number of parameters, or as the set says.

    `spec` is what is seen there frame by frame.
    """
    task, kind = tasks.tasks[name], MEMORIES[memory]
    own = tasks.memories.get(memory.removesuffix(FLAWED), {})
    settings = {**_common(task, tasks), **own, **tasks.memories.get(memory, {}), **kind.settings}
    if kind.frames > 1 and task.frames_key:
        settings[task.frames_key] = kind.frames
    elif kind.frames > 1:
        wrappers = _configured(task.base_config, settings).environment.wrappers
        stack = {"id": "FrameStack", "frames": kind.frames}
        settings["environment.wrappers"] = [*wrappers, stack]
    config = _configured(task.base_config, settings)
    if kind.frames > 1:
        spec = _observed(config)

    def network(width: int) -> ActorCritic:
        with torch.device("meta"):  # shapes without numbers: nothing is initialized
            return ActorCritic(_of_width(config.network, kind, width), spec)

    def count(width: int) -> int:
        return sum(each.numel() for each in network(width).parameters())

    if by == "width":
        width = -(-tasks.width // kind.step) * kind.step
        match = Match(width, count(width))
    else:
        match = match_width(count, tasks.parameters, range(kind.step, WIDEST + 1, kind.step))
    settings |= dict.fromkeys(kind.width_keys, kind.value(match.width))
    state = network(match.width).initial_state(1)
    size = sum(each.nbytes for torso in state.values() for each in torso.values())
    tree = dict(compose(task.base_config, _overrides(settings)).tree)
    tree.pop("experiment", None)
    return Cell(name, memory, task.base_config, settings, *match, size, tree_hash(tree)[:16])


def configured(cell: Cell, seed: int = 0) -> RunConfig:
    """The configuration of one run of a cell."""
    return _configured(cell.base_config, cell.settings | {"experiment.seed": seed})


def _common(task: Task, tasks: TaskSet) -> Settings:
    """What all memories have in common on a task."""
    return {**tasks.fixed, **task.fixed, "training.total_timesteps": task.steps}


def _observed(config: RunConfig) -> EnvSpec:
    with closing(make_environment(config, "train", 1)) as environment:
        return environment.spec


def _of_width(network: NetworkConfig, kind: Memory, width: int) -> NetworkConfig:
    """The same network with memories, or heads, of another width."""
    for key in kind.width_keys:
        block, name = key.split(".")[1:]
        part = replace(getattr(network, block), **{name: kind.value(width)})
        network = replace(network, **{block: part})
    return network


def _configured(base_config: str, settings: Mapping[str, Any]) -> RunConfig:
    composed = compose(base_config, _overrides(settings))
    return validate(composed.tree, composed.origins)


def _overrides(settings: Mapping[str, Any]) -> list[str]:
    return [as_override(key, value) for key, value in settings.items()]
