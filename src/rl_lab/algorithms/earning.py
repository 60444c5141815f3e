"""What algorithms that learn from remembered data share: when to learn, and how often.

Gradient steps are earned by environment steps at an exact ratio: nothing is lost to rounding, and a
resumed run goes on as if nothing had happened. A gradient step that meets a bad number undoes the
whole update.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from rl_lab.algorithms.base import Optimized, Roles, Workflow
from rl_lab.core.actions import random_action
from rl_lab.core.batch import Action, CollectResult, Metrics
from rl_lab.core.clock import Earned
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.optim import FlatOptimizer, Loss, OptimizerConfig, scalar
from rl_lab.core.options import option, section
from rl_lab.core.protocols import Phase, WorkflowContext
from rl_lab.core.schedule import extremes
from rl_lab.core.schema import AlgorithmConfig
from rl_lab.core.torch_optim import TorchOptimizer

LONGEST = 32  # frames of sequences that are worth compiling: a memory is unrolled


@dataclass(frozen=True, kw_only=True)
class EarningConfig(AlgorithmConfig):
    """When to learn, and from how much. Any float may be a schedule."""

    keeps_states: ClassVar[bool] = False  # in the buffer, beside the frames they belong to
    warms_up: ClassVar[bool] = False  # a memory, by the first frames of a sequence
    batch_size: int = option(256, "transitions of one gradient step")
    replay_ratio: float = option(
        1.0,
        "gradient steps per environment step, fractions are carried; 0: one per call of the hook",
    )
    learning_starts: int = option(1000, "environment steps of random actions before learning")
    train_every: int = option(1, "vector steps between updates")
    gamma: float = option(0.99, "discount factor")
    max_grad_norm: float = option(10.0, "largest norm of a gradient")
    optimizer: OptimizerConfig = section(OptimizerConfig, "the optimiser's own settings")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        for name in ("batch_size", "train_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.learning_starts < 0:
            raise ValueError(f"learning_starts must be 0 or more, got {self.learning_starts}")
        require_chances(self, "gamma")
        require_positive(self, "max_grad_norm")
        if (low := extremes(self.replay_ratio)[0]) < 0:
            raise ValueError(f"replay_ratio must be 0 or more, got {low:g}")

    def check(self, run: Any) -> list[str]:
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

    def gradient_steps(self, run: Any) -> float:
        """Gradient steps of a whole run: what compiling them would have to repay."""
        steps = run.training.total_timesteps - self.learning_starts
        return float(steps * extremes(self.replay_ratio)[1])

    def small(self, run: Any, *, call: int, before: int) -> list[dict[str, Any]]:
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
            if getattr(buffer, "capacity", 0) > enough:
                changes.append({f"buffers.{name}.capacity": enough})
        return changes

    def warnings(self, run: Any) -> list[str]:
        """What is legal and probably not meant."""
        total = run.training.total_timesteps
        if self.learning_starts < total:
            return []
        return [
            f"nothing is learned in {total} steps: algorithm.learning_starts is "
            f"{self.learning_starts}"
        ]


class EarningWorkflow(Workflow):
    """Collect a little, then take the gradient steps that were earned."""

    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    config: Any

    def initialize(self, context: WorkflowContext) -> None:
        """The account of gradient steps; a subclass adds its networks."""
        super().initialize(context)
        self.collect_steps = self.config.train_every
        self.earned = Earned(seen=self.config.learning_starts)
        self.gradient_steps = 0
        self.warm_up_rng = context.rng.numpy("warm_up")

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then the policy's own."""
        if step >= self.config.learning_starts:
            return super().collect_step(step, phase=phase)
        state = self.initial_state(self.context.train_environment.num_envs)
        steps = self.collect_length(phase)
        return self.context.collector.collect(self.warm_up, steps=steps, state=state)

    def warm_up(self, obs: Any, state: Any, *, deterministic: bool) -> Action:
        """Uniformly random: the first data covers the action space."""
        return Action(random_action(self.context.spec.action, obs, self.warm_up_rng), state)

    def due(self, phase: Phase, ratio: float, account: Earned | None = None, *, ready: bool) -> int:
        """Gradient steps that may be taken now; one where nothing is played.

        Steps before there is anything to learn from (`ready`) earn nothing.
        """
        account, steps = account or self.earned, phase.get("env_steps", phase["step"])
        if not ready:
            account.seen = max(account.seen, steps)
            return 0
        if phase["type"] == "offline" or ratio == 0:
            return 1
        # Steps of phases that only collect earn nothing: this one would have to learn them at once.
        account.seen = max(account.seen, steps - phase.get("phase_steps", steps))
        return max(account.count(steps, ratio), 0)

    def spend(self, count: int, phase: Phase, ratio: float, account: Earned | None = None) -> None:
        """So many of those that were due were taken."""
        if phase["type"] != "offline" and ratio != 0:
            (account or self.earned).spend(count)

    def take_steps(
        self,
        count: int,
        step: Callable[[int], Metrics],
        counters: Sequence[str] = ("gradient_steps",),
    ) -> list[Metrics]:
        """`step(index)` for each gradient step. On a bad number all is as it was before."""
        saved, before = self.learned_state(), {name: getattr(self, name) for name in counters}
        try:
            taken = []
            for index in range(count):
                for name, number in before.items():  # a step knows its own number
                    setattr(self, name, number + index + 1)
                taken.append(step(index))
            for name, optimizer in self.optimizers().items():
                optimizer.check(f"{type(self).__name__} update of {name}")
        except NonFiniteError:
            self.restore_learned(saved)
            for name, number in before.items():
                setattr(self, name, number)
            raise
        return taken

    def rates(self, learning_rate: float, now: Any) -> dict[str, torch.Tensor]:
        """What an optimiser's step is told, as tensors."""
        device = self.context.device
        norm = scalar(now.max_grad_norm, device)
        return {"learning_rate": scalar(learning_rate, device), "max_grad_norm": norm}

    def make_optimizer(self, name: str, module: nn.Module, loss: Loss) -> FlatOptimizer:
        """What trains a part: the one that `optimizers:` names, else the algorithm's own."""
        settings = self.config.optimizer
        compiled = type(self).compiles and self.context.config.compute.compile == "on"
        if (other := self.context.optimizers.get(name)) is None:
            return FlatOptimizer(module, loss, settings, compile=compiled)
        if compiled:
            raise UserError(f"optimizers.{name} cannot be compiled: set compute.compile=off")
        return TorchOptimizer(module, loss, settings, other)

    @abstractmethod
    def optimizers(self) -> dict[str, FlatOptimizer]:
        """Every optimiser by the name of what it trains."""

    def learned_state(self) -> Any:
        """A copy of what a gradient step changes: weights, moments, and what `slow` returns."""
        parts = {name: each.snapshot() for name, each in self.optimizers().items()}
        return parts, [each.clone() for each in self.slow()]

    def restore_learned(self, saved: Any) -> None:
        """Put it back."""
        for name, optimizer in self.optimizers().items():
            optimizer.restore(saved[0][name])
        for tensor, before in zip(self.slow(), saved[1], strict=True):
            tensor.copy_(before)

    def slow(self) -> list[torch.Tensor]:
        """Tensors that change beside what the optimisers hold: target networks, statistics."""
        return []


def window_problems(run: Any, option_name: str, frames: int) -> list[str]:
    """Buffers with no room for a window of so many frames, which are all of one environment."""
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


def require_chances(config: Any, *names: str) -> None:
    """Refuse options, or schedules of them, that are ever outside of [0, 1]."""
    for name in names:
        low, high = extremes(getattr(config, name))
        if not 0.0 <= low <= high <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], got {low if low < 0 else high:g}")


def require_positive(config: Any, *names: str) -> None:
    """Refuse options, or schedules of them, that are not above zero."""
    for name in names:
        low, high = extremes(getattr(config, name))
        if low < 0 or high <= 0:
            raise ValueError(f"{name} must be positive, got {low:g}")


def averages(steps: Sequence[Metrics]) -> Metrics:
    """The mean of each metric over the steps that have it."""
    names = dict.fromkeys(name for step in steps for name in step)  # not all do everything
    return {name: _mean([step[name] for step in steps if name in step]) for name in names}


def _mean(values: list[Any]) -> Any:
    """Of numbers, or of 0-d tensors."""
    if isinstance(values[0], torch.Tensor):
        return values[0] if len(values) == 1 else torch.stack(values).mean()
    return sum(values) / len(values)
