"""The only wiring: from a typed config to a run that can start. Constructors meet here."""

import ctypes
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from rl_lab.algorithms.base import VALUES, Algorithm
from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.collect.collector import RolloutCollector
from rl_lab.collect.evaluate import Evaluation, evaluate
from rl_lab.collect.simulate import Simulation
from rl_lab.config import catalog
from rl_lab.config.components import make_components
from rl_lab.config.tree import config_hash
from rl_lab.core import registry
from rl_lab.core.batch import ACTION_MASK
from rl_lab.core.compiled import tell_with
from rl_lab.core.errors import ConfigError, UserError, did_you_mean
from rl_lab.core.failure import defined_at
from rl_lab.core.learner import Learner
from rl_lab.core.protocols import (
    AlgorithmContext,
    Buffer,
    BufferSetup,
    Chunks,
    Replay,
    Sequences,
    Simulator,
    VectorEnv,
)
from rl_lab.core.schema import RunConfig
from rl_lab.core.seeding import Streams, integer
from rl_lab.core.spec import Box, Dict, EnvSpec, Observation
from rl_lab.core.state import Stateful
from rl_lab.display.sinks import Sinks
from rl_lab.envs.make import make_vector
from rl_lab.envs.unit_actions import UnitActions
from rl_lab.networks.encoder import chosen_grids
from rl_lab.networks.normalizer import is_normalizable
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.metrics import MetricLog
from rl_lab.records.provenance import numerics_fingerprint
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.alerts import Alerts
from rl_lab.run.budget import late_end
from rl_lab.run.efficiency import Efficiency
from rl_lab.run.normalized import normalized, references_of
from rl_lab.run.orchestrator import Orchestrator
from rl_lab.run.phases import PhaseDefinition, PhaseScheduler, parse_phases
from rl_lab.run.signals import StopRequest


def build_run(
    config: RunConfig,
    open_directory: Callable[[], RunDirectory],
    sinks: Sinks,
    weights: Mapping[str, Any] | None = None,
) -> tuple[Orchestrator, RunDirectory]:
    """Everything of one run, checked and connected. `config` has no `auto` left.

    The run's folder is opened last: a mistake leaves nothing behind.
    """
    tell_with(sinks.say)
    context = make_context(config)
    for line in room_of(context.buffers):
        sinks.say(line)
    if config.environment.normalize_obs and not _is_normalizable(context.spec.observation):
        sinks.say(
            "WARNING: environment.normalize_obs changes nothing: these observations are images of "
            "integers, or indices"
        )
    for line in grid_choices(config, context.spec.observation):
        sinks.say(line)
    collector = context.collector
    assert isinstance(collector, RolloutCollector)
    algorithm = make_algorithm(config, context)
    if weights is not None:
        load_weights(algorithm, weights, config.training.warm_start_parts)
    phases = make_phases(config, algorithm, context.buffers)
    for line in late_end(config, algorithm, phases):
        sinks.say(line)
    policies = {
        name: make_policy(name, algorithm, context)
        for name in sorted({phase.policy for phase in phases if phase.policy})
    }
    stop = StopRequest()
    numerics = numerics_fingerprint(compiled=config.compute.compile == "on")
    directory = open_directory()
    metrics = MetricLog(directory.metrics_file)
    timing = MetricLog(directory.timing_file, essential=False)
    resources = ExitStack()
    for each in (metrics, timing, sinks, context.train_environment):
        resources.callback(each.close)
    run = Orchestrator(
        config=config,
        folder=directory.path,
        algorithm=algorithm,
        policies=policies,
        components=context.components,
        environment=context.train_environment,
        collector=collector,
        buffers=context.buffers,
        scheduler=PhaseScheduler(phases, config.training.total_timesteps),
        streams=context.rng,
        evaluate=normalized(
            make_evaluator(config, algorithm, context.rng, stop), references_of(config)
        ),
        stop=stop,
        resources=resources,
        identity={"config_hash": config_hash(config), "numerics": numerics},
        store=CheckpointStore(
            directory.checkpoints, config.checkpoint, quarantine=True, on_skip=sinks.warn
        ),
        metrics=metrics,
        timing=timing,
        efficiency=Efficiency(
            context.train_environment,
            collector.stopwatch,
            context.device,
            folder=directory.path,
            total_steps=config.training.total_timesteps,
        ),
        sinks=sinks,
        alerts=Alerts(config, context.spec, directory.path, sinks),
    )
    for name, block in config.training.callbacks.items():
        run.add_callback(name, registry.of("callback", block)(block))
    return run, directory


