"""Guided MPPI: some candidates are a policy's, and the action is drawn among the best plans.

The planner of TD-MPC2 (Hansen et al. 2024), and of TD-MPC: elites are weighted by
exp(return / temperature), the next distribution is fitted to them, and in the end one of them is
drawn by its weight. All environments are planned for at once. Random numbers are arguments, so the
functions are pure.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.core.options import option
from rl_lab.planning.mppi import MPPIConfig
from rl_lab.planning.plans import Evaluate, best


@dataclass(frozen=True, kw_only=True)
class GuidedConfig(MPPIConfig):
    """How far, how wide and how often to look ahead. The paper: 512, 24 and 64 plans, 6 times."""

    horizon: int = option(3, "actions of one plan, and steps that the model is trained over", low=1)
    candidates: int = option(
        256, "plans that are tried in one iteration, those of the policy included", low=1
    )
    policy_candidates: int = option(12, "how many of them follow the policy", low=0)
    elites: int = option(32, "best plans, to which the next distribution is fitted", low=1)
    iterations: int = option(4, "times that candidates are drawn", low=1)
    initial_std: float = option(2.0, "standard deviation of the first candidates", above=0)
    min_std: float = option(
        0.05,
        "least standard deviation of later ones; discrete: least probability of an action",
        low=0,
    )
    max_std: float = option(2.0, "largest standard deviation of later ones")
    warm_start: bool = option(True, "begin with the last plan, one step later, instead of zeros")
    ramp: int = option(
        0,
        "environment steps in which plans grow from one action to `horizon`, and the least "
        "deviation falls to min_std (v1); 0: at once",
        low=0,
    )
    first_min_std: float | None = option(
        None, "least standard deviation at the beginning of the ramp; none: min_std", low=0
    )

    def __post_init__(self) -> None:
        """Some candidates must be drawn."""
        super().__post_init__()
        if self.policy_candidates >= self.candidates:
            raise ValueError(
                f"policy_candidates must be fewer than candidates ({self.candidates}), got "
                f"{self.policy_candidates}"
            )
        if self.first_min_std is not None and not self.ramp:
            raise ValueError("first_min_std needs a ramp, in which it falls to min_std")

    def horizon_at(self, step: int) -> int:
        """Actions of a plan at an environment step."""
        return 1 + int((self.horizon - 1) * self._share(step))

    def min_std_at(self, step: int) -> float:
        """The least standard deviation at an environment step."""
        first = self.min_std if self.first_min_std is None else self.first_min_std
        share = self._share(step)
        return share * self.min_std + (1 - share) * first

    def _share(self, step: int) -> float:
        return 1.0 if step >= self.ramp else step / self.ramp


class GuidedNoise(NamedTuple):
    """What one call of a guided planner draws from. With B = 1 all environments get the same."""

    candidates: Tensor  # [iterations, B, K, H, A]: normal; exponential for discrete actions
    choice: Tensor  # [B, E] exponential: which elite is taken
    explore: Tensor  # [B, A] normal: added to its first action


class GuidedPlan(NamedTuple):
    """A plan as a distribution, and the action that is taken now."""

    mean: Tensor  # [B, H, A]; discrete: the probability of each action
    std: Tensor  # [B, H, A]
    action: Tensor  # [B, A]; discrete: one-hot
    bad: Tensor  # 0-d: the share of returns that were not finite


def guided_noise(
    config: GuidedConfig,
    environments: int,
    horizon: int,
    actions: int,
    generator: torch.Generator,
    *,
    discrete: bool,
) -> GuidedNoise:
    """The random numbers of one call, for plans of `horizon` actions."""
    drawn = config.candidates - config.policy_candidates
    size = (config.iterations, environments, drawn, horizon, actions)
    candidates = torch.empty(size, device=generator.device)
    choice = torch.empty(environments, config.elites, device=generator.device)
    explore = torch.empty(environments, actions, device=generator.device)
    if discrete:
        candidates.exponential_(generator=generator)
    else:
        candidates.normal_(generator=generator)
    return GuidedNoise(
        candidates,
        choice.exponential_(generator=generator),
        explore.normal_(generator=generator),
    )


def guided_mppi(
    evaluate: Evaluate,
    mean: Tensor,
    guides: Tensor,
    noise: GuidedNoise,
    config: GuidedConfig,
    min_std: Tensor | float,
    *,
    explore: bool,
) -> GuidedPlan:
    """Plan Box actions from a first guess `mean` [B, H, A] and a policy's plans [B, P, H, A].

    `evaluate` is deterministic, so the returns of the policy's plans are computed once. With
    `explore`, noise of the plan's own spread is added to the action.
    """
    count, guided = len(mean), evaluate(guides) if guides.shape[1] else mean.new_zeros(len(mean), 0)
    std = torch.full_like(mean, config.initial_std)
    weight, elites, bad = mean, mean, _bad(guided)
    for drawn in noise.candidates:
        sampled = (mean[:, None] + std[:, None] * drawn).clamp(-1.0, 1.0)
        returns = evaluate(sampled)
        bad = bad + _bad(returns)
        weight, elites = weighted_elites(returns, sampled, guided, guides, config)
        share = weight[:, :, None, None]
        fresh = (share * elites).sum(1)
        spread = (share * (elites - fresh[:, None]).square()).sum(1).sqrt()
        mean = torch.lerp(fresh, mean, config.momentum) if config.momentum else fresh
        std = spread.clamp(max=config.max_std).maximum(torch.as_tensor(min_std))
    action = chosen(weight, elites, noise.choice)[:, 0]
    if explore:
        action = (action + std[:, 0] * noise.explore).clamp(-1.0, 1.0)
    total = count * (config.candidates - config.policy_candidates) * len(noise.candidates)
    return GuidedPlan(mean, std, action, bad / (total + guided.numel()))


def guided_categorical(
    evaluate: Evaluate,
    probabilities: Tensor,
    guides: Tensor,
    noise: GuidedNoise,
    config: GuidedConfig,
    min_std: Tensor | float,
    *,
    explore: bool,
) -> GuidedPlan:
    """Plan discrete actions from first probabilities [B, H, A]; candidates are one-hot.

    With `explore`, the action is that of an elite drawn by its weight; else the likeliest one.
    """
    actions = probabilities.shape[-1]
    guided = evaluate(guides) if guides.shape[1] else probabilities.new_zeros(len(probabilities), 0)
    least = torch.as_tensor(min_std).clamp(min=0.01 / actions, max=1 / actions)
    every = torch.arange(actions, device=probabilities.device)
    weight, elites, bad = probabilities, probabilities, _bad(guided)
    for drawn in noise.candidates:
        # The first of several exponential clocks, ticking at these rates, is a categorical draw.
        first = (probabilities[:, None] / drawn).argmax(-1, keepdim=True)
        sampled = (first == every).to(probabilities.dtype)
        returns = evaluate(sampled)
        bad = bad + _bad(returns)
        weight, elites = weighted_elites(returns, sampled, guided, guides, config)
        fresh = (weight[:, :, None, None] * elites).sum(1)
        probabilities = torch.lerp(fresh, probabilities, config.momentum).maximum(least)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    if explore:
        action = chosen(weight, elites, noise.choice)[:, 0]
    else:
        action = (probabilities[:, 0].argmax(-1, keepdim=True) == every).to(probabilities.dtype)
    total = len(probabilities) * (config.candidates - config.policy_candidates)
    share = bad / (total * len(noise.candidates) + guided.numel())
    return GuidedPlan(probabilities, (probabilities * (1 - probabilities)).sqrt(), action, share)


def weighted_elites(
    returns: Tensor, sampled: Tensor, guided: Tensor, guides: Tensor, config: GuidedConfig
) -> tuple[Tensor, Tensor]:
    """The weights [B, E] of the best plans, which sum to 1, and these plans [B, E, H, A]."""
    all_returns, plans = torch.cat([returns, guided], 1), torch.cat([sampled, guides], 1)
    top, elites = best(all_returns, plans, config.elites)
    return ((top - top[:, :1]) / config.temperature).softmax(1), elites


def chosen(weight: Tensor, elites: Tensor, clocks: Tensor) -> Tensor:
    """One elite [B, H, A] of each environment, drawn by weights [B, E]; `clocks` exponential."""
    index = (weight / clocks).argmax(1)
    return elites.gather(1, index[:, None, None, None].expand(-1, 1, *elites.shape[2:]))[:, 0]


def _bad(returns: Tensor) -> Tensor:
    """How many returns are not finite."""
    return (~torch.isfinite(returns)).sum()
