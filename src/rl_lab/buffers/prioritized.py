"""Prioritized replay (Schaul et al. 2016, arXiv:1511.05952), the proportional variant.

A transition is drawn with probability p / Σp, where p = (|error| + eps) ** alpha. New ones have the
largest priority seen so far, so that each is drawn soon. The weight (N · P) ** -beta corrects for
it, divided by the largest weight of the minibatch: no weight is above 1. (Divided by the largest
weight of the buffer, all weights would be near 0 as soon as one row has an error near 0.)
Draws are stratified within a minibatch: one from each of `batch_size` equal parts of Σp.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.buffers.sum_tree import SumTree
from rl_lab.core.batch import INDEX, WEIGHT, Batch
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.options import option
from rl_lab.core.protocols import BufferSetup


@dataclass(frozen=True, kw_only=True)
class PrioritizedConfig(UniformConfig):
    """How much surprise counts. Its correction, beta, belongs to the algorithm."""

    type: str = option("prioritized", "surprising transitions are more likely")
    alpha: float = option(0.6, "0: uniform; 1: in proportion to the error", low=0, high=1)
    eps: float = option(
        1e-6, "added to every error so that each transition keeps a non-zero probability", above=0
    )


class PrioritizedReplay(UniformReplay):
    """Draws by priority, and learns the priorities from the errors that updates report."""

    Config = PrioritizedConfig
    config: PrioritizedConfig

    def __init__(self, config: PrioritizedConfig, setup: BufferSetup) -> None:
        super().__init__(config, setup)
        self.tree = SumTree(self.ring.capacity)
        self.largest = 1.0  # priority before the power, of rows that were not drawn yet

    def needed_bytes(self, rows: int) -> int:
        """The rows and a tree of float64."""
        leaves = 1 << (rows * self.setup.num_envs - 1).bit_length()
        return super().needed_bytes(rows) + 2 * leaves * 8

    def add(self, trajectory: Batch) -> None:
        """New rows are as likely as the most surprising one so far."""
        before = self.ring.total
        super().add(trajectory)
        first = max(before, self.ring.oldest) * self.ring.num_envs
        number = np.arange(first, self.ring.total * self.ring.num_envs)
        self.tree.set(number % self.ring.capacity, self.largest**self.config.alpha)

    def sample(
        self,
        batch_size: int,
        count: int = 1,
        *,
        n_step: int = 1,
        beta: float = 1.0,
        only: Sequence[str] = (),
    ) -> Batch:
        """`count` minibatches at once, [count, batch_size, …], with INDEX and WEIGHT."""
        assert self.ready(), "ask ready() first"
        part = np.tile(np.arange(batch_size), count) + self.setup.rng.random(batch_size * count)
        index = self.tree.find(part / batch_size * self.tree.total)
        oldest = self.ring.oldest * self.ring.num_envs
        number = oldest + (index - oldest) % self.ring.capacity
        batch = self.transitions(number, n_step, self.wanted(only))
        batch[INDEX] = index
        # N and Σp are the same in every weight, so they cancel against the minibatch's largest one.
        priority = self.tree.get(index).reshape(count, batch_size)
        weight = (priority.min(1, keepdims=True) / priority) ** beta
        batch[WEIGHT] = weight.reshape(-1).astype(np.float32)
        return self.as_tensors(batch, (count, batch_size))

    def reprioritize(self, index: Tensor, error: Tensor) -> None:
        """Set priorities from TD errors, without weights or signs: (|error| + eps) ** alpha."""
        rows = index.detach().cpu().numpy().reshape(-1)
        size = np.abs(error.detach().cpu().numpy().reshape(-1).astype(np.float64))
        if not np.isfinite(size).all():
            raise NonFiniteError("an update reported TD errors that are not finite")
        size += self.config.eps
        self.largest = max(self.largest, float(size.max(initial=0.0)))
        self.tree.set(rows, size**self.config.alpha)

    def state_dict(self) -> dict[str, Any]:
        """The rows, and the tree with its sums as they are."""
        return super().state_dict() | {"sums": self.tree.sums.copy(), "largest": self.largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same rows and priorities at the same places."""
        super().load_state_dict(state)
        self.tree.load(state["sums"])
        self.largest = float(state["largest"])
