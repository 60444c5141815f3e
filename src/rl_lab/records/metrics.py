"""Metrics as JSON lines: appended, cut back to a checkpoint on resume, and equal byte for byte."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.records.commit import make_directory
from rl_lab.records.faults import fault

STEP = "step"
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class MetricLog:
    """An append-only file of rows `{"step": …, "name": value, …}`, buffered until `flush`."""

    def __init__(self, path: Path) -> None:
        make_directory(path.parent)
        self.path = path
        self._file = path.open("ab")
        self._drop_torn_line()

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one row. Equal rows are equal bytes: sorted names, shortest exact floats."""
        if STEP in metrics:
            raise ValueError(f"'{STEP}' is the name of the clock, not of a metric")
        row = {STEP: step, **{name: plain(metrics[name]) for name in sorted(metrics)}}
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")

    def flush(self) -> None:
        """Everything appended so far survives a power loss."""
        self._file.flush()
        fault("metrics.after_flush")
        os.fsync(self._file.fileno())
        fault("metrics.after_fsync")

    def offset(self) -> int:
        """The size in bytes, flushed first: what a checkpoint stores to come back to."""
        self.flush()
        return os.fstat(self._file.fileno()).st_size

    def truncate(self, offset: int) -> None:
        """Forget the rows after `offset`: they belong to a future that was lost."""
        self._file.flush()
        size = os.fstat(self._file.fileno()).st_size
        if offset > size:
            raise UserError(
                f"{self.path} has {size} bytes but the checkpoint was taken at {offset}: rows are "
                "missing; restore the file or start from another checkpoint"
            )
        self._file.truncate(offset)
        self.flush()

    def close(self) -> None:
        """Flush and let go of the file."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _drop_torn_line(self) -> None:
        """A killed writer may have left half a row; the next one must not be glued to it."""
        data = self.path.read_bytes()
        self._file.truncate(data.rfind(b"\n") + 1)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete rows; a torn last line, as a live or killed writer leaves it, is not a row."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number} is not a row of metrics: {error}") from error
        rows.append({name: _number(value) for name, value in row.items()})
    return rows


def plain(value: Any) -> Any:
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


def _number(value: Any) -> Any:
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value
