"""Disk replay: as many frames as the disk holds, in files that are a dataset of their own."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rl_lab.buffers.disk_ring import DiskRing, written
from rl_lab.buffers.sequence import INDEX_BYTES, SequenceConfig, SequenceReplay
from rl_lab.buffers.storage import Steps, frame_layout, layout, row_bytes
from rl_lab.core.batch import Batch
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.protocols import BufferSetup

MIB = 2**20
SEGMENT = 16 * MIB


@dataclass(frozen=True, kw_only=True)
class DiskConfig(SequenceConfig):
    """Where the files are, and how much of them is in memory at a time."""

    type: str = option("disk", "windows of frames that lie in files")
    folder: str = option("", "where the files are; every run needs its own", not_empty=True)
    mode: Literal["append", "read"] = option(
        "append", "append: what is collected is added; read: nothing is"
    )
    segment: int = option(SEGMENT, "bytes of a file", low=1)
    ram: int = option(256 * MIB, "bytes of files that are mapped into memory at a time", low=1)


class DiskReplay(SequenceReplay):
    """Everything that a sequence buffer can, for data that memory cannot hold.

    `capacity` is how many of the newest transitions are used. Files are never deleted, except those
    that a resumed run writes again.
    """

    Config = DiskConfig
    config: DiskConfig

    def __init__(self, config: DiskConfig, setup: BufferSetup) -> None:
        self.folder = Path(config.folder).expanduser()
        if config.mode == "read":
            setup = replace(setup, num_envs=written(self.folder)["num_envs"])
        super().__init__(config, setup)
        if config.mode == "read":
            self.end()

    @property
    def read_only(self) -> bool:
        """Nothing can be collected into it."""
        return self.config.mode == "read"

    def needed_bytes(self, rows: int) -> int:
        """Memory, not disk; recurrent states are in no file."""
        return memory_needed(self.setup, rows, self.config.segment) + self.latent_bytes(rows)

    def make_ring(self, rows: int) -> Steps:
        """What is in the folder already, and what will be added."""
        sizes = {"segment": self.config.segment, "ram": self.config.ram}
        return DiskRing(self.setup.spec, rows, self.setup.num_envs, self.folder, **sizes)

    def add(self, trajectory: Batch) -> None:
        """Put it behind what is there."""
        if self.config.mode == "read":
            raise UserError(f"{self.folder} is only read: collect into another buffer")
        super().add(trajectory)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same files, and the same newest row."""
        super().load_state_dict(state)
        if self.config.mode == "read":
            self.end()
        else:
            assert isinstance(self.ring, DiskRing)
            self.ring.check_leftover()  # now, and not when the first file is full


def memory_needed(setup: BufferSetup, rows: int, segment: int) -> int:
    """What frames in files take of memory: the index, a flag per row, two segments that wait."""
    spec, num_envs = setup.spec, setup.num_envs
    waiting = 2 * max(segment, row_bytes(layout(spec)) * num_envs)
    heads = 2 * num_envs * row_bytes(frame_layout(spec))
    return (INDEX_BYTES + 1) * rows * num_envs + waiting + heads
