"""A tree of partial sums: proportional draws for whole batches at once.

Every node is computed from its two children, never by adding a difference. So the sums do not
drift, whatever happened before.
"""

import numpy as np
from numpy.typing import NDArray

from rl_lab.core.batch import Array

Floats = NDArray[np.float64]


class SumTree:
    """Non-negative numbers under `size` leaves; 0 means that a leaf is never drawn."""

    def __init__(self, size: int) -> None:
        self.leaves = 1 << (size - 1).bit_length()
        self.sums: Floats = np.zeros(2 * self.leaves)  # node i has the children 2i and 2i + 1

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self.sums[1])

    def get(self, index: Array) -> Floats:
        """Some leaves."""
        return self.sums[self.leaves + index]

    def set(self, index: Array, value: Floats | float) -> None:
        """Change leaves, and the nodes above them. The last value counts where one comes twice."""
        node = self.leaves + index
        self.sums[node] = value
        for _ in range(self.leaves.bit_length() - 1):
            node = node >> 1
            left, right = 2 * node, 2 * node + 1
            self.sums[node] = self.sums[left] + self.sums[right]

    def find(self, mass: Floats) -> NDArray[np.int64]:
        """The leaf in which each of these points of [0, total) lies; never one that is 0."""
        node = np.ones(mass.shape, np.int64)
        for _ in range(self.leaves.bit_length() - 1):
            left = self.sums[2 * node]
            # Rounding may push a point past the last leaf that is not 0: it stays there.
            right = (mass >= left) & (self.sums[2 * node + 1] > 0)
            mass = np.where(right, mass - left, mass)
            node = 2 * node + right
        return node - self.leaves

    def load(self, sums: Floats) -> None:
        """Take saved sums as they are."""
        assert sums.shape == self.sums.shape, (sums.shape, self.sums.shape)
        self.sums = sums.copy()
