"""Whole episodes of what vector steps hold, in the order of their ends, one at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rl_lab.buffers.storage import Steps
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
from rl_lab.core.chunks import Columns
from rl_lab.core.spec import Dict, EnvSpec


@dataclass(frozen=True)
class Episode:
    """L steps of one environment, and L + 1 frames: the last one is where it really ended."""

    frames: Columns  # `obs`, or `obs/camera`, …: [L + 1, …]
    action: Array  # [L, …]
    reward: Array  # [L]
    terminated: bool  # otherwise it was truncated

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def total(self) -> float:
        """The undiscounted return."""
        return float(self.reward.sum(dtype=np.float64))

    def flags(self) -> tuple[Array, Array]:
        """Terminated and truncated, [L] each."""
        last = np.arange(len(self)) == len(self) - 1
        return last & self.terminated, last & (not self.terminated)

    def trajectory(self, spec: EnvSpec) -> Batch:
        """As a collector would have brought it, [L, 1, …]."""
        terminated, truncated = self.flags()
        begins = np.arange(len(self)) == 0
        rows = {ACTION: self.action, REWARD: self.reward, TERMINATED: terminated}
        rows |= {TRUNCATED: truncated, RESET: begins}
        batch: Batch = {name: each[:, None] for name, each in rows.items()}
        for key, part in ((OBS, slice(0, -1)), (NEXT_OBS, slice(1, None))):
            found = {name: each[part, None] for name, each in self.frames.items()}
            if isinstance(spec.observation, Dict):
                found = {name.removeprefix(f"{OBS}/"): each for name, each in found.items()}
                batch[key] = found
            else:
                batch[key] = found[OBS]
        return batch


def episodes_of(ring: Steps) -> Iterator[Episode]:
    """Those that are there from beginning to end.

    What was cut off without a flag counts as truncated. The episode that is still played is left
    out, and so is the first one of a full ring: its beginning may be overwritten.
    """
    count = ring.num_envs
    for last, env, first in _borders(ring):
        number = np.arange(first, last + 1) * count + env
        end = number[-1:]
        frames = {}
        for name in ring.frame_names:
            rows = ring.take(name, number)
            frames[name] = np.concatenate([rows, ring.next_frame(name, end)])
        yield Episode(
            frames,
            ring.take(ACTION, number),
            ring.take(REWARD, number),
            bool(ring.take(TERMINATED, end)[0]),
        )


def _borders(ring: Steps) -> Iterator[tuple[int, int, int]]:
    """Last step, environment and first step of every whole episode."""
    count, begin = ring.num_envs, np.full(ring.num_envs, ring.oldest)
    whole = np.full(count, ring.oldest == 0)
    for start in range(ring.oldest, ring.total, 4096):
        steps = np.arange(start, min(start + 4096, ring.total))
        number = steps[:, None] * count + np.arange(count)
        flat = number.reshape(-1)
        over = ring.take(TERMINATED, flat) | ring.take(TRUNCATED, flat) | ring.is_cut(flat)
        for row, env in np.argwhere(over.reshape(number.shape)).tolist():
            if whole[env]:
                yield start + row, env, int(begin[env])
            begin[env], whole[env] = start + row + 1, True