def _is_normalizable(space: Observation) -> bool:
    parts = space.parts.items() if isinstance(space, Dict) else [("", space)]
    return any(is_normalizable(part) for name, part in parts if name != ACTION_MASK)


def grid_choices(config: RunConfig, observation: Observation) -> list[str]:
    """A line for each part of an observation whose integers `auto` takes for codes."""
    if not catalog.algorithm_class(config.algorithm).uses_network:
        return []
    keys = chosen_grids(config.network.encoder, observation)
    return [
        f"auto: network.encoder{f'.parts.{key}' if key else ''}.type=grid, because these integers "
        "look like codes; set nature or impala if they are a picture"
        for key in keys
    ]


log = logging.getLogger(__name__)
MOST_EVALUATED = 10_000  # steps of an evaluated episode where the environment has no limit
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def fix_numerics(config: RunConfig) -> None:
    """Make torch repeat itself bit for bit: fixed threads, deterministic kernels."""
    assert isinstance(config.compute.threads, int), "resolve the config first"
    torch.set_num_threads(config.compute.threads)
    keep_freed_memory()
    on_gpu = config.experiment.device.startswith("cuda")
    if on_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA's first use
        torch.backends.cudnn.benchmark = False
    if on_gpu or config.compute.threads > 1:
        # One CPU thread has nothing to race with, and this call takes two seconds of imports.
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Filling memory before it is written costs time and changes nothing here.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def keep_freed_memory() -> None:
    """Do not hand freed blocks back to the system between two updates, and ask for them again.

    Each page costs a fault then, which is a tenth of the time of an update with wide layers. Blocks
    as large as a replay buffer still come from the system as they are touched.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # glibc's; others do not need it
        mallopt(_M_TRIM_THRESHOLD, 256 * 2**20)
        mallopt(_M_MMAP_THRESHOLD, 16 * 2**20)


def make_context(config: RunConfig) -> AlgorithmContext:
    """What an algorithm is bound to: environments, buffers, components, random streams."""
    fix_numerics(config)
    seed = config.experiment.seed
    streams = Streams(seed)
    environment = make_environment(config, "train", config.environment.num_envs)
    device = config.experiment.device
    simulation = None
    compiled = config.compute.compile == "on" and device == "cpu"
    own_units = not isinstance(environment, UnitActions)  # whose inside knows nothing of stretching
    if compiled and own_units and isinstance(environment, Simulator):
        simulation = Simulation(environment)
    collector = RolloutCollector(environment, device=device, simulation=simulation)
    return AlgorithmContext(
        config=config,
        spec=environment.spec,
        device=config.experiment.device,
        train_environment=environment,
        collector=collector,
        components=make_components(config, "components"),
        buffers=make_buffers(
            config.buffers,
            environment,
            streams,
            device,
            latent_size=config.algorithm.latent_size,
        ),
        optimizers=make_components(config, "optimizers"),
        rng=streams,
        initial_observation=collector.obs,
    )


def make_environment(config: RunConfig, purpose: str, count: int) -> VectorEnv:
    """The environments of a purpose, in the units that the algorithm acts in."""
    own = seeds(config.experiment.seed, purpose, count)
    environment = make_vector(config.environment, own, training=purpose == "train")
    unit = catalog.algorithm_class(config.algorithm).unit_actions
    return UnitActions(environment) if unit and _is_box(environment) else environment


def _is_box(environment: VectorEnv) -> bool:
    return isinstance(environment.spec.action, Box)


def seeds(seed: int, purpose: str, count: int) -> list[int]:
    """Environment seeds: train, eval and test never share one."""
    return [integer(seed, f"env/{purpose}", index) for index in range(count)]


def make_algorithm(config: RunConfig, context: AlgorithmContext) -> Algorithm:
    """The algorithm, bound to its context; refuses state that a resume would lose."""
    algorithm: Algorithm = catalog.algorithm_class(config.algorithm)(config.algorithm)
    check_signatures(algorithm)
    check_requirements(algorithm, context.components)
    algorithm.initialize(context)
    if lost := algorithm.unsaved():
        raise UserError(
            f"{type(algorithm).__name__}.{lost[0]} would be lost on resume: give its class "
            "state_dict and load_state_dict, or list it in parts()"
        )
    return algorithm


def load_weights(
    algorithm: Algorithm, state: Mapping[str, Any], patterns: Sequence[str] = ()
) -> None:
    """Take networks and tables of another run, or what is chosen of them, and nothing else of it.

    A pattern says what to take, `!pattern` what to leave out.
    """
    skipped = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    taken = [pattern for pattern in patterns if not pattern.startswith("!")] or ["*"]

    def wanted(name: str) -> bool:
        return any(fnmatchcase(name, each) for each in taken) and not any(
            fnmatchcase(name, each) for each in skipped
        )

    count = 0
    for part, there in warm_parts(algorithm, state):
        here = part.state_dict()
        for name in filter(wanted, [*here, *(name for name in there if name not in here)]):
            found = [_shape(each[name]) if name in each else "absent" for each in (there, here)]
            if found[0] != found[1]:
                raise UserError(
                    f"training.warm_start does not fit: {name} is {found[0]} there and {found[1]} "
                    f"here; to leave it out: training.warm_start_parts=['!{name}']"
                )
            here[name] = there[name]
            count += 1
        part.load_state_dict(here)
    if not count:
        chosen = f" and that {list(patterns)} chooses" if list(patterns) != ["*"] else ""
        raise UserError(f"training.warm_start: no parameter is in both networks{chosen}")


def warm_parts(
    algorithm: Algorithm, state: Mapping[str, Any]
) -> list[tuple[Stateful, Mapping[str, Any]]]:
    """What a warm start may change, each with what the other run has of it."""
    state = algorithm.with_new_names(state)
    found: list[tuple[Stateful, Mapping[str, Any]]] = []
    for name, part in algorithm.parts().items():
        if (isinstance(part, nn.Module) or name in algorithm.learned) and name in state:
            found.append((part, state[name]))
        if isinstance(part, Learner) and isinstance(there := state.get(name), Mapping):
            pairs = (part.module, there.get("module")), (part.target, there.get("target"))
            found += [(own, other) for own, other in pairs if own is not None and other is not None]
    saved = state.get(VALUES, {})
    arrays = {name: saved[name] for name in algorithm.learned if name in saved}
    return [*found, (_Arrays(algorithm, list(arrays)), arrays)] if arrays else found


class _Arrays:
    """The arrays that an algorithm learns, as a part of it."""

    def __init__(self, algorithm: Algorithm, names: Sequence[str]) -> None:
        self.algorithm = algorithm
        self.names = names

    def state_dict(self) -> dict[str, Any]:
        """By the names of the attributes."""
        return {name: vars(self.algorithm)[name] for name in self.names}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Copies: the other run's stay its own."""
        for name, value in state.items():
            setattr(self.algorithm, name, value.copy())


