"""A ring of vector steps: every frame is stored once, and nothing loops over rows.

A transition has a number that never changes: `t * N + n` for environment n at vector step t,
counted since the run began. It lies at `number % capacity`, and what follows it in its environment
is `number + N`. So `next_obs` is the `obs` of the follower, unless something was cut there: an
episode ended, or environments were started anew. Such rows have a frame of their own in `finals`.
The newest row has no follower yet; its `next_obs` is `head`.

Rows before the newest one never change until they are overwritten. So a checkpoint seals them once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Batch,
)
from rl_lab.core.chunks import Chunk, Columns, Log
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, EnvSpec, observation_rows
from rl_lab.core.tree import named_leaves

CUT = "cut"  # column of a chunk: the follower of this row belongs to something else
CHUNK_BYTES = 64 * 2**20
FINALS_SHARE = 64  # room for one final frame in so many transitions, to begin with

Layout = dict[str, tuple[tuple[int, ...], Any]]  # column -> shape and dtype of one row


def frame_layout(spec: EnvSpec) -> Layout:
    """The columns of an observation: `obs`, or `obs/camera`, `obs/arm`, …"""
    parts = observation_rows(spec.observation, lambda space: (space.shape, space.dtype))
    return dict(named_leaves({OBS: parts}))


def layout(spec: EnvSpec) -> Layout:
    """All columns, as the collector gives them."""
    # As the policy sampled it, in the collector's type.
    action_type = np.float32 if isinstance(spec.action, Box) else spec.action.dtype
    return {
        **frame_layout(spec),
        ACTION: (spec.action.shape, action_type),
        REWARD: ((), np.float32),
        TERMINATED: ((), np.bool_),
        TRUNCATED: ((), np.bool_),
    }


def row_bytes(columns: Layout) -> int:
    """What one row of these columns takes."""
    return sum(np.dtype(kind).itemsize * int(np.prod(shape)) for shape, kind in columns.values())


def needed_bytes(spec: EnvSpec, rows: int, num_envs: int) -> int:
    """What a ring takes when it is full, with the final frames that it has room for at first."""
    capacity = rows * num_envs
    frame = row_bytes(frame_layout(spec))
    finals = first_room(capacity, num_envs)
    return capacity * (row_bytes(layout(spec)) + 8) + (finals + num_envs) * frame


def first_room(capacity: int, num_envs: int) -> int:
    """How many final frames there is room for before the pool has to grow."""
    return min(max(num_envs, capacity // FINALS_SHARE), capacity)


class Steps(ABC):
    """The newest `rows` vector steps of N environments, wherever they are kept."""

    total: int  # vector steps ever added
    head: Columns  # what the newest row led to

    def __init__(self, spec: EnvSpec, rows: int, num_envs: int) -> None:
        self.rows, self.num_envs = rows, num_envs
        self.capacity = rows * num_envs
        self.frame_names = list(frame_layout(spec))

    @property
    def oldest(self) -> int:
        """The first vector step that is still there."""
        return max(self.total - self.rows, 0)

    @property
    def newest(self) -> int:
        """The number of the first transition of the newest vector step."""
        return (self.total - 1) * self.num_envs

    def __len__(self) -> int:
        return (self.total - self.oldest) * self.num_envs

    @abstractmethod
    def add(self, trajectory: Batch) -> None:
        """Take a trajectory [T, N, …]."""

    @abstractmethod
    def end(self) -> None:
        """Nothing will be added any more: what the newest row led to is final."""

    @abstractmethod
    def take(self, name: str, number: Array) -> Array:
        """A column at these transitions."""

    @abstractmethod
    def final_frame(self, name: str, number: Array) -> Array:
        """The frames that transitions with a cut after them ended in."""

    @abstractmethod
    def is_cut(self, number: Array) -> Array:
        """True where a transition has a final frame of its own; not known yet for the newest."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to have the same rows again."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same rows at the same places."""

    def next_frame(self, name: str, number: Array) -> Array:
        """Where these transitions really ended, for one column of the observation."""
        frames = self.take(name, number + self.num_envs)
        own = np.flatnonzero(self.is_cut(number))
        frames[own] = self.final_frame(name, number[own])
        newest = np.flatnonzero(number >= self.newest)
        frames[newest] = self.head[name][number[newest] % self.num_envs]
        return frames

    def is_last(self, number: Array) -> Array:
        """True where nothing follows: the episode ended, was cut off, or this is the newest row."""
        return self.is_cut(number) | (number >= self.newest)

    def window(self, number: Array, length: int) -> tuple[Array, Array]:
        """Up to `length` steps of one episode from each transition on.

        Their numbers [B, length], and how many of them are real.
        """
        every = number[:, None] + self.num_envs * np.arange(length)
        last = self.is_last(every)
        last[:, -1] = True
        return every, last.argmax(1) + 1


class Ring(Steps):
    """Vector steps in arrays that are made once."""

    def __init__(self, spec: EnvSpec, rows: int, num_envs: int) -> None:
        super().__init__(spec, rows, num_envs)
        self.total = 0
        # zeros, not empty: a page is taken from the machine when it is first written
        self.columns = _zeros(layout(spec), self.capacity)
        self.final = np.zeros(self.capacity, np.int64)  # which final frame; 0: the follower's obs
        self.finals = _zeros(frame_layout(spec), first_room(self.capacity, num_envs))
        self.first_final = self.next_final = 1  # they are numbered in the order of their rows
        self.head = _zeros(frame_layout(spec), num_envs)
        self.chunks: list[Chunk] = []  # sealed rows that are in files
        self.final_chunks: list[Chunk] = []

    # ------------------------------------------------------------ writing

    def add(self, trajectory: Batch) -> None:
        """Take a trajectory [T, N, …]: at most two slices of every column."""
        new = {name: _array(leaf) for name, leaf in named_leaves(_kept(trajectory))}
        after = {name: _array(leaf) for name, leaf in named_leaves({OBS: trajectory[NEXT_OBS]})}
        reset = _array(trajectory[RESET])
        steps = len(reset)
        if steps == 0:
            return
        if self.total:
            self._close(reset[0], {name: new[name][0] for name in self.frame_names})
        self._forget(self.total + steps - self.rows)
        skipped = max(steps - self.rows, 0)  # a trajectory that is longer than the ring
        self.total += skipped
        first = self.total * self.num_envs
        count = (steps - skipped) * self.num_envs
        for place, source in self.stretches(first, count):
            for name, column in self.columns.items():
                column[place] = _flat(new[name][skipped:])[source]
            self.final[place] = 0
        self.total += steps - skipped
        ended = (new[TERMINATED] | new[TRUNCATED])[skipped:-1]
        cut = ended | reset[skipped + 1 :]
        if cut.any():
            numbers = first + np.flatnonzero(cut)
            self._keep_finals(numbers, {name: after[name][skipped:-1][cut] for name in after})
        for name, frames in self.head.items():
            frames[:] = after[name][-1]

    def end(self) -> None:
        """Nothing will be added any more: what the newest row led to is final."""
        if self.total:
            self._keep_finals(self.newest + np.arange(self.num_envs), self.head)

    def _close(self, reset: Array, frames: Columns) -> None:
        """The newest row gets a follower: is it the next step of the same episode?

        A vector that resets itself a step late may have played steps that were not kept, so the
        frames are compared too.
        """
        here = slice(self.newest % self.capacity, self.newest % self.capacity + self.num_envs)
        cut = self.columns[TERMINATED][here] | self.columns[TRUNCATED][here] | reset
        for name, head in self.head.items():
            differs = head != frames[name]
            cut |= differs.reshape(self.num_envs, -1).any(1)
        if cut.any():
            numbers = self.newest + np.flatnonzero(cut)
            self._keep_finals(numbers, {name: head[cut] for name, head in self.head.items()})

    def _forget(self, until: int) -> None:
        """Rows before the vector step `until` are about to be overwritten."""
        count = min(until, self.total) - self.oldest
        if count > 0:
            for place, _ in self.stretches(self.oldest * self.num_envs, count * self.num_envs):
                self.first_final += int(np.count_nonzero(self.final[place]))

    def _keep_finals(self, numbers: Array, frames: Columns) -> None:
        """Frames that no follower has, in the order of their rows."""
        which = np.arange(self.next_final, self.next_final + len(numbers))
        self.next_final += len(numbers)
        self._make_room(self.next_final - self.first_final, self.next_final - len(numbers))
        for name, pool in self.finals.items():
            pool[which % len(pool)] = frames[name]
        self.final[numbers % self.capacity] = which

    def _make_room(self, count: int, until: int) -> None:
        """Room for `count` final frames; those before `until` are there already."""
        room = len(self.finals[self.frame_names[0]])
        if count <= room:
            return
        which = np.arange(self.first_final, until)
        for name, pool in self.finals.items():
            larger = np.zeros(
                (min(max(2 * room, count), self.capacity), *pool.shape[1:]), pool.dtype
            )
            larger[which % len(larger)] = pool[which % room]
            self.finals[name] = larger

    # ------------------------------------------------------------ reading

    def stretches(self, first: int, count: int) -> Iterator[tuple[slice, slice]]:
        """Where so many numbers from `first` on lie, and which of them: at most two slices."""
        place = first % self.capacity
        length = min(count, self.capacity - place)
        yield slice(place, place + length), slice(0, length)
        if length < count:
            yield slice(0, count - length), slice(length, count)

    def take(self, name: str, number: Array) -> Array:
        """A column at these transitions."""
        return self.columns[name].take(number % self.capacity, axis=0)

    def final_frame(self, name: str, number: Array) -> Array:
        """The frames that transitions with a cut after them ended in."""
        pool = self.finals[name]
        return pool.take(self.final.take(number % self.capacity) % len(pool), axis=0)

    def is_cut(self, number: Array) -> Array:
        """True where a transition has a final frame of its own; not known yet for the newest."""
        return self.final.take(number % self.capacity) != 0

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Two logs of what never changes, and the newest row.

        Chunks that have no file yet are views of the ring: write or copy them before more is added.
        """
        self.chunks = _in_files(self.chunks, self.oldest)
        self.final_chunks = _in_files(self.final_chunks, self.first_final)
        self.chunks += self._seal_rows(_end(self.chunks, self.oldest))
        self.final_chunks += self._seal_finals(_end(self.final_chunks, self.first_final))
        return {
            "rows": self.rows,
            "num_envs": self.num_envs,
            "total": self.total,
            "log": Log(list(self.chunks), self.oldest),
            "finals": Log(list(self.final_chunks), self.first_final),
            "newest": {name: column[self._newest_row()].copy() for name, column in self._by_row()},
            "head": {name: frames.copy() for name, frames in self.head.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same rows at the same places; chunks that have a file are not sealed again."""
        for name, here in (("rows", self.rows), ("num_envs", self.num_envs)):
            if state[name] != here:
                raise UserError(
                    f"a saved buffer does not fit: it has {name} = {state[name]}, here it is {here}"
                )
        self.total = int(state["total"])
        log, finals = state["log"], state["finals"]
        self.chunks, self.final_chunks = list(log.chunks), list(finals.chunks)
        self.first_final = self.next_final = int(finals.first)
        self.final[:] = 0
        by_row = dict(self._by_row())
        for step, rows in _pieces(log):
            place = np.arange(step, step + len(rows[CUT])) % self.rows
            for name, column in by_row.items():
                column[place] = rows[name]
            numbers = step * self.num_envs + np.flatnonzero(rows[CUT])
            self.final[numbers % self.capacity] = self.next_final + np.arange(len(numbers))
            self.next_final += len(numbers)
        self._make_room(self.next_final - self.first_final, self.first_final)
        for which, rows in _pieces(finals):
            for name, pool in self.finals.items():
                pool[np.arange(which, which + len(rows[name])) % len(pool)] = rows[name]
        for name, column in by_row.items():
            column[self._newest_row()] = state["newest"][name]
        for name, frames in self.head.items():
            frames[:] = state["head"][name]

    def _by_row(self) -> Iterator[tuple[str, Array]]:
        """Every column as [rows, N, …]."""
        for name, column in self.columns.items():
            yield name, column.reshape(self.rows, self.num_envs, *column.shape[1:])

    def _newest_row(self) -> int:
        return (self.total - 1) % self.rows

    def _seal_rows(self, first: int) -> Iterator[Chunk]:
        """Chunks of the vector steps from `first` on, without the newest: it is not closed yet."""
        by_row = dict(self._by_row())
        final = self.final.reshape(self.rows, self.num_envs)
        size = max(CHUNK_BYTES // sum(column[0].nbytes for column in by_row.values()), 1)
        for step, place in _cuts(first, self.total - 1, self.rows, size):
            columns = {name: column[place] for name, column in by_row.items()}
            yield Chunk(step, place.stop - place.start, columns | {CUT: final[place] != 0})

    def _seal_finals(self, first: int) -> Iterator[Chunk]:
        """Chunks of the final frames from `first` on; all of them belong to sealed rows."""
        room = len(self.finals[self.frame_names[0]])
        size = max(CHUNK_BYTES // sum(pool[0].nbytes for pool in self.finals.values()), 1)
        for which, place in _cuts(first, self.next_final, room, size):
            columns = {name: pool[place] for name, pool in self.finals.items()}
            yield Chunk(which, place.stop - place.start, columns)


def _kept(trajectory: Batch) -> Batch:
    """What is stored of a trajectory; what else a policy said beside its actions is not."""
    return {name: trajectory[name] for name in (OBS, ACTION, REWARD, TERMINATED, TRUNCATED)}


def _array(leaf: Tensor | Array) -> Array:
    return leaf.cpu().numpy() if isinstance(leaf, Tensor) else leaf


def _flat(rows: Array) -> Array:
    """[T, N, …] to [T * N, …]."""
    return rows.reshape(-1, *rows.shape[2:])


def _zeros(columns: Layout, count: int) -> Columns:
    return {name: np.zeros((count, *shape), kind) for name, (shape, kind) in columns.items()}


def _in_files(chunks: list[Chunk], first: int) -> list[Chunk]:
    """Chunks that need not be sealed again: they have a file, and rows that still count."""
    return [each for each in chunks if each.name and each.first + each.count > first]


def _end(chunks: list[Chunk], first: int) -> int:
    """The first row that no chunk has."""
    return chunks[-1].first + chunks[-1].count if chunks else first


def _cuts(first: int, stop: int, room: int, size: int) -> Iterator[tuple[int, slice]]:
    """Rows `first` … `stop - 1` of a ring in slices: none has more than `size`, none wraps."""
    while first < stop:
        place = first % room
        count = min(stop - first, room - place, size)
        yield first, slice(place, place + count)
        first += count


def _pieces(log: Log) -> Iterator[tuple[int, Columns]]:
    """The rows of a log that still count, chunk by chunk: all at once would need twice the RAM."""
    for chunk in log.chunks:
        skipped = max(log.first - chunk.first, 0)
        yield chunk.first + skipped, {name: rows[skipped:] for name, rows in chunk.read().items()}
