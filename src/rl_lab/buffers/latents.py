"""A recurrent state for every transition of a ring: where a model stood when it last saw its frame.

States grow old while the model learns, so learning writes newer ones over them (Hafner et al. 2023,
arXiv:2301.04104, "replay context"). Final frames have none: nothing is learned from there on.
"""

from typing import Any

import numpy as np
from torch import Tensor

from rl_lab.buffers.ram import require_room
from rl_lab.buffers.storage import Steps
from rl_lab.core.batch import Array

NOWHERE = -1  # the index of a final frame


class Latents:
    """One vector of float32 per transition; how long it is shows with the first one."""

    def __init__(self, ring: Steps) -> None:
        self.ring = ring
        self.values: Array | None = None

    def store(self, number: Array, values: Array) -> None:
        """Remember states [B, D] of transitions; of those that are overwritten, nothing."""
        if self.values is None:
            self.values = self._room(values.shape[-1])
        there = number >= self.ring.oldest * self.ring.num_envs  # NOWHERE is not
        self.values[number[there] % self.ring.capacity] = values[there]

    def begin(self, before: int, values: Tensor | None) -> None:
        """Vector steps from `before` on are new: their states are these [T, N, D], or unknown."""
        ring = self.ring
        first = max(before, ring.oldest) * ring.num_envs
        number = np.arange(first, ring.total * ring.num_envs)
        if values is not None:
            rows = values.detach().cpu().numpy()
            rows = rows.reshape(-1, rows.shape[-1])
            self.store(number, rows[len(rows) - len(number) :])
        elif self.values is not None:
            self.values[number % ring.capacity] = 0

    def read(self, number: Array, unknown: Array) -> Array | None:
        """The states of these transitions; zeros where they are not to be known."""
        if self.values is None:
            return None
        found = self.values.take(number % self.ring.capacity, axis=0)
        found[unknown] = 0
        return found

    def state_dict(self) -> dict[str, Any]:
        """All states, the oldest first."""
        return {"values": None if self.values is None else self.values[self._places()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same states at the same places."""
        values = state["values"]
        self.values = None if values is None else self._room(values.shape[-1])
        if self.values is not None:
            self.values[self._places()] = values

    def _places(self) -> Array:
        first = self.ring.oldest * self.ring.num_envs
        return np.arange(first, first + len(self.ring)) % self.ring.capacity

    def _room(self, size: int) -> Array:
        num_envs = self.ring.num_envs
        require_room(lambda rows: 4 * size * rows * num_envs, self.ring.rows, num_envs, {})
        return np.zeros((self.ring.capacity, size), np.float32)