def _shape(value: object) -> Any:
    """Of a tensor, or of the running statistics that a normalizer keeps beside its tensors."""
    if isinstance(value, Mapping):
        return {key: _shape(each) for key, each in value.items()}
    return list(value.shape) if hasattr(value, "shape") else type(value).__name__


def check_signatures(algorithm: Algorithm) -> None:
    """`act` and the hooks must take what they will be called with."""
    calls: dict[str, tuple[Sequence[str], str]] = {"act": (("obs", "state"), "deterministic")}
    calls |= dict.fromkeys(algorithm.hooks, (("batch",), "phase"))
    for name, (positional, keyword) in calls.items():
        method = getattr(algorithm, name)
        try:
            inspect.signature(method).bind(*positional, **{keyword: None})
        except TypeError as error:
            call = f"{name}({', '.join(positional)}, {keyword}=…)"
            raise UserError(f"{defined_at(method)}: it is called as {call}: {error}") from error


def check_requirements(algorithm: Algorithm, components: Mapping[str, Any]) -> None:
    """Duck typing with a good error: every role and method the algorithm says it calls."""
    for role, methods in algorithm.requires.items():
        if role not in components:
            hint = did_you_mean(role, components)
            raise UserError(f"{type(algorithm).__name__} needs components.{role}{hint}")
        missing = [name for name in methods if not hasattr(components[role], name)]
        if missing:
            kind = type(components[role]).__name__
            raise UserError(f"components.{role} is a {kind}, which has no method '{missing[0]}'")


