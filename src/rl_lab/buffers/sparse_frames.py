"""What only some rows of a ring have: their frames, in a pool that grows with them.

Such frames are numbered from 1 in the order of their rows; those of overwritten rows are forgotten
from the front. So, like rows, they are sealed once.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rl_lab.buffers.ram import require_more
from rl_lab.core.batch import Array
from rl_lab.core.chunks import Chunk, Columns, Log

CHUNK_BYTES = 64 * 2**20
SHARE = 64  # room for the frames of one row in 64, to begin with

Layout = dict[str, tuple[tuple[int, ...], Any]]  # column -> shape and dtype of one row


class Pool:
    """Frames of some of the transitions in a ring with `capacity` places."""

    def __init__(self, columns: Layout, capacity: int, num_envs: int) -> None:
        self.capacity = capacity
        self.promised = 0  # bytes that the ring has asked for and not taken yet
        self.which = np.zeros(capacity, np.int64)  # of a place: which frame; 0: it has none
        self.frames = zeros(columns, first_room(capacity, num_envs))
        self.first = self.next = 1
        self.chunks: list[Chunk] = []  # sealed frames that are in files

    def has(self, number: Array) -> Array:
        """True where a transition has a frame here."""
        return self.which.take(number % self.capacity) != 0

    def take(self, name: str, number: Array) -> Array:
        """The frames of transitions that have one."""
        frames = self.frames[name]
        return frames.take(self.which.take(number % self.capacity) % len(frames), axis=0)

    def keep(self, number: Array, frames: Columns) -> None:
        """Frames of these transitions, which are newer than those before."""
        before = self.next
        self.expect(number)
        self._make_room(before)
        for name, pool in self.frames.items():
            pool[np.arange(before, self.next) % len(pool)] = frames[name]

    def expect(self, number: Array) -> None:
        """The next frames are those of these transitions."""
        self.which[number % self.capacity] = np.arange(self.next, self.next + len(number))
        self.next += len(number)

    def forget(self, place: slice) -> None:
        """These rows are about to be overwritten."""
        self.first += int(np.count_nonzero(self.which[place]))

    def log(self) -> Log:
        """All frames, in chunks that are never made twice.

        Those without a file yet are views: write or copy them before more is added.
        """
        self.chunks = in_files(self.chunks, self.first)
        start = end(self.chunks, self.first)
        room = len(next(iter(self.frames.values())))
        size = max(CHUNK_BYTES // sum(pool[0].nbytes for pool in self.frames.values()), 1)
        for which, place in cuts(start, self.next, room, size):
            columns = {name: pool[place] for name, pool in self.frames.items()}
            self.chunks.append(Chunk(which, place.stop - place.start, columns))
        return Log(list(self.chunks), self.first)

    def clear(self, log: Log) -> None:
        """Get ready for what is in a log: next, `expect` its frames, then `load` them."""
        self.chunks = list(log.chunks)
        self.first = self.next = int(log.first)
        self.which[:] = 0

    def load(self, log: Log) -> None:
        """The frames that are expected."""
        self._make_room(self.first)
        for which, rows in pieces(log):
            for name, pool in self.frames.items():
                pool[np.arange(which, which + len(rows[name])) % len(pool)] = rows[name]

    def _make_room(self, until: int) -> None:
        """Room for all frames that have a number; those before `until` are there already."""
        room, count = len(next(iter(self.frames.values()))), self.next - self.first
        if count <= room:
            return
        wanted = min(max(2 * room, count), self.capacity)
        self._require_room(room, wanted)
        which = np.arange(self.first, until)
        for name, pool in self.frames.items():
            larger = np.zeros((wanted, *pool.shape[1:]), pool.dtype)
            larger[which % len(larger)] = pool[which % room]
            self.frames[name] = larger

    def _require_room(self, room: int, wanted: int) -> None:
        """Memory for `wanted` frames, after what was promised; those that move are there twice."""
        size, more = sum(pool[0].nbytes for pool in self.frames.values()), wanted - room
        needed = max(more * size + self.promised, room * size)
        require_more(needed, f"{more:_} more observations kept whole, and the rows to come,")


def first_room(capacity: int, num_envs: int) -> int:
    """How many frames there is room for before the pool has to grow."""
    return min(max(num_envs, capacity // SHARE), capacity)


def zeros(columns: Layout, count: int) -> Columns:
    """Arrays of n rows. Not `empty`: a page is taken when it is first written."""
    return {name: np.zeros((count, *shape), kind) for name, (shape, kind) in columns.items()}


def in_files(chunks: list[Chunk], first: int) -> list[Chunk]:
    """Chunks that need not be sealed again: they have a file, and rows that still count."""
    return [each for each in chunks if each.name and each.first + each.count > first]


def end(chunks: list[Chunk], first: int) -> int:
    """The first row that no chunk has."""
    return chunks[-1].first + chunks[-1].count if chunks else first


def cuts(first: int, stop: int, room: int, size: int) -> Iterator[tuple[int, slice]]:
    """Rows `first` … `stop - 1` of a ring in slices: none has more than `size`, none wraps."""
    while first < stop:
        place = first % room
        count = min(stop - first, room - place, size)
        yield first, slice(place, place + count)
        first += count


def pieces(log: Log) -> Iterator[tuple[int, Columns]]:
    """The rows of a log that still count, chunk by chunk: all at once would need twice the RAM."""
    for chunk in log.chunks:
        skipped = max(log.first - chunk.first, 0)
        yield chunk.first + skipped, {name: rows[skipped:] for name, rows in chunk.read().items()}
