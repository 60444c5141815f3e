"""Offline replay: a dataset that is only read, for learning without playing.

A folder that a disk buffer has written stays on disk, however large it is. Anything else that
`datasets` can read is held in memory.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.datasets import Dataset, open_dataset
from rl_lab.buffers.disk import MIB, SEGMENT, memory_needed
from rl_lab.buffers.disk_ring import DiskRing, read_about
from rl_lab.buffers.sequence import SequenceConfig, SequenceReplay
from rl_lab.buffers.storage import Ring, Steps, layout, row_bytes
from rl_lab.core.batch import Array, Batch
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.protocols import BufferSetup

PIECE = 16 * MIB  # of a dataset that is read for its checksum at a time


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(SequenceConfig):
    """Where the data is."""

    type: str = option("offline", "a dataset that is only read")
    path: str = option("", "a disk buffer's folder, .npz files, or minari:NAME", not_empty=True)
    ram: int = option(
        256 * MIB, "bytes of a disk buffer's files that are in memory at a time", low=1
    )


class OfflineReplay(SequenceReplay):
    """Transitions and windows of a dataset; of a larger one, the last `capacity` transitions."""

    Config = OfflineConfig
    config: OfflineConfig

    def __init__(self, config: OfflineConfig, setup: BufferSetup) -> None:
        self.folder = Path(config.path).expanduser()
        self.dataset: Dataset | None = None
        about = read_about(self.folder)
        if about is not None:
            setup = replace(setup, num_envs=about["num_envs"])
        else:
            self.dataset = open_dataset(config.path, setup.spec)
            config = replace(config, capacity=min(config.capacity, self.dataset.rows))
            setup = replace(setup, num_envs=1)
        super().__init__(config, setup)
        self.end()

    def needed_bytes(self, rows: int) -> int:
        """Memory: everything, or only the index (and recurrent states) of what stays on disk."""
        if self.dataset is not None:
            return super().needed_bytes(rows)
        return memory_needed(self.setup, rows, SEGMENT) + self.latent_bytes(rows)

    def make_ring(self, rows: int) -> Steps:
        """The whole dataset."""
        spec, num_envs = self.setup.spec, self.setup.num_envs
        if self.dataset is None:
            return DiskRing(spec, rows, num_envs, self.folder, segment=SEGMENT, ram=self.config.ram)
        ring = Ring(spec, rows, num_envs)
        for trajectory in self.dataset.trajectories():
            ring.add(trajectory)
        return ring

    def add(self, trajectory: Batch) -> None:
        """A dataset is only read."""
        raise UserError(f"{self.config.path} is only read: collect into another buffer")

    def state_dict(self) -> dict[str, Any]:
        """Nothing of the data, only what it looked like."""
        if self.dataset is None:
            return super().state_dict()
        return self.progress() | {"transitions": len(self), "checksum": self.checksum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same dataset."""
        if self.dataset is None:
            super().load_state_dict(state)
            self.end()
            return
        if (state["transitions"], state["checksum"]) != (len(self), self.checksum):
            raise UserError(f"{self.config.path} has changed since the checkpoint was made")
        self.load_progress(state)

    @cached_property
    def checksum(self) -> int:
        """Of all that can be read; found once, as nothing is ever added."""
        first = self.ring.oldest * self.ring.num_envs
        stop, size = first + len(self), max(PIECE // row_bytes(layout(self.setup.spec)), 1)
        found = 0
        for start in range(first, stop, size):
            for part in self._parts(np.arange(start, min(start + size, stop))):
                found = zlib.crc32(np.ascontiguousarray(part).data, found)
        return found

    def _parts(self, number: Array) -> Iterator[Array]:
        """What these transitions are made of: all columns, where something ends, and in what."""
        for name in layout(self.setup.spec):
            yield self.ring.take(name, number)
        cut = self.ring.is_cut(number)
        yield cut
        for name in self.frames:
            yield self.ring.final_frame(name, number[cut])