def make_policy(name: str, algorithm: Algorithm, context: AlgorithmContext) -> Algorithm:
    """Another registered algorithm that only acts, for phases with `policy: name`."""
    found = catalog.algorithm_class(name)
    policy: Algorithm = found(found.Config() if found.Config else None)
    policy.initialize(context)
    policy.collect_steps = algorithm.collect_steps
    return policy


def make_phases(
    config: RunConfig, algorithm: Algorithm, buffers: Mapping[str, Buffer]
) -> list[PhaseDefinition]:
    """The configured phases, or the algorithm's own; every hook, buffer and policy must exist."""
    default = [{"name": "train", "hooks": ["collect", *algorithm.hooks]}]
    own = catalog.algorithm_class(config.algorithm).phases
    blocks = config.training.phases or own or default
    phases = parse_phases(blocks)
    problems = []
    for phase in phases:
        legal = {
            "hook": ["collect", "evaluate", *algorithm.hooks],
            "buffer": list(buffers),
            "policy": registry.names("workflow"),
        }
        asked = [("hook", hook) for hook in phase.hooks]
        asked += [("buffer", phase.buffer or ""), ("policy", phase.policy or "")]
        problems += [
            f"training.phases: '{phase.name}' asks for {kind} '{name}'{did_you_mean(name, known)}"
            for kind, name in asked
            if name and name not in (known := legal[kind])
        ]
    problems = problems or buffer_problems(algorithm, phases, buffers)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return phases


def buffer_problems(
    algorithm: Algorithm, phases: Sequence[PhaseDefinition], buffers: Mapping[str, Buffer]
) -> list[str]:
    """Buffers that an algorithm cannot learn from, and parts of a union that no phase fills."""
    first, kind = next(iter(buffers)), type(algorithm).__name__
    collecting = [buffers[p.buffer or first] for p in phases if "collect" in p.hooks]
    filled = {id(getattr(each, "collecting", each)) for each in collecting}
    problems = [
        f"buffers.{p.buffer or first} is only read: the phase '{p.name}' cannot collect into it"
        for p in phases
        if "collect" in p.hooks and getattr(buffers[p.buffer or first], "read_only", False)
    ]
    learning = [p.buffer or first for p in phases if set(p.hooks) - {"collect", "evaluate"}]
    for name in dict.fromkeys(learning):
        buffer = buffers[name]
        kinds = {
            "transitions": (Replay, "uniform"),
            "sequences": (Sequences, "sequence"),
            "chunks": (Chunks, "offline"),
        }
        wanted, example = kinds.get(algorithm.learns_from, (object, ""))
        if not isinstance(buffer, wanted):
            problems.append(
                f"buffers.{name}: {kind} learns from {algorithm.learns_from}, "
                f"which a buffer such as {{type: {example}}} gives"
            )
        if isinstance(buffer, Replay) and type(algorithm).sample is Algorithm.sample:
            problems.append(
                f"buffers.{name}: {kind} learns from the latest rollout, use {{type: rollout}}"
            )
        problems += [
            f"buffers.{name}: nothing is ever collected into its part '{part}'"
            for part, each in getattr(buffer, "parts", {}).items()
            if id(each) not in filled and not each.ready()
        ]
    return problems


