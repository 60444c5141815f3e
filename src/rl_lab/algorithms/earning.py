"""Base classes of algorithms that are not written with `Learner` yet."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from rl_lab.algorithms.base import LearnsFrom, Optimized, Roles, Workflow
from rl_lab.algorithms.replay import ERROR, TransitionConfig, averages
from rl_lab.core.actions import random_action
from rl_lab.core.batch import INDEX, Action, Batch, CollectResult, Metrics
from rl_lab.core.clock import Earned
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.learner import scalar
from rl_lab.core.optim import FlatOptimizer
from rl_lab.core.protocols import Phase, WorkflowContext
from rl_lab.core.schedule import at
from rl_lab.core.tree import first_leaf, picked


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


class ReplayWorkflow(EarningWorkflow):
    """Collect a little, then take the gradient steps that were earned."""

    learns_from: ClassVar[LearnsFrom] = "transitions"
    defaults: ClassVar[Mapping[str, Any]] = {"buffers": {"replay": {"type": "uniform"}}}
    config: TransitionConfig

    @abstractmethod
    def learn(self, rows: Batch, now: Any) -> Metrics:
        """One gradient step on rows [B, …]; `now` is the config with its schedules' values.

        The metric `error` [B] becomes the rows' priorities, where the buffer has any.
        """

    def sample(self, buffer: Any, *, hook: str, phase: Phase) -> Batch | None:
        """Minibatches for all gradient steps that are due, [K, B, …]."""
        now = at(self.config, phase["step"])
        due = self.due(phase, now.replay_ratio, ready=buffer.ready())
        if due == 0:
            return None
        return buffer.sample(now.batch_size, due, n_step=now.n_step, beta=now.importance_beta)

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step per minibatch. On a bad number everything is as it was before."""
        now = at(self.config, phase["step"])
        count = len(first_leaf(batch))
        steps = self.take_steps(count, lambda index: self.learn(picked(batch, index), now))
        errors = [metrics.pop(ERROR, None) for metrics in steps]
        if INDEX in batch and errors[0] is not None:
            buffer = self.context.buffers[phase["buffer"] or next(iter(self.context.buffers))]
            buffer.reprioritize(batch[INDEX], torch.stack(errors))  # type: ignore[attr-defined]
        self.spend(count, phase, now.replay_ratio)
        return {**averages(steps), "gradient_steps": self.gradient_steps}
