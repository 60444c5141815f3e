"""What was seen in each environment, frame by frame: a ring's transitions in the order of time.

A transition begins with a frame, and where something was cut off it ends with one that no
transition begins with: the final frame. So a stream has one row for every transition, and one more
for every cut. Rows have positions, counted per environment; where a position leads to is looked up.

"Episode" means what was played in one piece: it also ends where environments were reset.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_lab.buffers.storage import Steps
from rl_lab.core.batch import Array

Positions = NDArray[np.int64]


class Stretches(NamedTuple):
    """Rows that follow each other: environment, first position, and the one after the last."""

    env: Positions
    first: Positions
    stop: Positions


class Streams:
    """Positions of N environments, and the vector step that each stands for."""

    def __init__(self, ring: Steps) -> None:
        self.ring = ring
        self.room = 2 * ring.rows  # if every row ended an episode
        # 2 * vector step, + 1 for its final frame; zeros: pages are taken when they are written
        self.codes = np.zeros((ring.num_envs, self.room), np.int64)
        self.oldest = ring.oldest  # vector step of the first row
        self.first: Positions = np.zeros(ring.num_envs, np.int64)
        self.next: Positions = np.zeros(ring.num_envs, np.int64)
        # Finished episodes in the order of their ends: environment, first position, stop, last step
        self.episodes = np.zeros((ring.capacity, 4), np.int64)
        self.first_episode = self.next_episode = 0
        self.opened: Positions = np.zeros(ring.num_envs, np.int64)  # where the open ones begin

    def usable(self) -> Positions:
        """The first position of each environment of which everything is known.

        What led to the oldest row of a full ring is overwritten.
        """
        return self.first + (self.ring.oldest > 0)

    def whole(self) -> Stretches:
        """All rows of each environment."""
        return Stretches(np.arange(self.ring.num_envs), self.usable(), self.next)

    def pieces(self) -> Stretches:
        """Finished episodes in the order of their ends (what is left of them), then open ones."""
        env, first, stop, _ = self.finished().T
        env = np.concatenate([env, np.arange(self.ring.num_envs)])
        first = np.concatenate([first, self.opened])
        stop = np.concatenate([stop, self.next])
        return Stretches(env, np.maximum(first, self.usable()[env]), stop)

    def finished(self) -> Positions:
        """The rows of the table of episodes that still count."""
        which = np.arange(self.first_episode, self.next_episode)
        return self.episodes.take(which % len(self.episodes), axis=0)

    def look_up(self, env: Array, position: Array) -> tuple[Array, Array, Array]:
        """The transition that a row belongs to, is it its final frame, does an episode begin."""
        code = self.codes[env, position % self.room]
        before = self.codes[env, (position - 1) % self.room]
        step, final = code >> 1, (code & 1).astype(np.bool_)
        begins = ~final & ((step == 0) | ((before & 1) == 1))
        return step * self.ring.num_envs + env, final, begins

    def update(self, before: int) -> None:
        """Rows from the vector step `before` on are new in the ring."""
        ring = self.ring
        if before == ring.total:
            return
        self._forget()
        steps = np.arange(max(before, ring.oldest), ring.total)
        earlier = np.maximum(steps - 1, ring.oldest)[:, None] * ring.num_envs
        cut = ring.is_cut(earlier + np.arange(ring.num_envs))  # [T, N]
        cut[steps - 1 < ring.oldest] = False
        # Before the frame of a step comes the final frame of the step before it, if there is one.
        there = np.stack([cut, np.ones_like(cut)], 1).reshape(-1, ring.num_envs)  # [2T, N]
        code = np.stack([2 * steps - 1, 2 * steps], 1).reshape(-1)
        position = self.next + np.cumsum(there, 0) - 1
        row, env = np.nonzero(there)
        self.codes[env, position[row, env] % self.room] = code[row]
        self.next += there.sum(0)
        if cut.any():
            step, env = np.nonzero(cut)
            self._finish(steps[step] - 1, env, position[2 * step, env])

    def end(self) -> None:
        """Nothing will follow: the ring has ended too, and its last frames are final."""
        if self.ring.total:
            env = np.arange(self.ring.num_envs)
            self.codes[env, self.next % self.room] = 2 * self.ring.total - 1
            self.next = self.next + 1

    def _forget(self) -> None:
        """Positions and episodes of which the ring has nothing any more."""
        oldest, dropped = self.ring.oldest, self.ring.oldest - self.oldest
        if dropped <= 0:
            return
        looked_at = min(2 * dropped, int((self.next - self.first).max()))
        position = self.first[:, None] + np.arange(looked_at)
        step = self.codes[np.arange(len(position))[:, None], position % self.room] >> 1
        self.first += ((step < oldest) & (position < self.next[:, None])).sum(1)
        count = min(dropped * self.ring.num_envs, self.next_episode - self.first_episode)
        which = np.arange(self.first_episode, self.first_episode + count)
        ended = self.episodes[which % len(self.episodes), 3]
        self.first_episode += int(np.count_nonzero(ended < oldest))
        self.oldest = oldest

    def _finish(self, step: Array, env: Array, position: Array) -> None:
        """Episodes end with final frames at these positions; in the order of time."""
        by_env = np.argsort(env, kind="stable")
        begins = np.ones(len(env), np.bool_)  # the first end of its environment
        begins[1:] = np.diff(env[by_env]) != 0
        first = np.empty_like(position)
        first[by_env] = np.where(begins, self.opened[env[by_env]], np.roll(position[by_env], 1) + 1)
        which = np.arange(self.next_episode, self.next_episode + len(env))
        rows = np.stack([env, first, position + 1, step], 1)
        self.episodes[which % len(self.episodes)] = rows
        self.next_episode += len(env)
        self.opened[env] = position + 1  # the last one counts
