"""What all planners share: a plan, its warm start, and the return of many plans at once.

A planner proposes K sequences of H actions for each of B environments, `candidates` [B, K, H, A],
and asks `evaluate` for their returns [B, K]. Environments and candidates are one batch of B·K rows;
there is no Python loop over either.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_lab.core.tree import map_leaves

Evaluate = Callable[[Tensor], Tensor]  # candidates [B, K, H, A] to returns [B, K]


class Plan(NamedTuple):
    """The next H actions of each environment, as a distribution.

    For a Box, `mean` [B, H, A] in [-1, 1] and `std` [B, H, A]. For discrete actions `mean` holds
    the probability of each action, and `std` is how uncertain that is: the root of p (1 - p).
    """

    mean: Tensor
    std: Tensor

    @property
    def action(self) -> Tensor:
        """What to do now [B, A]: the mean of the first action, or the probability of each."""
        return self.mean[:, 0]


def shifted(mean: Tensor, fill: float = 0.0) -> Tensor:
    """A plan one step later, the warm start of the next one: nothing is known of its last action.

    `fill` is that last action: 0, or for discrete actions the same probability for each.
    """
    return torch.cat([mean[:, 1:], torch.full_like(mean[:, :1], fill)], dim=1)


def shifted_probabilities(probabilities: Tensor) -> Tensor:
    """The same for discrete actions: half of the plan, and half of an even probability for each.

    A plan is nearly sure of itself in the end. The next one would hardly ever draw anything else.
    """
    even = 1 / probabilities.shape[-1]
    return (shifted(probabilities, even) + even) / 2


def repeated(state: object, count: int) -> Any:
    """States [B, …] as rows [B·count, …], environment by environment, as candidates are."""
    return map_leaves(lambda leaf: leaf.repeat_interleave(count, 0), state)


def imagined_return(
    step: Callable[[Any, Tensor, int], tuple[Any, Tensor]], state: object, candidates: Tensor
) -> Tensor:
    """The sum of rewards [B, K] of following each candidate [B, K, H, A] from its state [B, …].

    `step(state, action [R, A], t)` gives the next state and the reward [R] of arriving there, for
    any number of rows R.
    """
    environments, count, horizon, _ = candidates.shape
    rows, actions = repeated(state, count), candidates.flatten(0, 1)
    total = torch.zeros(environments * count, device=candidates.device)
    for t in range(horizon):
        rows, reward = step(rows, actions[:, t], t)
        total = total + reward
    return total.view(environments, count)


def comparable(returns: Tensor) -> Tensor:
    """Returns that can be ranked: a model that ran off to infinity promises nothing."""
    lowest = torch.finfo(returns.dtype).min
    return returns.nan_to_num(nan=lowest, posinf=lowest, neginf=lowest)


def best(returns: Tensor, candidates: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best returns [B, E] and their candidates [B, E, H, A]."""
    top, index = comparable(returns).topk(count, dim=1)
    index = index[:, :, None, None].expand(-1, -1, *candidates.shape[2:])
    return top, candidates.gather(1, index)
