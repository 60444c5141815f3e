"""Alerts on disk: one JSON object per line, in a file beside the metrics they are about."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_lab.records.commit import write_atomically
from rl_lab.records.files import open_to_read
from rl_lab.records.metrics import MAX_ROW_BYTES, plain


@dataclass(frozen=True)
class Alert:
    """A monitor has fired."""

    step: int
    monitor: str
    metric: str
    value: float
    message: str  # what is wrong, with the numbers
    tip: str  # what to try

    @property
    def text(self) -> str:
        """All of it in one line."""
        tip = f" (try: {self.tip})" if self.tip else ""
        return f"{self.monitor} at step {self.step:,}: {self.message}{tip}"

    def to_tree(self) -> dict[str, Any]:
        """As JSON can hold it."""
        tree: dict[str, Any] = plain(asdict(self))
        return tree


def write_alerts(file: Path, alerts: Iterable[Alert]) -> None:
    """Replace the file; equal alerts are equal bytes."""
    lines = [json.dumps(each.to_tree(), allow_nan=False) + "\n" for each in alerts]
    write_atomically(file, "".join(lines).encode())


def read_alerts(file: Path) -> list[Alert]:
    """Every line of the file that is an alert; none if there is no file."""
    found = []
    with suppress(OSError), open_to_read(file) as lines:
        while line := lines.readline(MAX_ROW_BYTES):
            with suppress(ValueError, KeyError, TypeError, RecursionError):  # it hides no other
                found.append(alert_of(json.loads(line)))
    return found


def alert_of(tree: object) -> Alert:
    """An alert from its tree; a `ValueError`, `KeyError` or `TypeError` if it is none."""
    if not isinstance(tree, dict):
        raise TypeError("an alert is a block of keys")
    words = {name: str(tree.get(name, "")) for name in ("monitor", "metric", "message", "tip")}
    return Alert(step=int(tree["step"]), value=float(tree["value"]), **words)
