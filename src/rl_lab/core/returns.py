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
    """Generalised advantage estimation (Schulman et al. 2016). All [T, N], returns [T, N].

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


def explained_variance(prediction: Tensor, target: Tensor) -> Tensor:
    """1 − Var(target − prediction) / Var(target): 1 is perfect, 0 is as good as a constant."""
    variance = target.var(correction=0)
    residual = (target - prediction).var(correction=0)
    return torch.where(variance > 0, 1 - residual / variance.clamp_min(1e-12), 0.0)
