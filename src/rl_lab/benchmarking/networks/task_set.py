"""A set of tasks for the benchmark of memories: a YAML file, checked.

title: Tasks that need a memory
parameters: 32_000                    # of each network, for --match parameters
width: 64                             # for --match width
fixed: {environment.num_envs: 16}     # settings of every run
memories: {mamba: {network.memory.d_state: 16}}   # and of one memory
tasks:
  TMaze10: {base_config: "TMaze-v0:ppo", steps: 60_000, threshold: 0.9}
sizes: {gpu: {parameters: 1_000_000, steps: {TMaze10: 1_000_000}}}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_lab.config.presets import find_file, search_folders
from rl_lab.core.checker import check
from rl_lab.core.errors import ConfigError, UserError, did_you_mean
from rl_lab.core.options import Options, option
from rl_lab.tuning.sweep_file import read_block

FOLDER = "benchmark"  # of a config folder
SMALLEST = "cpu"  # the size that the file itself describes


@dataclass(frozen=True, kw_only=True)
class Task(Options):
    """One environment of a set, and how PPO learns it there."""

    base_config: str = option("", "a preset without a memory, such as TMaze-v0:ppo", not_empty=True)
    steps: int = option(100_000, "environment steps of each run", low=1)
    threshold: float | None = option(None, "the return that counts as learned")
    fixed: dict[str, Any] = option({}, "settings of every run on it")
    frames_key: str = option(
        "", "the setting that stacks frames, with `stack4`; empty: the wrapper FrameStack"
    )
    published: dict[str, float] = option({}, "returns of another benchmark, by memory")
    published_steps: int | None = option(None, "environment steps that those took", low=1)


@dataclass(frozen=True, kw_only=True)
class Size(Options):
    """What changes on a larger machine."""

    parameters: int | None = option(None, "parameters of each network", low=1)
    width: int | None = option(None, "width of each memory", low=1)
    fixed: dict[str, Any] = option({}, "settings of every run")
    memories: dict[str, dict[str, Any]] = option({}, "settings of one memory")
    steps: dict[str, int] = option({}, "environment steps, by task", low=1)


@dataclass(frozen=True, kw_only=True)
class SetOptions(Options):
    """What a set says beside its tasks and sizes."""

    title: str = option("", "what the set is about")
    parameters: int = option(32_000, "parameters of each network, if they are matched", low=1)
    width: int = option(64, "width of each memory, if that is matched", low=1)
    fixed: dict[str, Any] = option({}, "settings of every run")
    memories: dict[str, dict[str, Any]] = option({}, "settings of one memory")


@dataclass(frozen=True, kw_only=True)
class TaskSet(SetOptions):
    """A set of tasks, checked."""

    name: str
    tasks: Mapping[str, Task]
    sizes: Mapping[str, Size] = field(default_factory=dict)

    def sized(self, size: str) -> "TaskSet":
        """The set for a machine of this size."""
        if size == SMALLEST:
            return self
        if size not in self.sizes:
            known = [SMALLEST, *self.sizes]
            raise UserError(
                f"--size {size}: {self.name} has no such size{did_you_mean(size, known)}"
            )
        larger = self.sizes[size]
        tasks = {
            name: replace(task, steps=larger.steps.get(name, task.steps))
            for name, task in self.tasks.items()
        }
        memories = {
            name: {**self.memories.get(name, {}), **larger.memories.get(name, {})}
            for name in {*self.memories, *larger.memories}
        }
        return replace(
            self,
            parameters=larger.parameters or self.parameters,
            width=larger.width or self.width,
            fixed={**self.fixed, **larger.fixed},
            memories=memories,
            tasks=tasks,
        )

    def chosen(self, names: Sequence[str]) -> "TaskSet":
        """Only these tasks, in this order; all if none is named."""
        for name in names:
            if name not in self.tasks:
                hint = did_you_mean(name, self.tasks)
                raise UserError(f"--envs {name}: there is no such task in {self.name}{hint}")
        return replace(self, tasks={name: self.tasks[name] for name in names or self.tasks})


def read_set(file: Path) -> TaskSet:
    """The set in a file, or a shipped one by its name."""
    path = _shipped(file)
    tree = read_block(path, "a set of tasks: it needs tasks")
    try:
        return parse_set(tree, path.stem)
    except ConfigError as error:
        raise ConfigError([f"{path}: {each}" for each in error.problems]) from error


def parse_set(tree: Mapping[str, Any], name: str) -> TaskSet:
    """The set that a tree means. All problems at once."""
    words = dict(tree)
    blocks = {"tasks": Task, "sizes": Size}
    made: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for key, schema in blocks.items():
        block = words.pop(key, None) or {}
        if not isinstance(block, Mapping):
            raise ConfigError([f"{key}: must be a block of names, got {block!r}"])
        made[key] = {}
        for each, inside in block.items():
            try:
                made[key][str(each)] = check(schema, inside, f"{key}.{each}")
            except ConfigError as error:
                problems += error.problems
    if not made["tasks"] and not problems:
        problems.append("tasks: name at least one: {TMaze10: {base_config: 'TMaze-v0:ppo'}}")
    for size, inside in made["sizes"].items():
        problems += [
            f"sizes.{size}.steps.{task}: there is no such task{did_you_mean(task, made['tasks'])}"
            for task in inside.steps
            if task not in made["tasks"]
        ]
    try:
        options = check(SetOptions, words)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return TaskSet(**vars(options), name=name, tasks=made["tasks"], sizes=made["sizes"])


def _shipped(path: Path) -> Path:
    """`memory` is a file in ./configs/benchmark or in the package."""
    if path.suffix or path.exists():
        return find_file(path)
    found = {
        each.stem: each
        for folder in reversed(search_folders())
        for each in folder.glob(f"{FOLDER}/*.yaml")
    }
    if str(path) not in found:
        raise UserError(f"--set {path}: there is no such set{did_you_mean(str(path), found)}")
    return found[str(path)]
