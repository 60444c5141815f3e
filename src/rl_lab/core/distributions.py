"""Action distributions as thin functions on tensors: no validation, no `torch.distributions`.

Each is made from the head's raw output. `log_prob` and `entropy` are summed over action
dimensions, so both have the batch's shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from rl_lab.core.spec import Discrete, MultiDiscrete, Space

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
LOG_TWO = math.log(2)
FORBIDDEN = -1e8  # a logit whose probability is 0 in float32


class Distribution(Protocol):
    """What a policy needs of a distribution over actions."""

    def sample(self, generator: Generator | None = None) -> Tensor:
        """A random action."""

    def pick(self, noise: Tensor) -> Tensor:
        """The action that these random numbers choose: exponential ones, or normal in a Box."""

    def mode(self) -> Tensor:
        """The most likely action."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log density, summed over action dimensions."""

    def entropy(self) -> Tensor:
        """Entropy, summed over action dimensions."""


class Categorical:
    """One index, from unnormalized `logits` [..., n]."""

    __slots__ = ("log_probs",)

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = logits.log_softmax(-1)  # once, for everything below

    def sample(self, generator: Generator | None = None) -> Tensor:
        """Gumbel-max: no host synchronization, no renormalization."""
        return self.pick(torch.empty_like(self.log_probs).exponential_(generator=generator))

    def pick(self, noise: Tensor) -> Tensor:
        """noise [..., n], exponential."""
        return (self.log_probs - noise.log()).argmax(-1)

    def mode(self) -> Tensor:
        """The first of the most likely ones."""
        return self.log_probs.argmax(-1)

    def probabilities(self) -> Tensor:
        """[..., n]"""
        return self.log_probs.exp()

    def log_prob(self, action: Tensor) -> Tensor:
        """[...]"""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """[...]"""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


@dataclass(slots=True)
class MultiCategorical:
    """Several independent indices. `logits` [..., sum(nvec)]."""

    logits: Tensor
    nvec: tuple[int, ...]

    def _parts(self) -> list[Categorical]:
        return [Categorical(part) for part in self.logits.split(self.nvec, dim=-1)]

    def sample(self, generator: Generator | None = None) -> Tensor:
        """[..., len(nvec)]"""
        return torch.stack([part.sample(generator) for part in self._parts()], -1)

    def pick(self, noise: Tensor) -> Tensor:
        """noise [..., sum(nvec)], exponential."""
        parts = zip(self._parts(), noise.split(self.nvec, dim=-1), strict=True)
        return torch.stack([part.pick(each) for part, each in parts], -1)

    def mode(self) -> Tensor:
        """[..., len(nvec)]"""
        return torch.stack([part.mode() for part in self._parts()], -1)

    def probabilities(self) -> Tensor:
        """[..., sum(nvec)], side by side."""
        return torch.cat([part.probabilities() for part in self._parts()], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """[...]"""
        parts = zip(self._parts(), action.unbind(-1), strict=True)
        return torch.stack([part.log_prob(each) for part, each in parts]).sum(0)

    def entropy(self) -> Tensor:
        """[...]"""
        return torch.stack([part.entropy() for part in self._parts()]).sum(0)


def masked(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits that give no weight to what the mask forbids. Finite, so that entropies stay so."""
    return torch.where(mask != 0, logits, FORBIDDEN)


@dataclass(slots=True)
class DiagonalGaussian:
    """Independent normals. `mean` [..., A], `log_std` broadcastable to it."""

    mean: Tensor
    log_std: Tensor

    def sample(self, generator: Generator | None = None) -> Tensor:
        """[..., A]"""
        return self.pick(torch.empty_like(self.mean).normal_(generator=generator))

    def pick(self, noise: Tensor) -> Tensor:
        """noise [..., A], normal."""
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        """[..., A]"""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """[...]"""
        scaled = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * scaled.square() - self.log_std - HALF_LOG_TWO_PI).sum(-1)

    def entropy(self) -> Tensor:
        """[...]"""
        return (self.log_std + 0.5 + HALF_LOG_TWO_PI).expand_as(self.mean).sum(-1)


def log_slope_of_tanh(u: Tensor) -> Tensor:
    """log(1 − tanh²u) as 2 (log 2 − u − softplus(−2u)): exact where 1 − tanh²u is 0 in float32."""
    return 2 * (LOG_TWO - u - softplus(-2 * u))


@dataclass(slots=True)
class SquashedGaussian:
    """tanh of independent normals, stretched to ±`scale`. `mean` and `log_std` [..., A].

    Not a `Distribution`: a density at tanh(u) needs u, which an action of nearly 1 has lost.
    """

    mean: Tensor
    log_std: Tensor
    scale: float = 1.0

    def draw(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The action that normal numbers [..., A] choose, and its log density [...]."""
        u = self.mean + self.log_std.exp() * noise
        return self.scale * u.tanh(), self._density(u, noise)

    def mode(self) -> Tensor:
        """Where the mean goes: what is done when nothing is left to chance. [..., A]"""
        return self.scale * self.mean.tanh()

    def log_prob(self, u: Tensor) -> Tensor:
        """Log density of the action scale · tanh(u), [...]."""
        return self._density(u, (u - self.mean) * (-self.log_std).exp())

    def _density(self, u: Tensor, noise: Tensor) -> Tensor:
        volume = log_slope_of_tanh(u) + math.log(self.scale)
        return (-0.5 * noise.square() - self.log_std - HALF_LOG_TWO_PI - volume).sum(-1)


def described(policy: Distribution | SquashedGaussian) -> dict[str, Tensor]:
    """A distribution as numbers to be shown: `probabilities`, or `mean` and `std` of each axis.

    Of a squashed one they are those before the squashing, and the mean is squashed.
    """
    if isinstance(policy, Categorical | MultiCategorical):
        return {"probabilities": policy.probabilities()}
    if isinstance(policy, DiagonalGaussian | SquashedGaussian):
        return {"mean": policy.mode(), "std": policy.log_std.exp().expand_as(policy.mean)}
    return {}


def action_noise(action: Space, lead: Sequence[int], generator: Generator) -> Tensor:
    """What `pick` wants for actions of this space, [*lead, …]."""
    empty = partial(torch.empty, *lead, device=generator.device)
    if isinstance(action, Discrete):
        return empty(action.n).exponential_(generator=generator)
    if isinstance(action, MultiDiscrete):
        return empty(sum(action.nvec)).exponential_(generator=generator)
    return empty(action.size).normal_(generator=generator)
