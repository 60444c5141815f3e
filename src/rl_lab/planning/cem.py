"""CEM, the cross-entropy method: sample plans, keep the best, fit a distribution to them, again.

For a Box, each action of the plan is a Gaussian of its own, cut off at [-1, 1]. For discrete
actions it is a categorical distribution, whose probabilities become the shares of the best
candidates; candidates are one-hot then. All environments are planned for at once, independently of
each other. Random numbers are arguments, so the functions are pure.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_lab.core.options import Options, option
from rl_lab.planning.plans import Evaluate, Plan, best


@dataclass(frozen=True, kw_only=True)
class CEMConfig(Options):
    """How far, how wide and how often to look ahead."""

    horizon: int = option(12, "actions of one plan", low=1)
    candidates: int = option(
        1000, "plans that are tried in one iteration, for each environment", low=1
    )
    elites: int = option(100, "best plans, to which the next distribution is fitted", low=1)
    iterations: int = option(10, "times that candidates are drawn", low=1)
    initial_std: float = option(1.0, "standard deviation of the first candidates", above=0)
    min_std: float = option(
        0.0,
        "least standard deviation of later ones; discrete: least probability of an action",
        low=0,
    )
    max_std: float = option(1.0, "largest standard deviation of later ones")
    momentum: float = option(
        0.0, "share of the old distribution that a new one keeps", low=0, below=1
    )
    warm_start: bool = option(False, "begin with the last plan, one step later, instead of zeros")

    def __post_init__(self) -> None:
        """Elites are candidates, and the smallest spread is not above the largest."""
        super().__post_init__()
        if self.elites > self.candidates:
            raise ValueError(
                f"elites must be at most candidates ({self.candidates}), got {self.elites}"
            )
        if self.min_std > self.max_std:
            raise ValueError(
                f"min_std must be at most max_std ({self.max_std:g}), got {self.min_std:g}"
            )


def planner_noise(
    config: CEMConfig,
    environments: int,
    actions: int,
    generator: torch.Generator,
    *,
    discrete: bool = False,
) -> Tensor:
    """What one call of a planner draws from, [iterations, B, K, H, A].

    With B = 1 all environments are given the same. Normal numbers; exponential ones for
    `categorical_cem`.
    """
    size = (config.iterations, environments, config.candidates, config.horizon, actions)
    empty = torch.empty(size, device=generator.device)
    if discrete:
        return empty.exponential_(generator=generator)
    return empty.normal_(generator=generator)


def cem(evaluate: Evaluate, mean: Tensor, noise: Tensor, config: CEMConfig) -> Plan:
    """Plan Box actions from a first guess `mean` [B, H, A] (zeros, or the last plan, shifted)."""
    std = torch.full_like(mean, config.initial_std)
    for drawn in noise:
        candidates = (mean[:, None] + std[:, None] * drawn).clamp(-1.0, 1.0)
        _, elites = best(evaluate(candidates), candidates, config.elites)
        mean = torch.lerp(elites.mean(1), mean, config.momentum)
        spread = elites.std(1, correction=0).clamp(config.min_std, config.max_std)
        std = torch.lerp(spread, std, config.momentum)
    return Plan(mean, std)


def categorical_cem(
    evaluate: Evaluate, probabilities: Tensor, noise: Tensor, config: CEMConfig
) -> Plan:
    """Plan discrete actions from first probabilities [B, H, A]: equal ones, or the last plan.

    Candidates are one-hot. An action's probability never falls below `min_std`, or 1 % of an equal
    share: what was not drawn once may still be drawn later.
    """
    actions = probabilities.shape[-1]
    every, least = (
        torch.arange(actions, device=probabilities.device),
        max(config.min_std, 0.01 / actions),
    )
    for drawn in noise:
        # The first of several exponential clocks, ticking at these rates, is a categorical draw.
        first = (probabilities[:, None] / drawn).argmax(-1, keepdim=True)
        candidates = (first == every).to(probabilities.dtype)
        _, elites = best(evaluate(candidates), candidates, config.elites)
        probabilities = torch.lerp(elites.mean(1), probabilities, config.momentum).clamp_min(least)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return Plan(probabilities, (probabilities * (1 - probabilities)).sqrt())
