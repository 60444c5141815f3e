"""A policy over the features of a world model, in action vectors that gradients can pass through.

An action vector is what `networks.mlp.as_vector` makes of an action: one-hot for indices (with
straight-through gradients), plain numbers in [-1, 1] for a Box.
"""

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from rl_lab.algorithms.dreamer.rssm import mixed
from rl_lab.algorithms.dreamer.world_config import WorldModelConfig
from rl_lab.algorithms.dreamer.world_model import Head
from rl_lab.core.distributions import DiagonalGaussian, SquashedGaussian, action_noise, masked
from rl_lab.core.spec import Box, Discrete, MultiDiscrete, Space
from rl_lab.networks.mlp import one_hot, vector_size

_GAIN = 0.01  # of the output layer: at first, everything is about equally likely
_MIN_STD, _MAX_STD = 0.1, 1.0  # of a bounded normal
_RAW_STD = math.log(math.expm1(5.0))  # softplus of it is 5: what a squashed one begins with
_SMALLEST_STD, _MEAN_SCALE = 1e-4, 5.0  # of a squashed one (Dreamer v1)


class LatentActor(Head):
    """Features to actions. Box actions are normal with a bounded mean, or squashed by tanh."""

    def __init__(
        self,
        in_dim: int,
        space: Space,
        config: WorldModelConfig,
        *,
        unimix: float,
        squashed: bool,
    ) -> None:
        self.is_box = isinstance(space, Box)
        size = vector_size(space)
        super().__init__(in_dim, 2 * size if self.is_box else size, config, gain=_GAIN)
        self.space, self.unimix, self.squashed = space, unimix, squashed
        self.sizes = space.nvec if isinstance(space, MultiDiscrete) else (size,)

    def noise(self, lead: tuple[int, ...], generator: Generator) -> Tensor:
        """The random numbers of `lead` sampled actions."""
        return action_noise(self.space, lead, generator)

    def draw(self, features: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sample action vectors [..., A] by the noise; gradients reach the features.

        A mask [..., A] has 0 where an index is forbidden.
        """
        raw = self(features)
        if self.is_box:
            return (
                self._squash(raw).draw(noise)[0] if self.squashed else self._normal(raw).pick(noise)
            )
        log_probs = self._log_probs(raw)
        chosen = self._one_hot(log_probs - noise.log(), mask)
        probs = log_probs.exp()
        return chosen + (probs - probs.detach())

    def mode(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """The most probable action vectors [..., A]."""
        raw = self(features)
        if self.is_box:
            return self._squash(raw).mode() if self.squashed else self._normal(raw).mode()
        return self._one_hot(self._log_probs(raw), mask)

    def evaluate_actions(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of action vectors, and the entropy: both [...]. Undefined if squashed."""
        raw = self(features)
        if self.is_box:
            normal = self._normal(raw)
            return normal.log_prob(action), normal.entropy()
        log_probs = self._log_probs(raw)
        return (action * log_probs).sum(-1), -(log_probs.exp() * log_probs).sum(-1)

    def to_action(self, vector: Tensor) -> Tensor:
        """Action vectors as the environment takes them."""
        if isinstance(self.space, Discrete):
            return vector.argmax(-1)
        if isinstance(self.space, MultiDiscrete):
            return torch.stack([part.argmax(-1) for part in vector.split(self.sizes, -1)], -1)
        return vector.reshape(*vector.shape[:-1], *self.space.shape)

    def _log_probs(self, raw: Tensor) -> Tensor:
        parts = [mixed(part, self.unimix) for part in raw.split(self.sizes, -1)]
        return torch.cat(parts, -1)

    def _one_hot(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        parts = (scores if mask is None else masked(scores, mask)).split(self.sizes, -1)
        chosen = [one_hot(part.argmax(-1), part.shape[-1]) for part in parts]
        return torch.cat(chosen, -1)

    def _normal(self, raw: Tensor) -> DiagonalGaussian:
        mean, std = raw.chunk(2, -1)
        std = (_MAX_STD - _MIN_STD) * (std + 2).sigmoid() + _MIN_STD
        return DiagonalGaussian(mean.tanh(), std.log())

    def _squash(self, raw: Tensor) -> SquashedGaussian:
        mean, std = raw.chunk(2, -1)
        std = softplus(std + _RAW_STD) + _SMALLEST_STD
        return SquashedGaussian(_MEAN_SCALE * (mean / _MEAN_SCALE).tanh(), std.log())
