"""Sequence replay: windows of consecutive frames, for world models and memories.

A window has one row for every FRAME, the final frames of episodes included. A row says how its
frame was reached: PREVIOUS_ACTION, REWARD (both 0 where RESET: an episode begins), and whether it
was the last one: TERMINATED if there is no future, TRUNCATED if it was only not played. A window
may begin in mid-episode, and it may lead from one episode into the next. The first rows of one that
begins in mid-episode can be set apart to warm a memory up (Kapturowski et al. 2019, R2D2): BURN_IN
is True there, and it is up to the algorithm to learn nothing from them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.buffers.frame_index import Positions, Streams, Stretches
from rl_lab.buffers.latents import NOWHERE, Latents
from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.core.batch import (
    ACTION,
    BURN_IN,
    INDEX,
    LATENT,
    OBS,
    PREVIOUS_ACTION,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Batch,
)
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.protocols import BufferSetup
from rl_lab.core.tree import picked

INDEX_BYTES = 2 * 8 + 4 * 8  # of streams, for one transition


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(UniformConfig):
    """Which windows there are, and which come first."""

    type: str = option("sequence", "windows of frames, all equally likely")
    within_episodes: bool = option(False, "no window leads from one episode into the next")
    online: bool = option(False, "each new stretch of frames is given once before any random one")
    latents: bool = option(False, "keep a recurrent state with every frame, as learning leaves it")
    burn_in: int = option(0, "first frames of a window, which only warm a memory up", low=0)

    def __post_init__(self) -> None:
        """A window that is given once may lead from one episode into the next."""
        super().__post_init__()
        if self.online and self.within_episodes:
            raise ValueError("online must be false where within_episodes is true, got true")


class SequenceReplay(UniformReplay):
    """The newest frames in windows [length], each window as likely as any other."""

    Config = SequenceConfig
    config: SequenceConfig

    def __init__(self, config: SequenceConfig, setup: BufferSetup) -> None:
        super().__init__(config, setup)
        self._index()
        self.fresh: Positions = self.streams.next.copy()  # not given yet, if `online`
        self.latents = Latents(self.ring) if config.latents else None

    def needed_bytes(self, rows: int) -> int:
        """The rows, two positions for each, and a line for each episode if all have one step."""
        index = INDEX_BYTES * rows * self.setup.num_envs
        return super().needed_bytes(rows) + index + self.latent_bytes(rows)

    def latent_bytes(self, rows: int) -> int:
        """RAM of the recurrent states of n vector steps, in bytes."""
        size = 4 * self.setup.latent_size if self.config.latents else 0
        return size * rows * self.setup.num_envs

    def ready(self, length: int = 1) -> bool:
        """True once there is a window of `length` frames."""
        return self.windows(length) > 0

    def windows(self, length: int) -> int:
        """Number of different windows of `length` frames."""
        return int(_counts(self.stretches(), length).sum())

    def window_length(self, most: int) -> int:
        """`most` frames, or as many as the longest episode has.

        Where windows stay within episodes it is always `most`: with windows as long as the longest
        episode, no other one would ever be drawn.
        """
        if self.config.within_episodes:
            return most
        pieces = self.streams.pieces()
        return min(most, int((pieces.stop - pieces.first).max(initial=0)))

    def stretches(self) -> Stretches:
        """What a window may not leave: an environment, or an episode."""
        return self.streams.pieces() if self.config.within_episodes else self.streams.whole()

    def add(self, trajectory: Batch) -> None:
        """Take a copy, and note which frames follow each other."""
        before = self.ring.total
        super().add(trajectory)
        self.streams.update(before)
        if self.latents is not None:
            self.latents.begin(before, trajectory.get(LATENT))

    def store_latents(self, index: Tensor, values: Tensor) -> None:
        """Where a model stands after these frames: INDEX of a batch [...], states [..., D]."""
        if self.latents is None:
            raise UserError("this buffer keeps no recurrent states: give it latents: true")
        number = index.detach().cpu().numpy().reshape(-1)
        self.latents.store(number, values.detach().cpu().numpy().reshape(len(number), -1))

    def sequences(self, batch_size: int, length: int, count: int = 1) -> Batch:
        """`count` batches of windows at once, [count, length, batch_size, …].

        With `latents`, INDEX says where states are stored, and LATENT [count, batch_size, D] is the
        state before the first frame of each window, zeros if there is none (missing until there
        is any). With `burn_in`, BURN_IN says which rows only warm a memory up.
        """
        env, first = self.draw_windows(batch_size * count, length)
        return self.marked(self.read_windows(env, first, length, count))

    def marked(self, windows: Batch) -> Batch:
        """With BURN_IN [count, length, batch_size], if there is any.

        Rows after the beginning of an episode need none: what a memory starts with is exact there.
        """
        if not (burn_in := self.config.burn_in):
            return windows
        begun = windows[RESET].cumsum(1) > 0
        if begun.shape[1] <= burn_in:
            raise UserError(
                f"a window of {begun.shape[1]} frames has none left after a burn_in of {burn_in}: "
                "take longer windows"
            )
        return {**windows, BURN_IN: ~begun & (torch.arange(begun.shape[1]) < burn_in)[:, None]}

    def newest(self, length: int) -> Batch | None:
        """The newest window of one episode, [length, 1, …], for looking: nothing is drawn.

        It is shorter where no episode has that many frames.
        """
        pieces = self.streams.pieces()
        there = pieces.stop - pieces.first
        if (length := min(length, int(there.max()))) < 1:
            return None
        which = np.flatnonzero(there >= length)[-1:]
        window = self.read_windows(pieces.env[which], pieces.stop[which] - length, length)
        return {name: picked(rows, 0) for name, rows in window.items()}

    def draw_windows(self, count: int, length: int) -> tuple[Positions, Positions]:
        """Environments and first positions of windows, with replacement; fresh ones come first."""
        fresh = self._take_fresh(count, length) if self.config.online else None
        given = 0 if fresh is None else len(fresh[0])
        stretches = self.stretches()
        windows = _counts(stretches, length)
        until = np.cumsum(windows)
        if until[-1] == 0:
            raise UserError(
                f"there is no window of {length} frames yet: collect more before learning"
            )
        which = self.setup.rng.integers(until[-1], size=count - given)
        stretch = np.searchsorted(until, which, side="right")
        offset = which - (until - windows)[stretch]
        env, first = stretches.env[stretch], stretches.first[stretch] + offset
        if fresh is None:
            return env, first
        return np.concatenate([fresh[0], env]), np.concatenate([fresh[1], first])

    def _take_fresh(self, count: int, length: int) -> tuple[Positions, Positions]:
        """Up to `count` windows side by side that were never given, the oldest first."""
        first = self.fresh = np.maximum(self.fresh, self.streams.usable())
        there = (self.streams.next - first) // length
        turn, env = np.nonzero(np.arange(there.max())[:, None] < there)
        turn, env = turn[:count], env[:count]
        self.fresh = first + length * np.bincount(env, minlength=len(first))
        return env, first[env] + turn * length

    def read_windows(self, env: Array, first: Array, length: int, count: int = 1) -> Batch:
        """The windows that begin at these positions, [count, length, B, …]."""
        lead = (count, length, len(env) // count)
        position = first.reshape(count, 1, -1) + np.arange(length)[:, None]
        owner = np.broadcast_to(env.reshape(count, 1, -1), lead)
        batch = self.as_tensors(self.frames_at(owner.reshape(-1), position.reshape(-1)), lead)
        if self.latents is not None:
            number, final, _ = self.streams.look_up(env, first - 1)
            unknown = final | (first <= self.streams.first[env])
            if (states := self.latents.read(number, unknown)) is not None:
                batch |= self.as_tensors({LATENT: states}, (lead[0], lead[2]))
        return batch

    def frames_at(self, env: Array, position: Array) -> Batch:
        """What is known of these frames, in arrays [B, …]."""
        ring = self.ring
        number, final, begins = self.streams.look_up(env, position)
        source = np.where(final | begins, number, number - ring.num_envs)
        action, reward = ring.take(ACTION, source), ring.take(REWARD, source)
        action[begins] = 0
        reward[begins] = 0
        terminated = final & ring.take(TERMINATED, number)
        index = {} if self.latents is None else {INDEX: np.where(final, NOWHERE, number)}
        return index | {
            OBS: self._seen(number, final),
            PREVIOUS_ACTION: action,
            REWARD: reward,
            RESET: begins,
            TERMINATED: terminated,
            TRUNCATED: final & ~terminated,
        }

    def _seen(self, number: Array, final: Array) -> Any:
        """The frames that transitions begin with, or end in where they are final."""
        own = np.flatnonzero(final)
        columns = {}
        for name in self.frames:
            columns[name] = rows = self.ring.take(name, number)
            rows[own] = self.ring.final_frame(name, number[own])
        return self._observation(columns)

    def end(self) -> None:
        """Nothing will be added any more: the newest frames are final ones."""
        self.ring.end()
        self.streams.end()

    def _index(self) -> None:
        """Which rows follow each other: everything that is there."""
        self.streams = Streams(self.ring)
        self.streams.update(self.ring.oldest)

    def state_dict(self) -> dict[str, Any]:
        """The rows, and what was done with them; which follow each other can be seen in them."""
        return super().state_dict() | self.progress()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same rows in the same order: positions are counted again from the oldest one."""
        super().load_state_dict(state)
        self._index()
        self.load_progress(state)

    def progress(self) -> dict[str, Any]:
        """Which frames were given, and their recurrent states: what is not in the rows."""
        fresh = np.maximum(self.fresh, self.streams.usable()) - self.streams.first
        latents = None if self.latents is None else self.latents.state_dict()
        return {"fresh": fresh, "latents": latents}

    def load_progress(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.fresh = self.streams.first + state["fresh"]
        if self.latents is not None:
            self.latents.load_state_dict(state["latents"])


def _counts(stretches: Stretches, length: int) -> Positions:
    """How many windows of a length each stretch has."""
    return np.maximum(stretches.stop - stretches.first - length + 1, 0)
