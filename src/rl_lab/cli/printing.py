"""How commands print: JSON for programs, aligned columns for people."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from rl_lab.records.formatting import visible
from rl_lab.records.metrics import plain

# While other prints go to stderr: the real stdout, and a copy of its descriptor if that was moved.
_answers: list[tuple[TextIO, int | None]] = []


def say(text: str = "") -> None:
    """One or more lines on stdout, at once."""
    stream, copy = _answers[-1] if _answers else (sys.stdout, None)
    if copy is not None:
        os.dup2(copy, 1)
    try:
        stream.write(f"{visible(text)}\n")
        stream.flush()
    finally:
        if copy is not None:
            os.dup2(2, 1)


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Only `say` writes to stdout: what environments and libraries print goes to stderr.

    Also what they print from C, and in processes that they or we start.
    """
    stdout, copy = sys.stdout, None
    with suppress(OSError, ValueError):  # no such descriptor, as in a notebook or a test
        if stdout.fileno() == 1:
            stdout.flush()
            copy = os.dup(1)
            os.dup2(2, 1)
    sys.stdout = sys.stderr
    _answers.append((stdout, copy))
    try:
        yield
    finally:
        _answers.pop()
        sys.stdout = stdout
        if copy is not None:
            os.dup2(copy, 1)
            os.close(copy)


def warn(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"{visible(text)}\n")


def say_json(data: object) -> None:
    """Data for a program."""
    say(json.dumps(plain(data), indent=2, ensure_ascii=False))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows in aligned columns below their names; numbers to the right."""
    cells = [[cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    right = [
        bool(rows) and all(isinstance(row.get(name), int | float | None) for row in rows)
        for name in columns
    ]
    lines = []
    for row in [list(columns), *cells]:
        aligned = zip(row, widths, right, strict=True)
        lines.append("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in aligned).rstrip())
    return "\n".join(lines)


def pairs(facts: Mapping[str, Any]) -> str:
    """`name  value` lines."""
    width = max(map(len, facts), default=0)
    return "\n".join(f"{name.ljust(width)}  {cell(value)}" for name, value in facts.items())


def cell(value: object) -> str:
    """A value as a reader wants it: thousands separated, four digits of a fraction, - for none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 or value == 0 else f"{value:.4g}"
    return str(value)


def spread(numbers: Mapping[str, Any]) -> str:
    """`mean ± deviation` of returns; small ones with more digits."""
    mean, deviation = numbers["return_mean"], numbers["return_std"]
    digits = 1 if abs(mean) >= 10 else 3
    return f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


def program() -> str:
    """How this command can be typed again: by its path while `rl-lab` is not on the PATH."""
    called = Path(sys.argv[0])
    if called.name != "rl-lab" or shutil.which("rl-lab"):
        return "rl-lab"
    return os.path.relpath(called)
