"""Uniformly random actions: the baseline of every environment, and a policy for warm-up phases."""

from dataclasses import dataclass
from typing import ClassVar

from rl_lab.algorithms.base import Algorithm, Optimized, Roles
from rl_lab.core.actions import random_action
from rl_lab.core.batch import Action, Obs
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext
from rl_lab.core.schema import AlgorithmConfig


@dataclass(frozen=True, kw_only=True)
class RandomConfig(AlgorithmConfig):
    """How much to collect per call."""

    collect_steps: int = option(128, "vector steps per collect call", low=1)


class RandomPolicy(Algorithm):
    """Random policy: a baseline that learns nothing."""

    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    uses_network: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    Config: ClassVar[type | None] = RandomConfig
    config: RandomConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Bind the action space and a stream of random numbers."""
        super().initialize(context)
        self.collect_steps = self.config.collect_steps
        self.space = context.spec.action
        self.rng = context.rng.numpy("random_policy")

    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """Uniform over the action space; standard normal where a Box has no bounds."""
        return Action(random_action(self.space, obs, self.rng))
