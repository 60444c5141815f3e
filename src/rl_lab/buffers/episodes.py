"""Where the episode of a transition begins and ends: kept beside a ring, a few numbers per row.

"Episode" means what was played in one piece: it also ends where environments were reset. Its
part that was overwritten is gone, and the episode that is still played ends, for now, with the
newest row.
"""

import numpy as np

from rl_lab.buffers.storage import Steps
from rl_lab.core.batch import Array

OPEN = -1  # the episode of this row goes on


class Episodes:
    """The vector steps in which the episode of each transition begins and ends."""

    def __init__(self, ring: Steps) -> None:
        self.ring = ring
        self.begin = np.zeros(ring.capacity, np.int64)
        self.end = np.zeros(ring.capacity, np.int64)

    def first(self, number: Array) -> Array:
        """The first transition of the same episode that is still there."""
        step = np.maximum(self.begin[number % self.ring.capacity], self.ring.oldest)
        return step * self.ring.num_envs + number % self.ring.num_envs

    def last(self, number: Array) -> Array:
        """The last transition of the same episode."""
        end = self.end[number % self.ring.capacity]
        step = np.where(end == OPEN, self.ring.total - 1, end)
        return step * self.ring.num_envs + number % self.ring.num_envs

    def update(self, before: int) -> None:
        """Rows from the vector step `before` on are new in the ring."""
        ring = self.ring
        first = max(before - 1, ring.oldest)  # the row before them may have been closed by them
        steps = np.arange(first, ring.total)[:, None]
        number = steps * ring.num_envs + np.arange(ring.num_envs)  # [T, N]
        place = number % ring.capacity
        cut = ring.is_cut(number)

        starts = np.ones_like(cut)
        starts[1:] = cut[:-1]
        begin = np.maximum.accumulate(np.where(starts, steps, 0))
        goes_on = begin == first  # since before this stretch, if its first row was known
        if before > first:
            begin = np.where(goes_on, self.begin[place[0]], begin)
        self.begin[place] = begin

        far = np.iinfo(np.int64).max
        end = np.minimum.accumulate(np.where(cut, steps, far)[::-1])[::-1]
        self.end[place] = end = np.where(end == far, OPEN, end)

        # Older rows of the episodes that were open until now: all of them at once.
        env = np.flatnonzero(end[0] != OPEN)
        start = np.maximum(begin[0, env], ring.oldest)
        length = first - start
        offset = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        older = (np.repeat(start, length) + offset) * ring.num_envs + np.repeat(env, length)
        self.end[older % ring.capacity] = np.repeat(end[0, env], length)
