"""What algorithms that learn from single transitions share: minibatches of a replay buffer.

A subclass writes its networks, `act`, and `learn` for one minibatch.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rl_lab.algorithms.base import LearnsFrom
from rl_lab.algorithms.earning import (
    EarningConfig,
    EarningWorkflow,
    averages,
    require_chances,
    require_positive,
)
from rl_lab.core.batch import INDEX, Batch, Metrics
from rl_lab.core.options import option
from rl_lab.core.protocols import Phase
from rl_lab.core.schedule import Schedule, at
from rl_lab.core.tree import first_leaf, picked

ERROR = "error"  # |TD error| of each row, from `learn`: the new priority of a prioritized buffer


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(EarningConfig):
    """When to learn, and from how much. Any float may be a schedule."""

    n_step: int = option(1, "rewards in a row before the bootstrap")
    importance_beta: float = option(
        Schedule(start=0.4, end=1.0),
        "prioritized buffers: how far their bias is corrected, 1 is wholly",
    )
    learning_rate: float = option(3e-4, "step size of the optimiser")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        if self.n_step < 1:
            raise ValueError(f"n_step must be at least 1, got {self.n_step}")
        require_chances(self, "importance_beta")
        require_positive(self, "learning_rate")

    def check(self, run: Any) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        for name, buffer in run.buffers.items():
            if self.n_step > 1 and getattr(buffer, "type", "") == "her":
                problems.append(f"n_step must be 1 with buffers.{name} of type her")
        return problems


class ReplayWorkflow(EarningWorkflow):
    """Collect a little, then take the gradient steps that were earned."""

    learns_from: ClassVar[LearnsFrom] = "transitions"
    defaults: ClassVar[Mapping[str, Any]] = {"buffers": {"replay": {"type": "uniform"}}}
    config: ReplayConfig

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
