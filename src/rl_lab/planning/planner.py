"""The planner that a configuration names: CEM or MPPI for a Box, CEM for discrete actions."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rl_lab.core.options import option
from rl_lab.planning.cem import categorical_cem, cem
from rl_lab.planning.mppi import MPPIConfig, mppi
from rl_lab.planning.plans import Evaluate, Plan


@dataclass(frozen=True, kw_only=True)
class PlannerConfig(MPPIConfig):
    """Which planner, and how far, how wide and how often it looks ahead."""

    type: Literal["cem", "mppi"] = option(
        "cem", "cem: all elites count alike; mppi: better ones count more, Box actions only"
    )

    def __post_init__(self) -> None:
        """A temperature is for mppi only."""
        super().__post_init__()
        if self.type == "cem" and self.temperature != MPPIConfig.temperature:
            raise ValueError("temperature has no use with type cem: set type to mppi")


def plan_actions(
    evaluate: Evaluate, first: Tensor, noise: Tensor, config: PlannerConfig, *, discrete: bool
) -> Plan:
    """Plan from a first guess [B, H, A]; of discrete actions, from first probabilities."""
    if discrete:
        return categorical_cem(evaluate, first, noise, config)
    if config.type == "mppi":
        return mppi(evaluate, first, noise, config)
    return cem(evaluate, first, noise, config)
