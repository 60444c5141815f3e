"""Metrics as JSON lines: appended, cut back to a checkpoint on resume, and equal byte for byte."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from rl_lab.core.errors import RunError, UserError
from rl_lab.records.commit import BLOCK, make_directory
from rl_lab.records.faults import fault
from rl_lab.records.files import open_to_read, own_file

STEP = "step"
METRICS_CHECKSUM = "metrics_checksum"  # of the rows before a checkpoint, in its manifest
# What people call the main metrics: of several names the first one that a run has is meant.
MAIN_METRICS = {
    "reward": ("eval/return_mean", "collect/return_mean"),
    "loss": ("train/loss", "train/critic_loss", "train/value_loss", "train/policy_loss"),
}
BUFFER_BYTES = 8 * 1024  # rows are handed to the system in pieces of this size
PATIENCE_BYTES = 1024 * 1024  # of rows that may wait for a full disk: a thousand or more
MAX_ROW_BYTES = 4 * 1024 * 1024  # of one row that is read
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class MetricLog:
    """An append-only file of rows `{"step": …, "name": value, …}`, buffered until `flush`.

    While the disk is full the rows wait in memory and every append tries again. When too many wait,
    the run must stop: unless the rows are not essential, then they are given up.
    """

    def __init__(self, path: Path, *, essential: bool = True) -> None:
        make_directory(path.parent)
        self.path = path
        self.essential = essential
        self._file = open(path, "ab", buffering=0, opener=own_file)  # noqa: SIM115 - see `close`
        self._written = 0  # bytes in the file
        self._waiting = bytearray()
        self._given_up = False
        self._checksum = 0  # CRC32 of what is in the file
        self._drop_torn_line()

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one row. Equal rows are equal bytes: sorted names, shortest exact floats."""
        if STEP in metrics:
            raise ValueError(f"'{STEP}' is the name of the clock, not of a metric")
        row = {STEP: step, **{name: plain(metrics[name]) for name in sorted(metrics)}}
        self._waiting += json.dumps(row, allow_nan=False).encode() + b"\n"
        if len(self._waiting) >= BUFFER_BYTES:
            try:
                self._write()
            except OSError as error:
                if len(self._waiting) >= PATIENCE_BYTES:
                    self._give_up(error)

    def flush(self) -> None:
        """Everything appended so far survives a power loss; `OSError` if that is impossible."""
        self._write()
        fault("metrics.after_flush")
        os.fsync(self._file.fileno())
        fault("metrics.after_fsync")

    def offset(self) -> int:
        """The size in bytes, flushed first: what a checkpoint stores to come back to."""
        self.flush()
        return os.fstat(self._file.fileno()).st_size

    @property
    def checksum(self) -> int:
        """CRC32 of all rows before `position`."""
        return crc32(self._waiting, self._checksum)

    def position(self) -> int:
        """Where the next row will begin; what is before it may still wait in memory."""
        return self._written + len(self._waiting)

    def truncate(self, offset: int) -> None:
        """Forget the rows after `offset`: they belong to a future that was lost."""
        with suppress(OSError):  # rows that cannot be written need not be forgotten either
            self._write()
        self._waiting.clear()
        self._checksum = check_rows(self.path, offset)
        self._file.truncate(offset)
        self._written = offset
        self.flush()

    def close(self) -> None:
        """Flush and let go of the file."""
        if self._file.closed:
            return
        with self._file:
            if self._given_up:  # that was reported already
                return
            try:
                self.flush()
            except OSError as error:
                self._give_up(error)

    def _write(self) -> None:
        """Hand over what waits; what the disk has no room for goes on waiting."""
        while self._waiting:
            count = self._file.write(self._waiting) or 0
            self._checksum = crc32(self._waiting[:count], self._checksum)
            self._written += count
            del self._waiting[:count]

    def _give_up(self, error: OSError) -> None:
        """Rows are lost from here: the end of a run whose rows are its truth."""
        self._given_up = self.essential
        self._waiting.clear()
        if self.essential:
            raise RunError(
                f"cannot write {self.path}: {error.strerror}; make room, then resume the run: it "
                "goes on from its last checkpoint, if it has one"
            ) from error

    def _drop_torn_line(self) -> None:
        """A killed writer may have left half a row; the next one must not be glued to it."""
        with open_to_read(self.path) as file:
            end = file.seek(0, os.SEEK_END)
            while end:  # the last line end is near: not all of a long file is read
                start = max(end - BUFFER_BYTES, 0)
                file.seek(start)
                place = file.read(end - start).rfind(b"\n")
                if place >= 0:
                    end = start + place + 1
                    break
                end = start
        self._file.truncate(end)
        self._written = end
        self._checksum = check_rows(self.path, end)


def check_rows(path: Path, offset: int, checksum: int | None = None) -> int:
    """The CRC32 of a file's first `offset` bytes; a `UserError` if it was another one once.

    Checkpoints of earlier versions do not know theirs.
    """
    found, left = 0, offset
    with open_to_read(path) as file:
        while left > 0 and (block := file.read(min(left, BLOCK))):
            found, left = crc32(block, found), left - len(block)
    if left:
        raise UserError(
            f"{path} has {offset - left} bytes but the checkpoint was taken at {offset}: rows are "
            "missing; restore the file or start from another checkpoint"
        )
    if checksum not in (None, found):
        raise UserError(
            f"{path} is damaged: its rows up to the checkpoint are not what was written; restore "
            "the file or start from another checkpoint"
        )
    return found


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete rows."""
    return list(iterate_metrics(path))


def iterate_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """One complete row after the other; a torn last line of a live or killed writer is none."""
    try:
        file = open_to_read(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        number = 1
        while (line := file.readline(MAX_ROW_BYTES)).endswith(b"\n"):
            try:
                row = {name: _number(value) for name, value in json.loads(line).items()}
                row[STEP] = int(row[STEP])
            except (ValueError, KeyError, AttributeError, RecursionError, OverflowError) as error:
                reason = f"no {error}" if isinstance(error, KeyError) else error
                raise UserError(f"{path}:{number} is not a row of metrics: {reason}") from error
            yield row
            number += 1
        if len(line) == MAX_ROW_BYTES:
            raise UserError(f"{path}:{number} is not a row of metrics: it is too long")


def plain(value: object) -> Any:
    """A value as JSON can hold it: scalars as numbers, NaN and infinities as text."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def is_number(value: object) -> bool:
    """Whether a value of a row is a number, as JSON holds it."""
    return isinstance(value, int | float) or (isinstance(value, str) and value in _NON_FINITE)


def _number(value: object) -> int | float:
    if isinstance(value, int | float):
        return value
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    raise ValueError(f"{str(value)[:40]!r} is not a number")
