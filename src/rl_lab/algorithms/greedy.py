"""What Q-learning with epsilon-greedy policies shares: epsilon, the choice, and the entropy."""

import math
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.distributions import masked
from rl_lab.core.schedule import Schedule
from rl_lab.core.target import Target
from rl_lab.core.tree import map_leaves
from rl_lab.core.value_distributions import of_action

EPSILON = "epsilon"
FADING = Schedule(start=1.0, end=0.05, finish=0.2)  # of epsilon, in the first fifth of a run


def chosen_value(choice: Tensor, judge: Tensor, mask: Tensor | None) -> Tensor:
    """What `judge` [B, A] or [B, A, K] says of the best legal action by `choice` [B, A].

    Double Q-learning chooses by the network and judges by its target: noise that made an action
    look good in the one is not in the other. Plain Q-learning gives the target as both.
    """
    best = (choice if mask is None else masked(choice, mask)).argmax(-1)
    return of_action(judge, best)


def policy_entropy(epsilon: float, legal: int) -> float:
    """Of the epsilon-greedy policy where so many actions are legal, in nats. One is the best."""
    other = epsilon / legal
    chances = [1.0 - epsilon + other] + [other] * (legal - 1)
    return sum(chance * math.log(1.0 / chance) for chance in chances if chance > 0)


def greedy_entropy(epsilon: float, actions: int, mask: Tensor | None) -> float | Tensor:
    """Of the epsilon-greedy policy, on average over what masks [..., A] allow, if there are any."""
    if mask is None:
        return policy_entropy(epsilon, actions)
    by_count = [policy_entropy(epsilon, max(legal, 1)) for legal in range(actions + 1)]
    return torch.tensor(by_count, device=mask.device)[(mask != 0).sum(-1)].mean()


def absorb_frames(model: Any, target: Target, frames: Any) -> None:
    """Each fresh frame counts once in the observation statistics; the target sees by the same."""
    model.normalizer.absorb(map_leaves(lambda leaf: leaf.cpu().numpy(), frames))
    target.copy_buffers(model)
