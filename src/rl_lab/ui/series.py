"""Metrics of a run as curves for a page: a file of any length opens at once, and is read once.

Rows are read in blocks. Of each block its place in the file is kept, and of each metric its lowest
and highest point; a file that is not long keeps all points. A call reads for a limited time: what
is not read yet is sampled, and the answer says how much is known.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from rl_lab.analysis.curves import Array, Curve, Steps, thinned
from rl_lab.records.files import open_to_read
from rl_lab.records.metrics import MAX_ROW_BYTES, STEP, is_number

ROWS = 1024  # of a block
KEPT_ROWS = 32_768  # of a file that is kept whole, and of a stretch that is read again for a zoom
SAMPLES = 400  # rows of the part that is not read yet
SECONDS = 0.25  # of reading in one call
READ_BYTES = 1 << 20
TAIL_BYTES = 64  # before the end of what is known: a file that was cut and grew again differs there

Points = dict[str, tuple[Steps, Array]]  # by metric; steps may repeat


@dataclass(frozen=True)
class Block:
    """Some rows of the file, one after the other."""

    offset: int
    size: int  # bytes
    rows: int
    first: int  # lowest and highest step
    last: int
    extremes: Points
    points: Points | None  # None: too many to keep


@dataclass
class Series:
    """The curves of one metrics.jsonl, as far as it was read."""

    path: Path
    blocks: list[Block] = field(default_factory=list)
    end: int = 0  # of the last block
    tail: bytes = b""  # what stands before it
    size: int = 0  # of the file when it was last looked at
    inode: int = 0
    lock: Lock = field(default_factory=Lock)

    def update(self, seconds: float = SECONDS) -> None:
        """Read what is new, for a while."""
        with self.lock:
            try:
                file = open_to_read(self.path)
            except OSError:
                self._forget()
                return
            with file:
                self._read(file, time.monotonic() + seconds)

    @property
    def known(self) -> float:
        """The share of the file that was read."""
        return min(self.end / self.size, 1.0) if self.size else 1.0

    def curves(
        self, names: Sequence[str], *, low: int | None = None, high: int | None = None, count: int
    ) -> dict[str, Curve]:
        """At most about `count` points of each metric, peaks kept, from step `low` to `high`."""
        with self.lock:
            return self._curves(set(names), low, high, count)

    def names(self) -> list[str]:
        """Every metric that was met."""
        with self.lock:
            found = dict.fromkeys(name for block in self.blocks for name in block.extremes)
            return list(found or dict.fromkeys(_columns(self._sampled())))

    def _read(self, file: BufferedReader, deadline: float) -> None:
        status = os.fstat(file.fileno())
        file.seek(max(self.end - TAIL_BYTES, 0))
        same = file.read(min(self.end, TAIL_BYTES)) == self.tail and status.st_size >= self.end
        if not same or status.st_ino != self.inode:
            self._forget()
        self.size, self.inode = status.st_size, status.st_ino
        if self.end == self.size:
            return
        # The last block may have room: it is read again, together with what is new.
        if self.blocks and self.blocks[-1].rows < ROWS:
            self.end = self.blocks.pop().offset
        for offset, lines in _blocks(file, self.end):
            block = _block(offset, lines)
            self.end = block.offset + block.size
            if len(self.blocks) == KEPT_ROWS // ROWS:
                self.blocks = [_without_points(each) for each in self.blocks]
            is_long = len(self.blocks) >= KEPT_ROWS // ROWS
            self.blocks.append(_without_points(block) if is_long else block)
            if time.monotonic() > deadline:
                break
        file.seek(max(self.end - TAIL_BYTES, 0))
        self.tail = file.read(min(self.end, TAIL_BYTES))

    def _forget(self) -> None:
        self.blocks, self.end, self.tail, self.size = [], 0, b"", 0

    def _curves(
        self, names: set[str], low: int | None, high: int | None, count: int
    ) -> dict[str, Curve]:
        first = -(2**62) if low is None else low
        last = 2**62 if high is None else high
        met = [each for each in self.blocks if each.last >= first and each.first <= last]
        few = sum(each.rows for each in met) <= KEPT_ROWS
        parts = [self._points(each) if few else each.extremes for each in met]
        if self.known < 1:
            parts.append(_columns(self._sampled()))
        curves = {}
        for name in names:
            own = [part[name] for part in parts if name in part]
            if own:
                steps = np.concatenate([each[0] for each in own])
                values = np.concatenate([each[1] for each in own])
                inside = (steps >= first) & (steps <= last)
                if inside.any():
                    curves[name] = thinned(_curve(steps[inside], values[inside]), count)
        return curves

    def _points(self, block: Block) -> Points:
        if block.points is not None:
            return block.points
        try:
            with open_to_read(self.path) as file:
                file.seek(block.offset)
                return _columns(_rows(file.read(block.size).split(b"\n")))
        except OSError:  # it has just gone
            return block.extremes

    def _sampled(self) -> list[dict[str, Any]]:
        """Rows at equal distances in what is not read yet, the last one among them."""
        lines: list[bytes] = []
        left = self.size - self.end
        try:
            with open_to_read(self.path) as file:
                for place in range(SAMPLES):
                    file.seek(self.end + left * place // SAMPLES)
                    file.readline(MAX_ROW_BYTES)  # the rest of a row
                    lines.append(file.readline(MAX_ROW_BYTES))
        except OSError:
            return []
        return _rows(lines)


def _blocks(file: BufferedReader, offset: int) -> Iterator[tuple[int, list[bytes]]]:
    """Whole lines in blocks of `ROWS`, each with its place; the last one may be shorter."""
    file.seek(offset)
    lines: list[bytes] = []
    rest = b""
    while data := file.read(READ_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        lines += whole
        while len(lines) >= ROWS:
            block, lines = lines[:ROWS], lines[ROWS:]
            yield offset, block
            offset += sum(map(len, block)) + len(block)
        if len(rest) > MAX_ROW_BYTES:
            return
    if lines:
        yield offset, lines


def _block(offset: int, lines: list[bytes]) -> Block:
    rows = _rows(lines)
    points = _columns(rows)
    steps = [row[STEP] for row in rows] or [0]
    size = sum(map(len, lines)) + len(lines)
    extremes = {name: _extremes(*each) for name, each in points.items()}
    return Block(offset, size, len(lines), min(steps), max(steps), extremes, points)


def _without_points(block: Block) -> Block:
    return replace(block, points=None)


def _rows(lines: list[bytes]) -> list[dict[str, Any]]:
    """The rows that lines hold; a line that is none is left out."""
    try:
        found = json.loads(b"[" + b",".join(line for line in lines if line) + b"]")
    except (ValueError, RecursionError):  # a damaged row hides no other
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    return [row for row in found if isinstance(row, dict) and _is_step(row.get(STEP))]


def _is_step(value: object) -> bool:
    return type(value) is int and abs(value) < 2**62


def _columns(rows: list[dict[str, Any]]) -> Points:
    """Steps and finite values by metric."""
    names = dict.fromkeys(name for row in rows for name in row)
    names.pop(STEP, None)
    columns: Points = {}
    every = np.array([row[STEP] for row in rows], dtype=np.int64)
    for name in names:
        column = [row.get(name) for row in rows]
        if set(map(type, column)) <= {int, float}:  # the usual case, and the fast one
            steps = every
        else:
            known = [is_number(value) for value in column]
            steps = every[known]
            column = [value for value in column if is_number(value)]
        try:
            values = np.array(column, dtype=np.float64)  # "nan" is a number, too
        except OverflowError:  # an integer that no float can be
            continue
        finite = np.isfinite(values)
        if finite.any():
            columns[name] = steps[finite], values[finite]
    return columns


def _extremes(steps: Steps, values: Array) -> tuple[Steps, Array]:
    """The lowest, the highest and the last point."""
    places = sorted({int(values.argmin()), int(values.argmax()), len(values) - 1})
    return steps[places], values[places]


def _curve(steps: Steps, values: Array) -> Curve:
    """Points in the order of steps; of several at one step the last one counts."""
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    final = np.append(np.diff(steps) > 0, True)
    return Curve(steps[final], values[final])
