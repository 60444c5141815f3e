"""A ring of vector steps: every frame is stored once, and nothing loops over rows.

A transition has a number that never changes: `t * N + n` for environment n at vector step t,
counted since the run began. It lies at `number % capacity`, and what follows it in its environment
is `number + N`. So `next_obs` is the `obs` of the follower, unless something was cut there: an
episode ended, or environments were reset. Such rows have a frame of their own in `finals`.
The newest row has no follower yet; its `next_obs` is `head`. Of observations that are stacks of the
last frames, a row has the newest.

Rows before the newest one never change until they are overwritten. So a checkpoint seals them once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from rl_lab.buffers.sparse_frames import (
    CHUNK_BYTES,
    Layout,
    Pool,
    cuts,
    end,
    first_room,
    in_files,
    pieces,
    zeros,
)
from rl_lab.buffers.stacks import Stacks
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
START = "start"  # and: the observation does not follow from the one before


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


def kept_layout(spec: EnvSpec) -> Layout:
    """The same, with one frame of a stack."""
    columns = layout(spec)
    if spec.stack > 1:
        (depth, *size), kind = columns[OBS]
        columns[OBS] = ((depth // spec.stack, *size), kind)
    return columns


def row_bytes(columns: Layout) -> int:
    """What one row of these columns takes."""
    return sum(np.dtype(kind).itemsize * int(np.prod(shape)) for shape, kind in columns.values())


def needed_bytes(spec: EnvSpec, rows: int, num_envs: int) -> int:
    """What a ring takes when it is full, with the pools that it has at first."""
    capacity = rows * num_envs
    pool = capacity * 8 + first_room(capacity, num_envs) * row_bytes(frame_layout(spec))
    edge = num_envs * row_bytes(frame_layout(spec))
    return capacity * row_bytes(kept_layout(spec)) + (pool + edge) * (1 + (spec.stack > 1))


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

    def steps_before(self, number: Array, most: int) -> Array:
        """How many steps of its episode are there before each transition, up to `most`; [B]."""
        earlier = number[:, None] - self.num_envs * np.arange(1, most + 1)
        other = self.is_cut(earlier) | (earlier < self.oldest * self.num_envs)
        other = np.concatenate([other, np.ones((len(number), 1), np.bool_)], 1)
        found: Array = other.argmax(1)
        return found


class Ring(Steps):
    """Vector steps in arrays that are made once."""

    def __init__(self, spec: EnvSpec, rows: int, num_envs: int) -> None:
        super().__init__(spec, rows, num_envs)
        self.total = 0
        frame = frame_layout(spec)
        self.columns = zeros(kept_layout(spec), self.capacity)
        self.finals = Pool(frame, self.capacity, num_envs)  # where a row's follower is not its next
        self.head = zeros(frame, num_envs)
        self.stacks = Stacks(spec.stack, frame, self.capacity, num_envs) if spec.stack > 1 else None
        self.pools = [self.finals, *([self.stacks.starts] if self.stacks else [])]
        self.chunks: list[Chunk] = []  # sealed rows that are in files

    # ------------------------------------------------------------ writing

    def add(self, trajectory: Batch) -> None:
        """Take a trajectory [T, N, …]: at most two slices of every column."""
        new = {name: _array(leaf) for name, leaf in named_leaves(_kept(trajectory))}
        after = {name: _array(leaf) for name, leaf in named_leaves({OBS: trajectory[NEXT_OBS]})}
        reset = _array(trajectory[RESET])
        steps = len(reset)
        if steps == 0:
            return
        self._promise()
        if self.total:
            self._close(reset[0], {name: new[name][0] for name in self.frame_names})
        skipped = max(steps - self.rows, 0)  # a trajectory that is longer than the ring
        if self.stacks:
            observed = new[OBS][skipped:]
            begins = self._begins(new[OBS])[skipped:]
            new[OBS] = self.stacks.newest(new[OBS])
        self._forget(self.total + steps - self.rows)
        self.total += skipped
        first = self.total * self.num_envs
        count = (steps - skipped) * self.num_envs
        for place, source in self.stretches(first, count):
            for name, column in self.columns.items():
                column[place] = _flat(new[name][skipped:])[source]
            for pool in self.pools:
                pool.which[place] = 0
        self.total += steps - skipped
        if self.stacks and begins.any():
            self.stacks.starts.keep(first + np.flatnonzero(begins), {OBS: observed[begins]})
        ended = (new[TERMINATED] | new[TRUNCATED])[skipped:-1]
        cut = ended | reset[skipped + 1 :]
        if cut.any():
            ends = {name: after[name][skipped:-1][cut] for name in after}
            self.finals.keep(first + np.flatnonzero(cut), ends)
        for name, frames in self.head.items():
            frames[:] = after[name][-1]

    def end(self) -> None:
        """Nothing will be added any more: what the newest row led to is final."""
        if self.total:
            self.finals.keep(self._numbers(self.total - 1), self.head)

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
            ended = {name: head[cut] for name, head in self.head.items()}
            self.finals.keep(self._numbers(self.total - 1)[cut], ended)

    def _begins(self, stacks: Array) -> Array:
        """Which stacks [T, N, …] do not follow; those that will be the oldest are kept."""
        assert self.stacks is not None
        before = self.take(OBS, self._numbers(self.total - 1)) if self.total else None
        oldest = max(self.total + len(stacks) - self.rows, 0)
        if oldest >= self.total:
            self.stacks.tail[:] = stacks[oldest - self.total]
        elif oldest > self.oldest:
            self.stacks.tail[:] = self.take(OBS, self._numbers(oldest))
        return self.stacks.begins(stacks, before)

    def _forget(self, until: int) -> None:
        """Rows before the vector step `until` are about to be overwritten."""
        count = min(until, self.total) - self.oldest
        if count > 0:
            for place, _ in self.stretches(self.oldest * self.num_envs, count * self.num_envs):
                for pool in self.pools:
                    pool.forget(place)

    # ------------------------------------------------------------ reading

    def stretches(self, first: int, count: int) -> Iterator[tuple[slice, slice]]:
        """Where `count` numbers from `first` on lie, and which of them: at most two slices."""
        place = first % self.capacity
        length = min(count, self.capacity - place)
        yield slice(place, place + length), slice(0, length)
        if length < count:
            yield slice(0, count - length), slice(length, count)

    def take(self, name: str, number: Array) -> Array:
        """A column at these transitions."""
        if self.stacks and name == OBS:
            flat = self.stacks.read(number.reshape(-1), self.oldest, self.columns[OBS])
            return flat.reshape(*number.shape, *flat.shape[1:])
        return self.columns[name].take(number % self.capacity, axis=0)

    def final_frame(self, name: str, number: Array) -> Array:
        """The frames that transitions with a cut after them ended in."""
        return self.finals.take(name, number)

    def is_cut(self, number: Array) -> Array:
        """True where a transition has a final frame of its own; not known yet for the newest."""
        return self.finals.has(number)

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Logs of what never changes, and the newest row.

        Chunks that have no file yet are views of the ring: write or copy them before more is added.
        """
        self.chunks = in_files(self.chunks, self.oldest)
        self.chunks += self._seal_rows(end(self.chunks, self.oldest))
        newest = (self.total - 1) % self.rows
        stacks = self.stacks and {
            "starts": self.stacks.starts.log(),
            "newest": self.stacks.starts.has(self._numbers(self.total - 1)),
            "tail": self.stacks.tail.copy(),
        }
        return {
            "rows": self.rows,
            "num_envs": self.num_envs,
            "total": self.total,
            "log": Log(list(self.chunks), self.oldest),
            "finals": self.finals.log(),
            "stacks": stacks,
            "newest": {name: rows[newest].copy() for name, rows in self._by_row()},
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
        log, stacks = state["log"], state.get("stacks") or {}
        if bool(stacks) != bool(self.stacks):
            raise UserError("a saved buffer does not fit: only one of the two stores stacks once")
        logs = [state["finals"], *([stacks["starts"]] if self.stacks else [])]
        self.chunks = list(log.chunks)
        for pool, its in zip(self.pools, logs, strict=True):
            pool.clear(its)
        by_row = dict(self._by_row())
        for step, rows in pieces(log):
            place = np.arange(step, step + len(rows[CUT])) % self.rows
            for name, column in by_row.items():
                column[place] = rows[name]
            for pool, flag in zip(self.pools, (CUT, START), strict=False):
                pool.expect(step * self.num_envs + np.flatnonzero(rows[flag]))
        for name, column in by_row.items():
            column[(self.total - 1) % self.rows] = state["newest"][name]
        if self.stacks:
            self.stacks.starts.expect(self._numbers(self.total - 1)[stacks["newest"]])
            self.stacks.tail[:] = stacks["tail"]
        self._promise()
        for pool, its in zip(self.pools, logs, strict=True):
            pool.load(its)
        for name, frames in self.head.items():
            frames[:] = state["head"][name]

    def _by_row(self) -> Iterator[tuple[str, Array]]:
        """Every column as [rows, N, …]."""
        for name, column in self.columns.items():
            yield name, column.reshape(self.rows, self.num_envs, *column.shape[1:])

    def _promise(self) -> None:
        """Tell the pools what rows will take that nothing was written into yet."""
        size = sum(column[0].nbytes for column in self.columns.values())
        for pool in self.pools:
            pool.promised = (self.capacity - len(self)) * size

    def _numbers(self, step: int) -> Array:
        """The transitions of a vector step."""
        return step * self.num_envs + np.arange(self.num_envs)

    def _seal_rows(self, first: int) -> Iterator[Chunk]:
        """Chunks of the vector steps from `first` on, without the newest: it is not closed yet."""
        by_row = dict(self._by_row())
        flags = [each.which.reshape(self.rows, self.num_envs) for each in self.pools]
        size = max(CHUNK_BYTES // sum(column[0].nbytes for column in by_row.values()), 1)
        for step, place in cuts(first, self.total - 1, self.rows, size):
            columns = {name: column[place] for name, column in by_row.items()}
            for name, which in zip((CUT, START), flags, strict=False):
                columns[name] = which[place] != 0
            yield Chunk(step, place.stop - place.start, columns)


def _kept(trajectory: Batch) -> Batch:
    """What is stored of a trajectory; what else a policy returned beside its actions is not."""
    return {name: trajectory[name] for name in (OBS, ACTION, REWARD, TERMINATED, TRUNCATED)}


def _array(leaf: Tensor | Array) -> Array:
    return leaf.cpu().numpy() if isinstance(leaf, Tensor) else leaf


def _flat(rows: Array) -> Array:
    """[T, N, …] to [T * N, …]."""
    return rows.reshape(-1, *rows.shape[2:])
