"""Returns and advantages. Episodes never leak into each other; terminated and truncated differ."""

import numpy as np
import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalized advantage estimation (Schulman et al. 2016). All [T, N], returns [T, N].

    `next_value` is V of where the step really ended. Terminated rows lose the bootstrap, truncated
    rows keep it, and both cut the trace: the next row belongs to another episode.
    """
    bootstrap = (~terminated).to(reward.dtype)
    carry_on = (~(terminated | truncated)).to(reward.dtype)
    # The recursion is a few small numbers per step: numpy walks it five times as fast as torch.
    delta = (reward + gamma * bootstrap * next_value - value).numpy(force=True)
    decay = (gamma * gae_lambda * carry_on).numpy(force=True)
    advantage = np.empty_like(delta)
    running = np.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        running = advantage[t] = delta[t] + decay[t] * running
    return torch.from_numpy(advantage).to(reward.device)


def n_step_return(
    reward: Tensor, steps: Tensor | None, gamma: float | Tensor
) -> tuple[Tensor, Tensor | float]:
    """Discounted sum of a window of rewards, and the discount of what comes after it.

    `reward` [..., n] is zero after the window's real length `steps` [...]; without `steps` it is
    one reward [...].
    """
    if steps is None:
        return reward, gamma
    powers = gamma ** torch.arange(reward.shape[-1], device=reward.device, dtype=reward.dtype)
    return (reward * powers).sum(-1), gamma**steps


def td_target(
    reward: Tensor, steps: Tensor | None, terminated: Tensor, next_value: Tensor, gamma: Tensor
) -> Tensor:
    """Bootstrapped target of a transition, or of a window of several steps.

    `next_value` is the value of where it ended: [B], or [K, B] for K numbers of a distribution.
    Nothing follows a termination; a truncation only hides what does.
    """
    gain, discount = n_step_return(reward, steps, gamma)
    return gain + discount * torch.where(terminated, 0.0, next_value)


def lambda_return(
    reward: Tensor,
    next_value: Tensor,
    continues: Tensor,
    *,
    gamma: float | Tensor,
    lambda_: float | Tensor,
    truncated: Tensor | None = None,
) -> Tensor:
    """TD(λ) targets of imagined or real sequences, [T, …] like all of its inputs. Differentiable.

    Row t is one step and what it led to: `reward` was received on arriving, `next_value` is V of
    where it arrived, `continues` (1, 0, or a probability; without γ) says if there is a future
    there. So R[t] = r[t] + γ c[t] ((1 − λ) V[t] + λ R[t + 1]), and the last row looks at V alone.
    Real sequences may hold several episodes: their `truncated` rows keep the bootstrap and hand
    nothing of the next row back.
    """
    future, targets = next_value[-1], []
    for t in range(len(reward) - 1, -1, -1):
        if truncated is not None:
            future = torch.where(truncated[t], next_value[t], future)
        mixed = (1 - lambda_) * next_value[t] + lambda_ * future
        future = reward[t] + gamma * continues[t] * mixed
        targets.append(future)
    return torch.stack(targets[::-1])


def monte_carlo_return(
    reward: Tensor, continues: Tensor, *, gamma: float | Tensor, last_value: Tensor | None = None
) -> Tensor:
    """The discounted rewards to come, [T, …]; `continues` is 0 where the sum ends.

    What comes after the last row is worth `last_value` [...], by default nothing.
    """
    total = torch.zeros_like(reward[-1]) if last_value is None else last_value
    totals = []
    for t in range(len(reward) - 1, -1, -1):
        total = reward[t] + gamma * continues[t] * total
        totals.append(total)
    return torch.stack(totals[::-1])


def multi_step_return(
    reward: Tensor,
    next_value: Tensor,
    continues: Tensor,
    *,
    gamma: float | Tensor,
    steps: int,
    truncated: Tensor | None = None,
) -> Tensor:
    """`steps` rewards and then a bootstrap, for every row of a sequence, aligned as λ-returns are.

    Rows near a truncation or near the end of the sequence bootstrap there, after fewer rewards.
    """
    future = next_value
    for _ in range(steps):
        target = reward + gamma * continues * future
        future = torch.cat([target[1:], next_value[-1:]])
        if truncated is not None:
            future = torch.where(truncated, next_value, future)
    return target


def explained_variance(prediction: Tensor, target: Tensor) -> Tensor:
    """1 − Var(target − prediction) / Var(target): 1 is perfect, 0 is as good as a constant."""
    variance = target.var(correction=0)
    residual = (target - prediction).var(correction=0)
    return torch.where(variance > 0, 1 - residual / variance.clamp_min(1e-12), 0.0)
