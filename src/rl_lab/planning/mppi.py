"""MPPI, model predictive path integral control: every good plan counts, by how good it is.

Like CEM, but the next distribution is a mean over the best candidates that is weighted by
exp(return / temperature) (Williams et al. 2015; with the elites of TD-MPC, Hansen et al. 2022).
Box actions in [-1, 1].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_lab.core.options import option
from rl_lab.planning.cem import CEMConfig
from rl_lab.planning.plans import Evaluate, Plan, best


@dataclass(frozen=True, kw_only=True)
class MPPIConfig(CEMConfig):
    """How far, how wide and how often to look ahead, and how much better plans are preferred."""

    temperature: float = option(
        2.0, "of mppi: a plan that is this much worse than the best counts e times less", above=0
    )


def mppi(evaluate: Evaluate, mean: Tensor, noise: Tensor, config: MPPIConfig) -> Plan:
    """Plan from a first guess `mean` [B, H, A]; noise as of `planning.cem.planner_noise`."""
    std = torch.full_like(mean, config.initial_std)
    for drawn in noise:
        candidates = (mean[:, None] + std[:, None] * drawn).clamp(-1.0, 1.0)
        returns, elites = best(evaluate(candidates), candidates, config.elites)
        weight = ((returns - returns[:, :1]) / config.temperature).softmax(1)[:, :, None, None]
        fresh = (weight * elites).sum(1)
        spread = (weight * (elites - fresh[:, None]).square()).sum(1).sqrt()
        mean = torch.lerp(fresh, mean, config.momentum)
        std = spread.clamp(config.min_std, config.max_std)
    return Plan(mean, std)
