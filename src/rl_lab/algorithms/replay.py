"""What algorithms with a replay buffer share: their options, minibatches, and priorities.

Pure functions and configuration; how many gradient steps are due is `core.clock.UpdateBudget`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from rl_lab.core.batch import INDEX, OBS, Batch, Metrics
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.errors import UserError
from rl_lab.core.learner import OptimizerFactory, Update, scalar
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.options import option, section
from rl_lab.core.protocols import AlgorithmContext, Buffer, Dataset, Phase, Replay, Sequences
from rl_lab.core.schedule import Schedule, extremes
from rl_lab.core.schema import AlgorithmConfig, RunConfig
from rl_lab.core.tree import first_leaf, picked
from rl_lab.core.values import whole
from rl_lab.networks.normalizer import Normalizer

# How checkpoints of earlier versions name what `self.budget` holds.
BUDGET_NAMES = {
    "budget.steps": "values.gradient_steps",
    "budget.seen": "earned.seen",
    "budget.parts": "earned.parts",
}
ERROR = "error"  # |TD error| of each row: the new priority of a prioritized buffer
LONGEST = 32  # frames of sequences that are worth compiling: a memory is unrolled


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """When to learn, and from how much. Any float may be a schedule."""

    keeps_states: ClassVar[bool] = False  # in the buffer, beside the frames they belong to
    warms_up: ClassVar[bool] = False  # a memory, by the first frames of a sequence
    default_phases: ClassVar[Sequence[Mapping[str, Any]]] = ()  # where training.phases is empty
    batch_size: int = option(256, "transitions of one gradient step", low=1)
    replay_ratio: float = option(
        1.0,
        "gradient steps per environment step, fractions are carried; 0: one per call of the hook",
        low=0,
    )
    learning_starts: int = option(
        1000, "environment steps of random actions before learning", low=0
    )
    train_every: int = option(1, "vector steps between updates", low=1)
    gamma: float = option(0.99, "discount factor", low=0, high=1)
    max_grad_norm: float = option(10.0, "largest norm of a gradient", above=0)
    optimizer: OptimizerConfig = section(OptimizerConfig, "the optimizer's own settings")

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = []
        if run.network.memory.type != "none" and (reason := self.memory_problem()):
            problems.append(f"network.memory has no use here: {reason}")
        if run.environment.normalize_reward:
            problems.append(
                "environment.normalize_reward would change rewards that are in a buffer already: "
                "leave it off"
            )
        for name, buffer in run.buffers.items():
            capacity, (option_name, needed) = getattr(buffer, "capacity", None), self.rows_needed()
            if capacity is not None and capacity < needed:
                problems.append(
                    f"{option_name} {needed} is larger than buffers.{name}.capacity, {capacity}"
                )
            if getattr(buffer, "only", None):
                problems.append(f"learning needs all of buffers.{name}: its `only` must be empty")
            if getattr(buffer, "latents", False) and not self.keeps_states:
                problems.append(
                    f"buffers.{name}.latents must be false: {run.algorithm.name} keeps no states"
                )
            if getattr(buffer, "burn_in", 0) and not self.warms_up:
                problems.append(
                    f"buffers.{name}.burn_in must be 0: {run.algorithm.name} learns from every row"
                )
        return problems

    def memory_problem(self) -> str:
        """Why `network.memory` would do nothing, if so."""
        return "minibatches are single transitions (r2d2 and ppo learn with a memory)"

    def rows_needed(self) -> tuple[str, int]:
        """Rows that a buffer must have room for, and the option that says so."""
        return "batch_size", self.batch_size

    def gradient_steps(self, run: RunConfig) -> float:
        """Gradient steps of a whole run: what compiling them would have to repay."""
        phases = run.training.phases or self.default_phases
        steps = run.training.total_timesteps - self.learning_starts
        online = steps * extremes(self.replay_ratio)[1] if collects(phases) else 0
        return float(online + offline_updates(phases))

    def small(self, run: RunConfig, *, call: int, before: int) -> list[dict[str, Any]]:
        """Options, by path, with which a run of few steps still does everything.

        One call of collect should take `call` environment steps at most, and `before` is how many
        there are when learning begins. Options in one dict only make sense together.
        """
        steps, needed = run.training.total_timesteps, self.rows_needed()[1]
        enough = max(2 * steps, (needed + 1) * run.environment.num_envs)  # rows for all, or windows
        changes: list[dict[str, Any]] = []
        if self.learning_starts >= steps:
            changes.append({"algorithm.learning_starts": steps * 9 // 10})
        for name, buffer in run.buffers.items():
            if (getattr(buffer, "capacity", None) or 0) > enough:  # None: no fixed number
                changes.append({f"buffers.{name}.capacity": enough})
        return changes

    def warnings(self, run: RunConfig) -> list[str]:
        """What is legal and probably not meant."""
        total = run.training.total_timesteps
        if self.learning_starts < total or offline_updates(
            run.training.phases or self.default_phases
        ):
            return []
        return [
            f"nothing is learned in {total} steps: algorithm.learning_starts is "
            f"{self.learning_starts}"
        ]


@dataclass(frozen=True, kw_only=True)
class TransitionConfig(ReplayConfig):
    """Updates from single transitions. Any float may be a schedule."""

    n_step: int = option(1, "rewards in a row before the bootstrap", low=1)
    importance_beta: float = option(
        Schedule(start=0.4, end=1.0),
        "prioritized buffers: how far their bias is corrected, 1 is wholly",
        low=0,
        high=1,
    )
    learning_rate: float = option(3e-4, "step size of the optimizer", above=0)

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        for name, buffer in run.buffers.items():
            if self.n_step > 1 and getattr(buffer, "type", "") == "her":
                problems.append(f"n_step must be 1 with buffers.{name} of type her")
        return problems


def collects(phases: Sequence[Mapping[str, Any]]) -> bool:
    """True if one of the phases, as they are written, is not offline; or if there are none."""
    inner = (collects(each["phases"]) for each in phases if "repeat" in each)
    plain = (each.get("type") != "offline" for each in phases if "repeat" not in each)
    return not phases or any(inner) or any(plain)


def offline_updates(phases: Sequence[Mapping[str, Any]]) -> int:
    """Updates in offline phases, as they are written; 0 for those that have no fixed number."""
    count = 0
    for each in phases:
        if "repeat" in each:
            count += int(each["repeat"]) * offline_updates(each["phases"])
        elif each.get("type") == "offline":
            count += whole(each.get("duration_updates") or 0)
    return count


def normalize_by_dataset(normalizer: Normalizer, context: AlgorithmContext) -> None:
    """Give a normalizer with running statistics those of the dataset, if the run has one.

    They are part of the policy from then on, and online phases do not change them: critics and
    actor have learned with these numbers.
    """
    if normalizer.mode == "running" and (data := dataset(context)) is not None:
        normalizer.set_statistics(data.observation_statistics())


def track_online(normalizer: Normalizer, trajectory: Batch, context: AlgorithmContext) -> None:
    """Count each new frame in the observation statistics, unless they are those of a dataset."""
    if normalizer.mode == "running" and dataset(context) is None:
        normalizer.update_statistics(trajectory[OBS])


def dataset(context: AlgorithmContext) -> Dataset | None:
    """The first buffer that is only read."""
    buffers: Iterable[object] = context.buffers.values()
    return next((each for each in buffers if isinstance(each, Dataset)), None)


def sample_minibatches(
    buffer: Buffer, budget: UpdateBudget, phase: Phase, now: TransitionConfig
) -> Batch | None:
    """Minibatches [K, B, …] for all K gradient steps that are due; None if there are none."""
    due = budget.due(phase, now.replay_ratio, ready=buffer.ready())
    if due == 0:
        return None
    replay = cast(Replay, buffer)  # `learns_from` is checked when a run is built
    return replay.sample(now.batch_size, due, n_step=now.n_step, beta=now.importance_beta)


def sample_windows(
    buffer: Buffer,
    budget: UpdateBudget,
    phase: Phase,
    replay_ratio: float,
    *,
    batch_size: int,
    batch_length: int,
) -> Batch | None:
    """Windows [K, T, B, …] for all K gradient steps that are due; None if there are none."""
    frames = cast(Sequences, buffer)  # `learns_from` is checked when a run is built
    due = budget.due(phase, replay_ratio, ready=frames.ready(batch_length))
    return frames.sequences(batch_size, batch_length, due) if due else None


def minibatches(batch: Batch, budget: UpdateBudget, phase: Phase, ratio: float) -> Iterator[Batch]:
    """The K minibatches of a batch [K, …], each one counted as a gradient step."""
    for index in budget.take(len(first_leaf(batch)), phase, ratio):
        yield picked(batch, index)


def update_priorities(
    context: AlgorithmContext, batch: Batch, errors: Sequence[Tensor], phase: Phase
) -> None:
    """Give the buffer the |TD errors| of K minibatches, if it draws by priority."""
    if INDEX in batch:
        buffer = cast(Replay, context.buffer(phase))
        buffer.reprioritize(batch[INDEX], torch.stack(list(errors)))


def torch_optimizer(context: AlgorithmContext, name: str) -> OptimizerFactory | None:
    """The optimizer of `torch.optim` that `optimizers:` names for a part, if any."""
    factory = context.optimizers.get(name)
    if factory is not None and context.config.compute.compile == "on":
        raise UserError(f"optimizers.{name} cannot be compiled: set compute.compile=off")
    return factory


def step_sizes(learning_rate: float, max_grad_norm: float, device: str) -> dict[str, Tensor]:
    """The arguments of `Learner.step` that may be schedules, as tensors."""
    return {
        "learning_rate": scalar(learning_rate, device),
        "max_grad_norm": scalar(max_grad_norm, device),
    }


def step_metrics(name: str, step: Update) -> Metrics:
    """What a gradient step reports, with loss and gradient norm under the name of the part."""
    return {**step.metrics, f"{name}_loss": step.loss, f"grad_norm/{name}": step.grad_norm}


def window_problems(run: RunConfig, option_name: str, frames: int) -> list[str]:
    """Buffers with no room for a window of that many frames, which are all of one environment."""
    count = run.environment.num_envs
    found = []
    for name, buffer in run.buffers.items():
        rows = getattr(buffer, "capacity", (frames + 1) * count) // count
        if rows <= frames:  # what led to the oldest frame is not known any more
            found.append(
                f"a window of {option_name} has {frames} frames of one environment, and "
                f"buffers.{name} has room for {rows} of each: capacity must be "
                f"{(frames + 1) * count}"
            )
    return found


def require_probabilities(config: object, *names: str) -> None:
    """Refuse options, or schedules of them, that are ever outside of [0, 1]."""
    for name in names:
        low, high = extremes(getattr(config, name))
        if not 0.0 <= low <= high <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], got {low if low < 0 else high:g}")


def require_positive(config: object, *names: str) -> None:
    """Refuse options, or schedules of them, that are not above zero."""
    for name in names:
        low, high = extremes(getattr(config, name))
        if low < 0 or high <= 0:
            raise ValueError(f"{name} must be positive, got {low:g}")


def require_not_negative(config: object, *names: str) -> None:
    """Refuse options, or schedules of them, that are ever below zero."""
    for name in names:
        if (low := extremes(getattr(config, name))[0]) < 0:
            raise ValueError(f"{name} must be 0 or more, got {low:g}")


def averages(steps: Sequence[Metrics]) -> Metrics:
    """The mean of each metric over the steps that have it."""
    names: dict[str, None] = {}
    for step in steps:  # not all have every metric
        names |= dict.fromkeys(step)
    return {name: _mean([step[name] for step in steps if name in step]) for name in names}


def _mean(values: list[Any]) -> Any:
    """Of numbers, or of 0-d tensors."""
    if isinstance(values[0], torch.Tensor):
        return values[0] if len(values) == 1 else torch.stack(values).mean()
    return sum(values) / len(values)
