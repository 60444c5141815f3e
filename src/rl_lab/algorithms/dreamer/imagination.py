"""Imagined rollouts of a policy in a world model, and what actor and critic learn from them.

Action t is chosen in state t and leads to state t + 1, whose reward and continue flag it causes.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.algorithms.dreamer.actor import LatentActor
from rl_lab.algorithms.dreamer.rssm import LatentState
from rl_lab.algorithms.dreamer.world_model import Scalar, WorldModel
from rl_lab.core.batch import RESET, REWARD, TERMINATED, TRUNCATED, Batch
from rl_lab.core.returns import lambda_return

Returns = Callable[..., Tensor]  # as `lambda_return`: what critics learn and actors maximize
LOW, HIGH = 0.05, 0.95  # the percentiles whose distance normalizes returns


class ImaginedRollout(NamedTuple):
    """H imagined steps from M states. Row t of `reward` and `continues` is where action t led."""

    features: Tensor  # [H + 1, M, F], the first of them real
    action: Tensor  # [H, M, A] action vectors
    reward: Tensor  # [H, M]
    continues: Tensor  # [H, M] probabilities that the episode does not end there


def imagined_rollout(
    world: WorldModel,
    actor: LatentActor,
    start: LatentState,
    latent_noise: Tensor,
    action_noise: Tensor,
    *,
    ends: bool = True,
) -> ImaginedRollout:
    """The rollout that the noise [H, M, …] decides, differentiable throughout.

    Without `ends` every continue probability is 1.
    """
    state, features, actions = start, [world.rssm.features(start)], []
    for latent, choice in zip(latent_noise.unbind(0), action_noise.unbind(0), strict=True):
        actions.append(actor.draw(features[-1], choice))
        state = world.rssm.imagine_step(state, actions[-1], latent)
        features.append(world.rssm.features(state))
    every = torch.stack(features)
    reward = world.reward.mean(every[1:])
    continues = world.continue_probability(every[1:]) if ends else torch.ones_like(reward)
    return ImaginedRollout(every, torch.stack(actions), reward, continues)


def discount_weights(start_continues: Tensor, continues: Tensor, gamma: Tensor | float) -> Tensor:
    """The discounted probability [H, M] of reaching each imagined decision.

    `start_continues` [M] is 0 where the rollout starts after the end of an episode. The outcome of
    a decision is not in its own weight.
    """
    steps = torch.cat([start_continues.unsqueeze(0), gamma * continues[:-1]])
    return steps.cumprod(0).detach()


class CriticTargets(NamedTuple):
    """Rows [R, …] for the critic: inputs, the returns it regresses on, and weights."""

    features: Tensor
    returns: Tensor
    weight: Tensor
    target_values: Tensor | None  # of the target network, if the critic is regularized towards it


def imagined_targets(
    rollout: ImaginedRollout,
    start_continues: Tensor,
    values: Tensor,
    target_values: Tensor | None,
    *,
    gamma: float | Tensor,
    lambda_: float | Tensor,
    returns: Returns = lambda_return,
) -> CriticTargets:
    """Targets of the H decisions of a rollout; `values` and `target_values` are of H + 1 states."""
    targets = returns(rollout.reward, values[1:], rollout.continues, gamma=gamma, lambda_=lambda_)
    weight = discount_weights(start_continues, rollout.continues, gamma)
    pull = None if target_values is None else target_values[:-1]
    return CriticTargets(rollout.features[:-1], targets, weight, pull)


def replayed_targets(
    rows: Batch,
    imagined: CriticTargets,
    *,
    gamma: float | Tensor,
    lambda_: float | Tensor,
    returns: Returns = lambda_return,
) -> CriticTargets:
    """Targets of replayed rows [T, B, …], bootstrapped from the rollouts imagined from each row.

    A step leads from row t to row t + 1; there is none from the last frame of an episode.
    """
    shape = rows[RESET].shape
    features, bootstrap = (
        each[0].unflatten(0, shape) for each in (imagined.features, imagined.returns)
    )
    pull = imagined.target_values
    over = rows[TERMINATED] | rows[TRUNCATED]
    targets = returns(
        rows[REWARD][1:],
        bootstrap[1:],
        (~rows[TERMINATED][1:]).float(),
        gamma=gamma,
        lambda_=lambda_,
        truncated=over[1:],
    )
    weight = (~rows[RESET][1:]).float()
    pull = None if pull is None else pull[0].unflatten(0, shape)[:-1]
    return CriticTargets(features[:-1], targets, weight, pull)


class ReturnPercentiles:
    """EMA of the 5th and 95th percentile of returns: their distance normalizes advantages."""

    def __init__(self, device: str) -> None:
        self.value = torch.zeros(2, device=device)

    @property
    def distance(self) -> Tensor:
        """From the low one to the high one, 0-d."""
        return self.value[1] - self.value[0]

    def state_dict(self) -> dict[str, Tensor]:
        """Both percentiles."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Both percentiles, strictly."""
        self.value.copy_(state["value"])


def updated_percentiles(percentiles: Tensor, returns: Tensor, rate: Tensor) -> Tensor:
    """One EMA step of the percentiles [2] towards those of these returns."""
    wanted = torch.tensor([LOW, HIGH], device=returns.device)
    return torch.lerp(percentiles, torch.quantile(returns.detach().flatten(), wanted), rate)


class ActorCriticBatch(NamedTuple):
    """What actor and critic learn from one imagined rollout."""

    critic: CriticTargets
    action: Tensor  # [H, M, A]
    values: Tensor  # [H, M] of the states that the actions were chosen in
    percentiles: Tensor  # [2] of returns, updated


def actor_critic_batch(
    actor: LatentActor,
    world: WorldModel,
    critic: Scalar,
    target_critic: Scalar,
    start: LatentState,
    start_continues: Tensor,
    noises: tuple[Tensor, Tensor],
    percentiles: Tensor,
    scales: dict[str, Tensor],
    *,
    slow_target: bool,
    slow_regularizer: bool,
    normalize_returns: bool,
    ends: bool,
    returns: Returns = lambda_return,
) -> ActorCriticBatch:
    """Imagine from states [M, …] and evaluate the rollout, differentiable throughout.

    With `slow_target`, returns are bootstrapped from the target network, else from the critic.
    """
    rollout = imagined_rollout(world, actor, start, *noises, ends=ends)
    values = (target_critic if slow_target else critic).mean(rollout.features)
    pull = target_critic.mean(rollout.features).detach() if slow_regularizer else None
    gamma, lambda_ = scales["gamma"], scales["lambda"]
    targets = imagined_targets(
        rollout, start_continues, values, pull, gamma=gamma, lambda_=lambda_, returns=returns
    )
    if normalize_returns:
        percentiles = updated_percentiles(percentiles, targets.returns, scales["normalizer"])
    return ActorCriticBatch(targets, rollout.action, values[:-1], percentiles)
