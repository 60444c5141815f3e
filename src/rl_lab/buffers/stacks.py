"""Observations that show the last frames of their episode: only the newest frame is a row.

The others are in the rows before it. An observation that does not follow from the one before it (an
episode begins, steps were lost) is kept whole, and so is that of the oldest row, whose past is
overwritten. Whether it follows is seen by comparing frames: no rule of how a stack is first filled
is needed, and a wrong number of frames costs memory, never a wrong observation.
"""

import numpy as np

from rl_lab.buffers.sparse_frames import Layout, Pool, zeros
from rl_lab.core.batch import OBS, Array


class Stacks:
    """Observations [size * k, …] of N environments; a row has the last k of them."""

    def __init__(self, size: int, whole: Layout, capacity: int, num_envs: int) -> None:
        self.size, self.capacity, self.num_envs = size, capacity, num_envs
        self.starts = Pool(whole, capacity, num_envs)  # of rows that do not follow
        self.tail = zeros(whole, num_envs)[OBS]  # of the oldest rows

    def newest(self, stacks: Array) -> Array:
        """The newest frames [T, N, k, …] of stacks [T, N, size * k, …]."""
        return stacks[:, :, -(stacks.shape[2] // self.size) :]

    def begins(self, stacks: Array, before: Array | None) -> Array:
        """Where stacks [T, N, …] do not follow from those before them; `before`: the last ones."""
        width = stacks.shape[2] // self.size
        earlier = np.concatenate([stacks[:1] if before is None else before[None], stacks[:-1]])
        differs = stacks[:, :, :-width] != earlier[:, :, width:]
        found: Array = differs.any(axis=tuple(range(2, differs.ndim)))
        if before is None:
            found[0] = True
        return found

    def read(self, number: Array, oldest: int, rows: Array) -> Array:
        """The observations of transitions [B]; `rows` is the column of newest frames."""
        envs, size = self.num_envs, self.size
        # How far back is an observation that is there as a whole? Rows have what came since.
        age = np.full(len(number), size - 1)
        for back in range(size - 2, -1, -1):
            row = number - back * envs
            age[self.starts.has(row) | (row // envs <= oldest)] = back
        found = np.empty((len(number), size, *rows.shape[1:]), rows.dtype)
        for back in range(size):
            own = np.flatnonzero(back <= age)
            found[own, size - 1 - back] = rows.take((number[own] - back * envs) % self.capacity, 0)
        young = np.flatnonzero(age < size - 1)
        whole = self._whole(number[young] - age[young] * envs)
        whole = whole.reshape(len(young), size, *rows.shape[1:])
        for back in range(1, size):
            which = np.flatnonzero(back > age[young])
            place = size - 1 - back + age[young[which]]
            found[young[which], size - 1 - back] = whole[which, place]
        return found.reshape(len(number), -1, *rows.shape[2:])

    def _whole(self, number: Array) -> Array:
        """Of rows that do not follow, or else are the oldest."""
        found = self.tail[number % self.num_envs]
        started = np.flatnonzero(self.starts.has(number))
        found[started] = self.starts.take(OBS, number[started])
        return found
