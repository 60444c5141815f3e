"""One decision of TD-MPC2: plans of the policy, what candidates bring, and the planner's choice."""

from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.algorithms.tdmpc.world_model import LatentModel, Policy, value_of
from rl_lab.core.batch import Obs
from rl_lab.planning.guided import (
    GuidedConfig,
    GuidedNoise,
    GuidedPlan,
    guided_categorical,
    guided_mppi,
)
from rl_lab.planning.plans import repeated


class PlanNoise(NamedTuple):
    """All random numbers of one decision. With B = 1 all environments get the same."""

    guided: GuidedNoise
    guides: Tensor  # [H, B, P, A]: of the policy's plans
    last: Tensor  # [B, K, A]: of the policy's action behind each plan


def policy_plans(model: LatentModel, policy: Policy, z: Tensor, noise: Tensor) -> Tensor:
    """What the policy does from latents [B, L]: plans [B, P, H, A]; noise [H, B or 1, P, A]."""
    count, plans = len(z), noise.shape[2]
    rows = repeated(z, plans)
    taken = []
    for drawn in noise:
        action = policy.sample(rows, drawn.expand(count, -1, -1).flatten(0, 1))
        taken.append(action)
        if len(taken) < len(noise):
            rows = model.dynamics(torch.cat([rows, action], -1))
    return torch.stack(taken, 1).unflatten(0, (count, plans))


def plan_returns(
    model: LatentModel,
    policy: Policy,
    z: Tensor,
    candidates: Tensor,
    noise: Tensor,
    pair: Tensor | None,
    gamma: Tensor,
) -> Tensor:
    """What candidates [B, K, H, A] bring from latents [B, L]: rewards, and the value behind them.

    The value is the mean of the Qs `pair` at the policy's action; `noise` [B or 1, K, A]. Nothing
    counts that lies behind a latent in which the episode is expected to have terminated.
    """
    count, plans = candidates.shape[:2]
    rows, actions = repeated(z, plans), candidates.flatten(0, 1)
    total, weight = torch.zeros_like(rows[:, 0]), torch.ones_like(rows[:, 0])
    for action in actions.unbind(1):
        rows, reward = model.step(rows, action)
        total = total + weight * reward
        weight = weight * gamma
        if model.termination is not None:
            weight = weight * (model.ended(rows) <= 0).to(weight.dtype)
    last = policy.sample(rows, noise.expand(count, -1, -1).flatten(0, 1))
    value = value_of(model, model.values, rows, last, pair).mean(0)
    return (total + weight * value).view(count, plans)


def plan(
    model: LatentModel,
    policy: Policy,
    obs: Obs,
    first: Tensor,
    noise: PlanNoise,
    pair: Tensor | None,
    gamma: Tensor,
    min_std: Tensor,
    *,
    config: GuidedConfig,
    explore: bool,
) -> GuidedPlan:
    """Plan from observations [B, …] and a first guess [B, H, A]."""
    z = model.encoder(obs)
    guides = policy_plans(model, policy, z, noise.guides)
    drawn = config.candidates - config.policy_candidates

    def evaluate(candidates: Tensor) -> Tensor:
        behind = noise.last
        behind = behind[:, :drawn] if candidates.shape[1] == drawn else behind[:, drawn:]
        return plan_returns(model, policy, z, candidates, behind, pair, gamma)

    planner = guided_categorical if policy.discrete else guided_mppi
    return planner(evaluate, first, guides, noise.guided, config, min_std, explore=explore)
