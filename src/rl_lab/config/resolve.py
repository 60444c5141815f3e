"""What every `auto` of a configuration means here. Decided once, when a run starts, and recorded.

Each decision is a pure function of the configuration and of what was found out about the machine.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rl_lab.algorithms.base import Algorithm
from rl_lab.config import catalog
from rl_lab.config.compose import FEWEST_EVALUATIONS
from rl_lab.config.tree import to_tree
from rl_lab.core import registry
from rl_lab.core.compiled import compiler
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig
from rl_lab.core.spec import Dict, EnvSpec
from rl_lab.envs import probe
from rl_lab.envs.make import resolve_vectorization
from rl_lab.envs.process import usable_cores
from rl_lab.networks.cnn import ImageEncoder, is_image
from rl_lab.records.run_directory import RunDirectory

COMPILE_SECONDS = 30.0  # what the first compilation of a function costs
SAVED_SECONDS = 1e-3  # what it saves per gradient step of a small network

WIDE = 256  # layers and batches from here on are worth a second thread
MOST_THREADS = 4  # more share too little work of such layers

# Worker processes, measured on two cores: what a vector step costs beside the environments' own
# work, and what it takes to start workers the first time and for every evaluation.
EXCHANGE_SECONDS, WORKER_SECONDS = 0.2e-3, 0.1e-3
FIRST_START_SECONDS, START_SECONDS = 3.0, 0.3
CLEARLY = 1.3  # how many times faster they must be

EVALUATION_ENVS = 8  # where each of them costs time of its own
EVALUATION_STEPS, CHECKPOINT_STEPS = 10_000, 50_000  # between two of them in a long run
FEWEST = FEWEST_EVALUATIONS  # of either in a short one

Tell = Callable[[str], None]
Choice = tuple[str, str]  # what was chosen, and why in a few words


@dataclass(frozen=True)
class Machine:
    """What the decisions depend on beside the configuration."""

    cores: int  # this run's share of those the process may use
    cuda: bool
    compiler: bool
    thread_limit: int | None = None  # OMP_NUM_THREADS


def resolve(
    config: RunConfig, *, measure: bool = False, tell: Tell = lambda message: None
) -> RunConfig:
    """Replace every `auto`. A resumed run keeps what was chosen: its config has none left.

    With `measure`, an environment may be made and stepped for a moment; without, `auto` means one
    process, and one thread where only the environment could tell that it shows images.
    """
    config = with_intervals(with_choices(config))
    here = this_machine()
    chosen_device = device(config.experiment.device, here.cuda)
    seen = _tried(config, here) if measure else None
    spec = seen.spec if seen else None
    chosen_mode: Any = compile_mode(config, spec, chosen_device, here.compiler, tell)
    compiled = chosen_mode == "on" and _acts_purely(config)
    backend: Any = resolve_vectorization(config.environment, compiled=compiled)
    if seen is not None and (seen.step_seconds or seen.obstacle):
        backend, reason = vectorization(config, seen, here.cores)
        tell(f"environment.vectorization={backend}: {reason}")
    config = replace(
        config,
        experiment=replace(config.experiment, device=chosen_device),
        environment=replace(config.environment, vectorization=backend),
        evaluation=replace(config.evaluation, num_envs=evaluation_envs(config, backend)),
        compute=replace(config.compute, compile=chosen_mode),
    )
    if config.compute.threads != "auto":
        return config
    count, reason = threads(config, spec, here)
    if count > 1:
        tell(f"compute.threads={count}: {reason}")
    return replace(config, compute=replace(config.compute, threads=count))


def with_intervals(config: RunConfig) -> RunConfig:
    """Evaluations and checkpoints that even a short run has several of."""
    total = config.training.total_timesteps
    evaluation = interval(config.evaluation.every_steps, EVALUATION_STEPS, total)
    checkpoint = interval(config.checkpoint.every_steps, CHECKPOINT_STEPS, total)
    return replace(
        config,
        evaluation=replace(config.evaluation, every_steps=evaluation),
        checkpoint=replace(config.checkpoint, every_steps=checkpoint),
    )


def interval(asked: str | int, usual: int, total: int) -> int:
    """Steps between two of something: what is asked for; `auto`: `usual`, or a fifth of a run."""
    if isinstance(asked, int):
        return asked
    return max(total // max(-(-total // usual), FEWEST), 1)


def evaluation_envs(config: RunConfig, backend: str) -> int:
    """One for each episode where environments are stepped together: no waiting for second ones."""
    evaluation = config.evaluation
    if evaluation.num_envs != "auto":
        return evaluation.num_envs
    episodes = max(evaluation.episodes, evaluation.test_episodes)
    return episodes if backend == "torch" else EVALUATION_ENVS


def with_choices(config: RunConfig) -> RunConfig:
    """With the options that the algorithm chooses by itself where the user sets nothing."""
    chosen = config.algorithm.choices(config)
    return replace(config, algorithm=replace(config.algorithm, **chosen)) if chosen else config


def this_machine() -> Machine:
    """What is here now. Other runs that are being trained get their share of the cores."""
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return Machine(
        cores=max(1, usable_cores() // (1 + len(other_runs()))),
        cuda=torch.cuda.is_available(),
        compiler=compiler() is not None,
        thread_limit=int(limit) if limit.isdecimal() and int(limit) > 0 else None,
    )


def other_runs(proc: Path = Path("/proc")) -> set[Path]:
    """The lock files that other processes of this user hold, where the kernel tells (Linux).

    A run has no lock while it is being built: of two that start at once neither sees the other.
    """
    name = RunDirectory(Path()).lock_file.name
    try:
        rows = [line.split() for line in (proc / "locks").read_text().splitlines()]
    except OSError:
        return set()
    holders = {row[4] for row in rows if row[1:2] == ["FLOCK"]} - {str(os.getpid())}
    files = (file for holder in holders for file in _open_files(proc / holder / "fd"))
    return {file for file in files if file.name == name}


def _open_files(descriptors: Path) -> list[Path]:
    """What a process has open; nothing if it has ended or is another user's."""
    files = []
    with suppress(OSError):
        for each in descriptors.iterdir():
            with suppress(OSError):  # closed meanwhile
                files.append(each.readlink())
    return files


