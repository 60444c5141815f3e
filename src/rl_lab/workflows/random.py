"""Uniformly random actions: the baseline of every environment, and a policy for warm-up phases."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rl_lab.core.batch import ACTION_MASK, Action, Array
from rl_lab.core.options import option
from rl_lab.core.protocols import WorkflowContext
from rl_lab.core.spec import Box, Discrete, MultiDiscrete, Space
from rl_lab.core.tree import first_leaf
from rl_lab.workflows.base import Workflow


@dataclass(frozen=True, kw_only=True)
class RandomConfig:
    """How much to collect per call."""

    collect_steps: int = option(128, "vector steps per collect call")

    def __post_init__(self) -> None:
        """At least one step."""
        if self.collect_steps < 1:
            raise ValueError(f"collect_steps must be at least 1, got {self.collect_steps}")


class RandomWorkflow(Workflow):
    """Acts at random and learns nothing."""

    Config: ClassVar[type | None] = RandomConfig

    def initialize(self, context: WorkflowContext) -> None:
        """Bind the action space and a stream of random numbers."""
        super().initialize(context)
        self.collect_steps = self.config.collect_steps
        self.space = context.spec.action
        self.rng = context.rng.numpy("random_policy")

    def act(self, obs: Any, state: Any, *, deterministic: bool) -> Action:
        """Uniform over the action space; standard normal where a Box has no bounds."""
        count = len(first_leaf(obs))
        if isinstance(obs, Mapping) and ACTION_MASK in obs:
            return Action(_legal(self.space, obs[ACTION_MASK].cpu().numpy(), self.rng))
        if isinstance(self.space, Discrete):
            return Action(self.rng.integers(self.space.n, size=count))
        if isinstance(self.space, MultiDiscrete):
            return Action(self.rng.integers(self.space.nvec, size=(count, *self.space.shape)))
        return Action(_uniform(self.space, count, self.rng))


def _legal(space: Space, mask: Array, rng: np.random.Generator) -> Array:
    """Uniform over what the mask [N, …] allows: the largest of equally distributed numbers."""
    chances = np.where(mask != 0, rng.random(mask.shape), -1.0)
    if isinstance(space, MultiDiscrete):
        parts = np.split(chances, np.cumsum(space.nvec)[:-1], axis=-1)
        return np.stack([part.argmax(-1) for part in parts], axis=-1)
    return chances.argmax(-1)


def _uniform(space: Box, count: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 1.0)
    uniform = low + rng.random((count, *space.shape)) * (high - low)
    return np.where(bounded, uniform, rng.standard_normal(uniform.shape)).astype(np.float32)
