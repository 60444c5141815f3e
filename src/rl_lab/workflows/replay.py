"""What algorithms that learn from a replay buffer share: when to learn, and from how much.

A subclass writes its networks, `act`, and `learn` for one minibatch. Gradient steps are earned by
environment steps at an exact ratio: nothing is lost to rounding, and a resumed run goes on as if
nothing had happened.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rl_lab.core.actions import random_action
from rl_lab.core.batch import INDEX, Action, Batch, CollectResult, Metrics
from rl_lab.core.clock import Earned
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.optim import FlatOptimizer, OptimizerConfig
from rl_lab.core.options import option, section
from rl_lab.core.protocols import Phase, WorkflowContext
from rl_lab.core.schedule import at, extremes
from rl_lab.core.tree import first_leaf, picked
from rl_lab.workflows.base import Workflow

ERROR = "error"  # |TD error| of each row, from `learn`: the new priority of a prioritized buffer


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """When to learn, and from how much. Any float may be a schedule."""

    batch_size: int = option(256, "transitions of one gradient step")
    replay_ratio: float = option(1.0, "gradient steps per environment step; fractions are carried")
    learning_starts: int = option(1000, "environment steps of random actions before learning")
    train_every: int = option(1, "vector steps between updates")
    n_step: int = option(1, "rewards in a row before the bootstrap")
    importance_beta: float = option(
        0.4, "prioritized buffers: how far their bias is corrected, 1 is wholly"
    )
    gamma: float = option(0.99, "discount factor")
    learning_rate: float = option(3e-4, "step size of the optimiser")
    max_grad_norm: float = option(10.0, "largest norm of a gradient")
    optimizer: OptimizerConfig = section(OptimizerConfig, "the optimiser's own settings")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        for name in ("batch_size", "train_every", "n_step"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.learning_starts < 0:
            raise ValueError(f"learning_starts must be 0 or more, got {self.learning_starts}")
        for name in ("gamma", "importance_beta"):
            low, high = extremes(getattr(self, name))
            if not 0.0 <= low <= high <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {low if low < 0 else high:g}")
        for name in ("learning_rate", "max_grad_norm", "replay_ratio"):
            low, high = extremes(getattr(self, name))
            if low < 0 or high <= 0:
                raise ValueError(f"{name} must be positive, got {low:g}")

    def check(self, run: Any) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = []
        if run.network.memory.type != "none":
            problems.append("network.memory has no use here: minibatches are single transitions")
        if run.environment.normalize_reward:
            problems.append(
                "environment.normalize_reward would change rewards that are in a buffer already: "
                "leave it off"
            )
        for name, buffer in run.buffers.items():
            capacity = getattr(buffer, "capacity", None)
            if capacity is not None and capacity < self.batch_size:
                problems.append(
                    f"batch_size {self.batch_size} is larger than buffers.{name}.capacity, "
                    f"{capacity}"
                )
            if getattr(buffer, "only", None):
                problems.append(f"learning needs all of buffers.{name}: its `only` must be empty")
            if self.n_step > 1 and getattr(buffer, "type", "") == "her":
                problems.append(f"n_step must be 1 with buffers.{name} of type her")
        return problems

    def gradient_steps(self, run: Any) -> float:
        """Gradient steps of a whole run: what compiling them would have to repay."""
        steps = run.training.total_timesteps - self.learning_starts
        return float(steps * extremes(self.replay_ratio)[1])

    def warnings(self, run: Any) -> list[str]:
        """What is legal and probably not meant."""
        total = run.training.total_timesteps
        if self.learning_starts < total:
            return []
        return [
            f"nothing is learned in {total} steps: algorithm.learning_starts is "
            f"{self.learning_starts}"
        ]


class ReplayWorkflow(Workflow):
    """Collect a little, then take the gradient steps that were earned."""

    replays: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"buffers": {"replay": {"type": "uniform"}}}
    config: ReplayConfig

    def initialize(self, context: WorkflowContext) -> None:
        """The account of gradient steps; a subclass adds its networks."""
        super().initialize(context)
        self.collect_steps = self.config.train_every
        self.earned = Earned(seen=self.config.learning_starts)
        self.gradient_steps = 0
        self.warm_up_rng = context.rng.numpy("warm_up")

    @abstractmethod
    def learn(self, rows: Batch, now: Any) -> Metrics:
        """One gradient step on rows [B, …]; `now` is the config with its schedules' values.

        The metric `error` [B] becomes the rows' priorities, where the buffer has any.
        """

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then the policy's own."""
        if step >= self.config.learning_starts:
            return super().collect_step(step, phase=phase)
        return self.context.collector.collect(self.warm_up, steps=self.collect_steps)

    def warm_up(self, obs: Any, state: Any, *, deterministic: bool) -> Action:
        """Uniformly random: the first data covers the action space."""
        return Action(random_action(self.context.spec.action, obs, self.warm_up_rng), state)

    def sample(self, buffer: Any, *, hook: str, phase: Phase) -> Batch | None:
        """Minibatches for all gradient steps that are due, [K, B, …]; one if nothing is played."""
        now = at(self.config, phase["step"])
        offline = phase["type"] == "offline"
        # Steps of phases that only collect earn nothing: this one would have to learn them at once.
        begun = phase["step"] - phase.get("phase_steps", phase["step"])
        self.earned.seen = max(self.earned.seen, begun)
        due = 1 if offline else self.earned.count(phase["step"], now.replay_ratio)
        if due == 0 or not buffer.ready():
            return None
        return buffer.sample(now.batch_size, due, n_step=now.n_step, beta=now.importance_beta)

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step per minibatch. On a bad number everything is as it was before."""
        now = at(self.config, phase["step"])
        count = len(first_leaf(batch))
        saved, before = self.learned_state(), self.gradient_steps
        steps: list[Metrics] = []
        errors: list[Any] = []
        try:
            for index in range(count):
                self.gradient_steps += 1  # `learn` knows the number of its own step
                metrics = self.learn(picked(batch, index), now)
                errors.append(metrics.pop(ERROR, None))
                steps.append(metrics)
            for name, optimizer in self.optimizers().items():
                optimizer.check(f"{type(self).__name__} update of {name}")
        except NonFiniteError:
            self.restore_learned(saved)
            self.gradient_steps = before
            raise
        if INDEX in batch and errors[0] is not None:
            buffer = self.context.buffers[phase["buffer"] or next(iter(self.context.buffers))]
            buffer.reprioritize(batch[INDEX], torch.stack(errors))  # type: ignore[attr-defined]
        if phase["type"] != "offline":
            self.earned.spend(count)
        names = dict.fromkeys(name for step in steps for name in step)  # not all do everything
        averages = {name: _mean([s[name] for s in steps if name in s]) for name in names}
        return {**averages, "gradient_steps": self.gradient_steps}

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
        """Tensors that `learn` changes beside what the optimisers hold: target networks."""
        return []


def _mean(values: list[Any]) -> Any:
    """Of numbers, or of 0-d tensors."""
    if isinstance(values[0], torch.Tensor):
        return values[0] if len(values) == 1 else torch.stack(values).mean()
    return sum(values) / len(values)