def make_buffers(
    blocks: Mapping[str, Any],
    environment: VectorEnv,
    streams: Streams,
    device: str,
    latent_size: int,
) -> dict[str, Buffer]:
    """Named buffers, in their order; a rollout buffer when none is configured."""
    made: dict[str, Buffer] = {}
    for name, block in (blocks or {"rollout": RolloutBuffer.Config()}).items():
        setup = BufferSetup(
            spec=environment.spec,
            num_envs=environment.num_envs,
            rng=streams.numpy(f"buffer/{name}"),
            device=device,
            others=dict(made),
            goal_reward=getattr(environment, "goal_reward", None),
            latent_size=latent_size,
        )
        try:
            made[name] = registry.of("buffer", block)(block, setup)
        except UserError as error:
            raise UserError(f"buffers.{name}: {error}") from error
    return made


def room_of(buffers: Mapping[str, Buffer]) -> list[str]:
    """What replay buffers will take of this machine's memory, a line for each."""
    sizes = {name: getattr(each, "bytes_needed", 0) for name, each in buffers.items()}
    return [
        f"buffers.{name} takes {_readable(size)} of memory when it is full"
        for name, size in sizes.items()
        if size
    ]


def _readable(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{max(size / 2**20, 0.1):.1f} MiB"


def is_endless(config: RunConfig, spec: EnvSpec) -> bool:
    """True if nothing that is known would ever end an episode of a policy that goes in circles.

    EnvPool and Atari's own vector count frames by themselves.
    """
    single = config.environment.vectorization in ("sync", "process")
    return single and spec.max_episode_steps is None


def make_evaluator(
    config: RunConfig, algorithm: Algorithm, streams: Streams, stop: StopRequest | None = None
) -> Callable[[str, int], Evaluation]:
    """Evaluation on its own environments, seeds and random streams.

    The final test ends at the first signal, an evaluation within the run at the second: the run
    must be saved after it, not within it.

    The environments are made again each time: an evaluation depends on the policy and the seeds
    only, so a resumed run measures what the uninterrupted one measured.
    """
    endless = is_endless(config, algorithm.context.spec)
    if endless:
        limited = replace(config.environment, max_episode_steps=MOST_EVALUATED)
        config = replace(config, environment=limited)

    def run(purpose: str, episodes: int) -> Evaluation:
        assert config.evaluation.num_envs != "auto", "resolve the config first"
        count = min(config.evaluation.num_envs, episodes)
        own_seeds = seeds(config.experiment.seed, purpose, count)
        with (
            streams.borrowed(f"{purpose}/"),
            closing(make_environment(config, purpose, count)) as environment,
        ):
            seen = evaluate(
                algorithm.act,
                environment,
                seeds=own_seeds,
                episodes=episodes,
                deterministic=config.evaluation.deterministic,
                initial_state=algorithm.initial_state(count),
                device=config.experiment.device,
                interrupted=lambda: stop is not None and stop.count > (purpose != "test"),
                record=purpose == "eval" and config.logging.pictures and algorithm.draws,
            )
        if endless and max(seen.lengths) >= MOST_EVALUATED:
            log.warning(
                "an evaluated episode of %s did not end and was stopped after %s steps: "
                "environment.max_episode_steps sets a limit for training, too",
                *(config.environment.id, f"{MOST_EVALUATED:,}"),
                extra={"once": "no time limit"},
            )
        return seen

    return run
