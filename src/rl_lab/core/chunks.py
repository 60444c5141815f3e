"""Rows that are written once: what makes a checkpoint of a growing buffer cost only what is new.

A `Log` is a leaf of a state tree. Its rows lie in sealed chunks that never change again. `records`
gives each chunk a file of its own when it first meets it; later checkpoints only name that file.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rl_lab.core.batch import Array

Columns = dict[str, Array]  # name -> [rows, …]


@dataclass(eq=False)
class Chunk:
    """Rows `first` … `first + count - 1` of a log, counted since the run began."""

    first: int
    count: int
    columns: Columns | None  # until they are on disk
    name: str = ""  # of its file, once it has one
    load: Callable[[], Columns] | None = None  # reads that file, verified

    def read(self) -> Columns:
        """The rows, from memory or from disk."""
        if self.columns is not None:
            return self.columns
        assert self.load is not None, "a chunk is in memory or on disk"
        return self.load()

    def stored(self, name: str, load: Callable[[], Columns]) -> None:
        """It is safe in a file now: memory can let go of it."""
        self.name, self.load, self.columns = name, load, None


@dataclass(eq=False)
class Log:
    """Chunks without gaps, oldest first. Rows before `first` are over, though a chunk has them."""

    chunks: list[Chunk]
    first: int

    def read(self) -> Columns:
        """All rows that count, one array per column; no columns if there is no row."""
        parts = [chunk.read() for chunk in self.chunks]
        if not parts:
            return {}
        skipped = max(self.first - self.chunks[0].first, 0)
        return {name: np.concatenate([part[name] for part in parts])[skipped:] for name in parts[0]}
