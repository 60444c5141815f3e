"""The scripted policy that an environment brings with it: demonstrations to learn from."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl_lab.algorithms.base import Algorithm, Optimized, Roles
from rl_lab.core.batch import Action, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext
from rl_lab.core.schema import AlgorithmConfig

LUCK, AGE = "luck", "age"


@dataclass(frozen=True, kw_only=True)
class ScriptedConfig(AlgorithmConfig):
    """How much to collect per call."""

    collect_steps: int = option(128, "vector steps per collect call", low=1)


class Scripted(Algorithm):
    """Scripted demonstrator: learns nothing, and draws each episode's luck where it begins."""

    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    uses_network: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    Config: ClassVar[type | None] = ScriptedConfig
    config: ScriptedConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Find the environment's demonstrator, and bind a stream of random numbers."""
        super().initialize(context)
        if context.spec.demonstrator is None:
            raise UserError(
                f"'{context.spec.id}' brings no scripted policy: record demonstrations of a "
                "trained one, or take TwoArcs-v0"
            )
        self.demonstrator = context.spec.demonstrator
        self.collect_steps = self.config.collect_steps
        self.rng = context.rng.numpy("scripted_policy")

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """No luck yet."""
        luck = torch.zeros(batch, self.demonstrator.draws, dtype=torch.float64)
        return {LUCK: luck, AGE: torch.zeros(batch, dtype=torch.int64)}

    def act(self, obs: Obs, state: Any, *, deterministic: bool) -> Action:
        """What the script says; episodes differ by their luck, so even this is never the same."""
        begins, luck = state[AGE].numpy() == 0, state[LUCK].numpy()
        if begins.any():
            luck = np.where(begins[:, None], self.rng.random(luck.shape), luck)
        action = self.demonstrator.decide(obs.cpu().numpy(), luck)
        return Action(action, {LUCK: torch.from_numpy(luck), AGE: state[AGE] + 1})
