"""Actions that follow a random walk within the bounds, where white noise would cancel out.

A car that is steered by independent random numbers hardly moves; one whose wheel and pedals drift
slowly gets somewhere. Each episode begins with a uniformly random action, as the walk does in the
World Models code of Tallec, Blier and Kalainathan (ctallec/world-models), whose idea it is. It
learns nothing: use it in a phase with `policy: brownian`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rl_lab.algorithms.base import Algorithm, Optimized, Roles
from rl_lab.core.batch import ACTION, Action, CollectResult, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Phase
from rl_lab.core.schedule import at
from rl_lab.core.schema import AlgorithmConfig
from rl_lab.core.spec import Box

STARTED = "started"  # whether an episode has had its first action, [N]


@dataclass(frozen=True, kw_only=True)
class BrownianConfig(AlgorithmConfig):
    """How far it wanders, and how much is collected per call."""

    stride: float = option(
        0.15, "deviation of one step of the walk, as a share of half the range", above=0
    )
    collect_steps: int = option(128, "vector steps per collect call", low=1)


class Brownian(Algorithm):
    """Brownian-motion exploration: a bounded random walk over actions; learns nothing."""

    actions: ClassVar[str] = "continuous"

    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    uses_network: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    Config: ClassVar[type | None] = BrownianConfig
    config: BrownianConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Bind the bounds and a stream of random numbers."""
        super().initialize(context)
        space = context.spec.action
        if not isinstance(space, Box) or not space.bounded:
            raise UserError(f"brownian walks in a bounded Box, '{context.spec.id}' has none")
        self.collect_steps = self.config.collect_steps
        self.low = torch.as_tensor(space.low, dtype=torch.float32, device=context.device)
        self.high = torch.as_tensor(space.high, dtype=torch.float32, device=context.device)
        self.stride = at(self.config, 0).stride
        self.rng = context.rng.torch("brownian_policy")

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        """No action yet: where an episode starts, `act` draws one."""
        action = self.low.expand(batch, *self.low.shape).clone()
        started = torch.zeros(batch, dtype=torch.bool, device=self.low.device)
        return {ACTION: action, STARTED: started}

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """With the stride of this step."""
        self.stride = at(self.config, step).stride
        return super().collect_step(step, phase=phase)

    def act(self, obs: Obs, state: dict[str, torch.Tensor], *, deterministic: bool) -> Action:
        """One step further, within the bounds; the first action of an episode is uniform."""
        before, size = state[ACTION], self.high - self.low
        uniform = torch.rand(before.shape, generator=self.rng).to(before.device)
        normal = torch.randn(before.shape, generator=self.rng).to(before.device)
        moved = before + self.stride * size / 2 * normal
        walked = torch.minimum(torch.maximum(moved, self.low), self.high)
        started = state[STARTED].reshape(-1, *[1] * self.low.dim())
        action = torch.where(started, walked, self.low + size * uniform)
        return Action(action, {ACTION: action, STARTED: torch.ones_like(state[STARTED])})
