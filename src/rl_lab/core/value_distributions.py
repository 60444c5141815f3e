"""Distributions of returns: learned probabilities of fixed atoms (C51), or quantiles (QR-DQN).

Bellemare et al. 2017 (arXiv:1707.06887) and Dabney et al. 2018 (arXiv:1710.10044). Pure functions;
K is the number of atoms or quantiles. The value of an action is the mean of its distribution.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

ValueDistribution = Literal["none", "c51", "quantile"]


def of_action(outputs: Tensor, action: Tensor) -> Tensor:
    """What outputs [B, A] or [B, A, K] say of one action [B] of each row: [B] or [B, K]."""
    index = action.unsqueeze(-1)
    if outputs.dim() > 2:
        index = index.unsqueeze(-1).expand(-1, -1, outputs.shape[-1])
    return outputs.gather(1, index).squeeze(1)


def support(value_range: Sequence[float], count: int, device: torch.device | str = "cpu") -> Tensor:
    """The atoms [K]: equally far from each other, from one end of the range to the other."""
    return torch.linspace(value_range[0], value_range[1], count, device=device)


def project(probabilities: Tensor, places: Tensor, atoms: Tensor) -> Tensor:
    """Masses `probabilities` [..., K] at `places` [..., K], moved onto the atoms [K] (C51, eq. 7).

    Each is shared by the two atoms beside it, by how near they are, so the mean stays as it was;
    what lies beyond the range goes to its end. As a product with all pairs of places and atoms:
    there is no special case for a place that is an atom, and the order of the sum is fixed.
    """
    last = len(atoms) - 1
    spacing = (atoms[-1] - atoms[0]) / last
    position = ((places - atoms[0]) / spacing).clamp(0, last).unsqueeze(-2)  # in atoms, [..., 1, K]
    index = torch.arange(last + 1, device=atoms.device).unsqueeze(-1)
    share = (1 - (position - index).abs()).relu()  # [..., atom, place]
    return (share * probabilities.unsqueeze(-2)).sum(-1)


def categorical_loss(logits: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy [...] of logits [..., K] with probabilities `goal`, and their divergence (KL).

    The divergence is the cross-entropy without the goal's own entropy: 0 where both are the same.
    """
    loss = -(goal * logits.log_softmax(-1)).sum(-1)
    divergence = loss.detach() + torch.xlogy(goal, goal).sum(-1)
    return loss, divergence.clamp(min=0)


def quantile_huber(quantiles: Tensor, goal: Tensor, kappa: float = 1.0) -> Tensor:
    """The loss [...] of quantiles [..., K] against samples `goal` [..., J] (QR-DQN, eq. 10).

    Quantile i is pulled up with a weight of its level (i + ½) / K and down with the rest: mean over
    the samples, sum over the quantiles. Errors beyond `kappa` count linearly.
    """
    count = quantiles.shape[-1]
    level = (torch.arange(count, device=quantiles.device) + 0.5) / count
    pairs = torch.broadcast_tensors(quantiles.unsqueeze(-1), goal.unsqueeze(-2))
    predicted, target = pairs  # [..., K, J]
    huber = smooth_l1_loss(predicted, target, reduction="none", beta=kappa)
    weight = (level.unsqueeze(-1) - (target < predicted).to(level.dtype)).abs()
    return (weight * huber).mean(-1).sum(-1)
