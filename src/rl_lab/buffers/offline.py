"""Offline replay: a dataset that is only read, for learning without playing.

A folder that a disk buffer has written stays on disk, however large it is; a small one is copied
into memory, where drawing is faster. Anything else that `datasets` can read is held in memory.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.about import (
    action_bounds,
    check_actions,
    fitting_types,
    references,
    spec_of,
)
from rl_lab.buffers.datasets import MINARI, Dataset, find_data, in_units_of, open_dataset
from rl_lab.buffers.disk import MIB, SEGMENT, memory_needed
from rl_lab.buffers.disk_ring import DiskRing, read_about
from rl_lab.buffers.facts import (
    action_range,
    best_transitions,
    episode_returns,
    frame_moments,
    frame_range,
)
from rl_lab.buffers.segments import find_segments
from rl_lab.buffers.sequence import SequenceConfig, SequenceReplay
from rl_lab.buffers.storage import Ring, Steps, layout, row_bytes
from rl_lab.core.batch import ACTION, NEXT_OBS, OBS, RESET, Array, Batch
from rl_lab.core.chunks import Columns
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.protocols import BufferSetup
from rl_lab.core.spec import Dict, EnvSpec

PIECE = 16 * MIB  # of a dataset that is read for its checksum at a time


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(SequenceConfig):
    """Where the data is."""

    type: str = option("offline", "a dataset that is only read")
    path: str = option(
        "", "a name in datasets/, a folder, .npz files, or minari:NAME", not_empty=True
    )
    capacity: int = option(10**12, "how many transitions are used, the last ones", low=1)
    best: float = option(
        1.0,
        "share of the episodes, those with the highest returns, whose transitions are sampled",
        above=0,
        high=1,
    )
    ram: int = option(
        256 * MIB, "bytes of files that are in memory at a time; smaller datasets are wholly", low=1
    )


class DatasetRing(DiskRing):
    """A folder of files, in the types and the units of actions of whoever reads them."""

    def __init__(self, spec: EnvSpec, about: Mapping[str, Any], folder: Path, rows: int, ram: int):
        own = spec_of(about, folder)
        self.types = fitting_types(own, spec, folder)
        self.reader = spec
        self.bounds = action_bounds(about, spec)
        super().__init__(own, rows, int(about["num_envs"]), folder, segment=SEGMENT, ram=ram)

    def take(self, name: str, number: Array) -> Array:
        """A column at these transitions."""
        rows = super().take(name, number)
        if name == ACTION and self.bounds is not None:
            rows = in_units_of(self.reader, self.bounds, rows)
        return rows.astype(self.types[name], copy=False)

    def final_frame(self, name: str, number: Array) -> Array:
        """The frames that transitions with a cut after them ended in."""
        return super().final_frame(name, number).astype(self.types[name], copy=False)


def in_memory(files: DiskRing, spec: EnvSpec) -> Ring:
    """A copy of the same vector steps, with the same cuts and the same final frames."""
    count = files.num_envs
    ring = Ring(spec, files.total - files.oldest, count)
    first, stop = files.oldest * count, files.total * count
    piece = max(PIECE // row_bytes(layout(spec)) // count, 1) * count
    begins = np.ones(count, np.bool_)
    for start in range(first, stop, piece):
        number = np.arange(start, min(start + piece, stop))

        def shaped(rows: Array) -> Array:
            return rows.reshape(-1, count, *rows.shape[1:])

        cut = shaped(files.is_cut(number))
        columns = {name: shaped(files.take(name, number)) for name in layout(spec)}
        after = {
            name.replace(OBS, NEXT_OBS, 1): shaped(files.next_frame(name, number))
            for name in files.frame_names
        }
        reset = np.concatenate([begins[None], cut[:-1]])
        ring.add(nested({**columns, **after, RESET: reset}, spec))
        begins = cut[-1]
    return ring


def nested(columns: Columns, spec: EnvSpec) -> Batch:
    """Columns such as `obs/camera` as a batch."""
    if not isinstance(spec.observation, Dict):
        return dict(columns)
    batch: Batch = {OBS: {}, NEXT_OBS: {}}
    for name, rows in columns.items():
        key, _, part = name.partition("/")
        if part:
            batch[key][part] = rows
        else:
            batch[name] = rows
    return batch


class OfflineReplay(SequenceReplay):
    """Transitions and windows of a dataset; of a larger one, the last `capacity` transitions."""

    Config = OfflineConfig
    config: OfflineConfig
    read_only = True

    def __init__(self, config: OfflineConfig, setup: BufferSetup) -> None:
        self.dataset: Dataset | None = None
        is_minari = config.path.startswith(MINARI)
        self.folder = Path(config.path) if is_minari else find_data(config.path)
        about = None if is_minari else read_about(self.folder)
        self.about = about or {}
        if about is not None:
            setup = replace(setup, num_envs=about["num_envs"])
            segments = find_segments(self.folder)
            there = (segments[-1].stop if segments else 0) * setup.num_envs
            if not there:
                raise UserError(f"{config.path} has no transitions")
            check_actions(self.folder, about, setup.spec)
        else:
            self.dataset = open_dataset(config.path, setup.spec)
            there = self.dataset.rows
            setup = replace(setup, num_envs=1)
        super().__init__(replace(config, capacity=min(config.capacity, there)), setup)
        self.end()

    def needed_bytes(self, rows: int) -> int:
        """Memory: of what is copied everything, else the index and recurrent states."""
        if self.dataset is not None:
            return super().needed_bytes(rows)
        files = memory_needed(self.setup, rows, SEGMENT)
        copied = super().needed_bytes(rows) if self.is_small(rows) else self.latent_bytes(rows)
        return files + copied

    def is_small(self, rows: int) -> bool:
        """True if that many vector steps of files may be held in memory: they are drawn faster."""
        size = row_bytes(layout(self.setup.spec)) * rows * self.setup.num_envs
        return size <= self.config.ram

    def make_ring(self, rows: int) -> Steps:
        """The whole dataset."""
        spec, num_envs = self.setup.spec, self.setup.num_envs
        if self.dataset is None:
            self.files = DatasetRing(spec, self.about, self.folder, rows, self.config.ram)
            return self._near()
        ring = Ring(spec, rows, num_envs)
        for trajectory in self.dataset.trajectories():
            ring.add(trajectory)
        return ring

    def _near(self) -> Steps:
        """The files, or a copy of a small dataset that is used from its first step on."""
        whole = self.files.oldest == 0 and self.is_small(self.files.rows)
        return in_memory(self.files, self.setup.spec) if whole else self.files

    def add(self, trajectory: Batch) -> None:
        """A dataset is only read."""
        raise UserError(f"{self.config.path} is only read: collect into another buffer")

    def observation_statistics(self) -> Any:
        """`RunningMoments` over all frames, or one for each part: `mean`, `std`, `count`."""
        return self._moments

    def observation_range(self) -> tuple[Any, Any]:
        """The smallest and the largest number in each place of a frame, or of each part of one."""
        return self._frame_range

    def action_range(self) -> tuple[Array, Array]:
        """The smallest and the largest number in each place of an action."""
        return self._action_range

    def episode_returns(self) -> Array:
        """Undiscounted returns of the episodes that were played to their end, in their order."""
        return self._returns

    def draw(self, count: int) -> Array:
        """Numbers of random transitions, of the best episodes if only these are wanted."""
        if self.config.best == 1.0:
            return super().draw(count)
        return self._best[self.setup.rng.integers(len(self._best), size=count)]

    @cached_property
    def _best(self) -> Array:
        return best_transitions(self.ring, self.config.best)

    @cached_property
    def _frame_range(self) -> tuple[Any, Any]:
        return frame_range(self.ring, self.setup.spec)

    @cached_property
    def _moments(self) -> Any:
        return frame_moments(self.ring, self.setup.spec)

    @cached_property
    def _action_range(self) -> tuple[Array, Array]:
        return action_range(self.ring, self.setup.spec)

    @cached_property
    def _returns(self) -> Array:
        return episode_returns(self.ring)

    @property
    def references(self) -> dict[str, float]:
        """What is known of the dataset's task: the returns of `random` and `expert` play."""
        return references(self.about)

    def state_dict(self) -> dict[str, Any]:
        """Nothing of the data, only what it looked like."""
        if self.dataset is None:
            return self.files.state_dict() | self.progress()
        return self.progress() | {"transitions": len(self), "checksum": self.checksum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same dataset."""
        if self.dataset is None:
            if state["rows"] < self.files.rows:  # files were added: those of then are read
                self.make_ring(int(state["rows"]))
            self.files.load_state_dict(state)
            self.ring = self._near()
            self._index()
            self.load_progress(state)
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