def device(asked: str, cuda: bool) -> str:
    """A GPU if there is one; none is a mistake only if one is asked for."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", asked):
        raise UserError(f"experiment.device is '{asked}': write auto, cpu, cuda or cuda:N")
    if asked.startswith("cuda") and not cuda:
        raise UserError(f"experiment.device is '{asked}', but this machine has no usable GPU")
    return asked if asked != "auto" else "cuda" if cuda else "cpu"


def compile_mode(
    config: RunConfig, spec: EnvSpec | None, chosen_device: str, compiler: bool, tell: Tell
) -> str:
    """On if the planned gradient steps repay a first compilation, and it can be done.

    Whether it was done before does not count: a command means the same run today and tomorrow.
    """
    asked = config.compute.compile
    if asked == "on" and not compiler:
        raise UserError("compute.compile is on, but no C++ compiler (g++) was found")
    check_compile(config)
    if asked != "auto":
        return asked
    # Parts of plug-ins may not compile, and other optimizers cannot.
    if config.components or config.optimizers:
        return "off"
    # A memory is unrolled, which takes minutes to compile; convolutions gain nothing; for a GPU the
    # toolkit with its headers would be needed, which few have.
    hopeless = config.network.memory.type != "none" or sees_images(config, spec)
    if hopeless or chosen_device != "cpu" or not _repays(config):
        return "off"
    if not compiler:
        tell(
            "updates would be compiled, but no C++ compiler was found (install g++): "
            "running eagerly"
        )
    return "on" if compiler else "off"


def check_compile(config: RunConfig) -> None:
    """Refuse `compute.compile=on` where there is nothing to compile."""
    compiles = getattr(catalog.algorithm_class(config.algorithm), "compiles", True)
    if config.compute.compile == "on" and not (
        compiles or (_acts_purely(config) and _is_simulated(config))
    ):
        raise UserError(
            f"compute.compile is on, but {config.algorithm.name} has nothing to compile on "
            f"{config.environment.id}: leave it at auto"
        )


def _repays(config: RunConfig) -> bool:
    """Whether the planned gradient steps take longer than compiling what they need."""
    # The update, and where policy and simulator can be compiled, rollouts.
    functions = 2 if _acts_purely(config) and _is_simulated(config) else 1
    steps = config.algorithm.gradient_steps(config)
    return steps * SAVED_SECONDS > functions * COMPILE_SECONDS


def _is_simulated(config: RunConfig) -> bool:
    """Whether the environment can be compiled into a rollout."""
    return resolve_vectorization(config.environment, compiled=True) == "torch"


def _acts_purely(config: RunConfig) -> bool:
    """Whether the algorithm's policy can be compiled into a rollout."""
    return catalog.algorithm_class(config.algorithm).pure_policy is not Algorithm.pure_policy


