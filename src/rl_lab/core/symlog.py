"""Numbers of any size for a network: symlog, and scalars as weights of fixed bins (two-hot).

Hafner et al. 2023. The bins lie at symexp of equal distances: dense around zero, and they
reach beyond ±10⁸. A scalar is the two bins beside it, weighed by how near they are in raw units.
"""

import torch
from torch import Tensor

BIN_COUNT = 255
_REACH = 20.0  # in symlog units


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|): linear around zero, a logarithm further out."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """The inverse of `symlog`."""
    return x.sign() * x.abs().expm1()


def symexp_bins(count: int = BIN_COUNT) -> Tensor:
    """An odd number of bins, symmetric to the last bit, with 0 in the middle."""
    assert count % 2 == 1, "zero needs a bin of its own"
    lower = symexp(torch.linspace(-_REACH, 0, count // 2 + 1))
    return torch.cat([lower, -lower[:-1].flip(0)])


def two_hot(x: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """The bin [...] just below x [...], and the share of the bin above it.

    The mean of the two is x; beyond the last bin it is that bin.
    """
    x = x.clamp(bins[0], bins[-1])
    lower = (torch.bucketize(x, bins, right=True) - 1).clamp(max=len(bins) - 2)
    return lower, (x - bins[lower]) / (bins[lower + 1] - bins[lower])


def two_hot_loss(log_probs: Tensor, x: Tensor, bins: Tensor) -> Tensor:
    """Cross-entropy [...] of log-probabilities [..., bins] with the two bins beside x [...]."""
    lower, share = two_hot(x, bins)
    low, high = log_probs.gather(-1, torch.stack([lower, lower + 1], -1)).unbind(-1)
    return -torch.lerp(low, high, share)


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """What logits [..., bins] say, [...]. Equal ones say exactly 0: large bins cancel in pairs."""
    weighed = logits.softmax(-1) * bins
    middle = bins.shape[0] // 2
    pairs = weighed[..., :middle].flip(-1) + weighed[..., middle + 1 :]
    return pairs.sum(-1) + weighed[..., middle]


def symlog_bins(count: int, reach: float) -> Tensor:
    """Bins at equal distances in symlog units, from -reach to reach: those of TD-MPC2.

    An odd number of them, symmetric to the last bit, with 0 in the middle.
    """
    assert count % 2 == 1, "zero needs a bin of its own"
    lower = torch.linspace(-reach, 0, count // 2 + 1)
    return torch.cat([lower, -lower[:-1].flip(0)])


def symlog_two_hot_loss(log_probs: Tensor, x: Tensor, bins: Tensor) -> Tensor:
    """Cross-entropy [...] of log-probabilities [..., bins] with x [...], two-hot in symlog units.

    The share of a bin is how near it is to symlog(x), not to x as with `symexp_bins`.
    """
    return two_hot_loss(log_probs, symlog(x), bins)


def symlog_two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """What logits [..., bins] say, [...]: symexp of the mean bin. Equal ones say exactly 0."""
    return symexp(two_hot_mean(logits, bins))
