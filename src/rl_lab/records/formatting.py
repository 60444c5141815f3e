"""Numbers, durations and histories as short text: pure functions, the same text every time."""

import json
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "·"  # a cell of a sparkline in which nothing was finite


# Control characters, direction marks and other format characters, line separators, lone surrogates.
HIDDEN = {"Cc", "Cf", "Zl", "Zp", "Cs"}


def visible(text: str) -> str:
    """Text that cannot steer a terminal or reorder a line: such characters as \\u escapes.

    Names, notes and configurations may be another user's. The escapes are JSON's, so JSON stays
    JSON; new lines and tabs are kept.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        json.dumps(sign)[1:-1]
        if unicodedata.category(sign) in HIDDEN and sign not in "\n\t"
        else sign
        for sign in text
    )


def format_number(value: float, digits: int) -> str:
    """`value` with `digits` decimals and thousands separators; scientific when that hides it."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1e9 or 0 < size < 10**-digits:
        return f"{value:.2e}"
    return f"{value if round(size, digits) else 0.0:,.{digits}f}"  # never "-0.00"


def format_duration(seconds: float) -> str:
    """`0:24`, `1:02:03`, `2d 3:04:05`; `-:--` when it is not known."""
    if not math.isfinite(seconds):
        return "-:--"
    minutes, second = divmod(max(round(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def sparkline(values: Sequence[float], width: int) -> str:
    """At most `width` blocks, lowest to highest, each the mean of an equal share of `values`."""
    cells = [_mean(values[start:end]) for start, end in _shares(len(values), width)]
    finite = [cell for cell in cells if cell is not None]
    if not finite:
        return GAP * len(cells)
    low, high = min(finite), max(finite)
    return "".join(GAP if cell is None else _block(cell, low, high) for cell in cells)


def _shares(count: int, width: int) -> list[tuple[int, int]]:
    cells = max(min(count, width), 0)
    return [(cell * count // cells, (cell + 1) * count // cells) for cell in range(cells)]


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    # Divided before adding, so that values near the largest float do not overflow.
    return sum(value / len(finite) for value in finite) if finite else None


def _block(value: float, low: float, high: float) -> str:
    if not high > low:
        return BLOCKS[len(BLOCKS) // 2 - 1]
    share = (value / 2 - low / 2) / (high / 2 - low / 2)  # halves: the range itself may overflow
    return BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)]


def saved_as(level: str | None) -> str:
    """How a checkpoint holds the environments, by their snapshot level, in words."""
    known = {"E0": "state saved", "E1": "actions replayed", "E3": "new episodes"}
    return known.get(level or "", "unknown")


_started_in = [Path.cwd()]  # where commands are typed


def fixed(folder: Path) -> Path:
    """An absolute path: an environment may change the working directory from here on."""
    _started_in[0] = Path.cwd()
    return folder.absolute()


def from_here(path: Path) -> str:
    """A path as it is typed where the run was started."""
    start = _started_in[0]
    return str(path.relative_to(start) if path.is_relative_to(start) else path)