def vectorization(config: RunConfig, seen: probe.Probe, cores: int) -> Choice:
    """`process` if it is clearly faster than `sync` over the whole run.

    Only these two are compared: they give the same transitions for the same seeds.
    """
    if seen.obstacle is not None or seen.step_seconds is None:
        return "sync", seen.obstacle or "its cost is not known"
    count = config.environment.num_envs
    workers = min(config.environment.workers or usable_cores(), count)
    # More workers than cores only take turns.
    together = max(1.0, min(workers, cores, seen.free_cores or cores))
    in_turn = count * seen.step_seconds
    shared = in_turn / together + EXCHANGE_SECONDS + workers * WORKER_SECONDS
    costs = (
        f"{count} steps take {_milliseconds(in_turn)} here, about {_milliseconds(shared)} "
        f"in {workers} worker{'s' * (workers > 1)} ({together:.2g} cores free)"
    )
    if in_turn < CLEARLY * shared:
        return "sync", costs if in_turn <= shared else f"{costs}: not {CLEARLY} times as fast"
    saved = (in_turn - shared) * config.training.total_timesteps / count
    if saved < FIRST_START_SECONDS + _evaluations(config) * START_SECONDS:
        return "sync", f"{costs}: too little in so short a run"
    return "process", costs


def threads(config: RunConfig, spec: EnvSpec | None, here: Machine) -> tuple[int, str]:
    """One for small networks, where a second costs more than it brings; some for wide ones."""
    free = here.cores
    if config.environment.vectorization == "process":
        # Threads that wait for work keep their core busy for a while, which the workers need.
        workers = config.environment.workers
        free = free // 2 if workers is None else free - workers
    if here.thread_limit is not None:
        free = min(free, here.thread_limit)
    width, rows = widest(to_tree(config.network)), config.algorithm.rows_per_step(config)
    if sees_images(config, spec):
        reason = "images"
    elif width >= WIDE and rows >= WIDE:
        reason = f"layers of {width}, batches of {rows}"
    else:
        return 1, "a small network"
    return max(1, min(free, MOST_THREADS)), reason


def widest(network: Mapping[str, Any]) -> int:
    """The largest width that stands in a network's block."""
    return max(_widths(network), default=0)


def _widths(tree: Mapping[str, Any]) -> Iterator[int]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _widths(value)
        elif key in ("hidden_dims", "hidden_dim"):
            yield from value if isinstance(value, list) else [value]


def sees_images(config: RunConfig, spec: EnvSpec | None) -> bool:
    """Whether convolutions will run: an encoder of images, or images for `auto` to see."""
    if issubclass(registry.of("encoder", config.network.encoder), ImageEncoder):
        return True
    if spec is None:
        return False
    shown = spec.observation
    spaces = list(shown.parts.values()) if isinstance(shown, Dict) else [shown]
    return any(is_image(each) for each in spaces)


def _tried(config: RunConfig, here: Machine) -> probe.Probe | None:
    """One environment, made only if something depends on it, and stepped only if its cost does."""
    environment, several = config.environment, here.cores > 1
    open_choice = environment.vectorization == "auto" and environment.num_envs > 1
    if several and open_choice and resolve_vectorization(environment) == "sync":
        return probe.measure(environment)
    # Images decide about threads and compiling; only the environment knows whether there are any.
    more_threads = several and config.compute.threads == "auto" and here.thread_limit != 1
    compiling = config.compute.compile == "auto" and _repays(config)
    if (more_threads or compiling) and config.network.encoder.type == "auto":
        return probe.look(environment)
    return None


def _evaluations(config: RunConfig) -> int:
    """How often a run makes new environments to be measured in."""
    every = config.evaluation.every_steps
    assert every != "auto"
    regular = config.training.total_timesteps // every if every else 0
    return regular + (config.evaluation.test_episodes > 0)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
