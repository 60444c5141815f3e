"""Which runs a page may show: those of one folder, by their names, and no file outside of them."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from rl_lab.analysis import query
from rl_lab.core.errors import UserError
from rl_lab.records.files import check_folder, open_to_read
from rl_lab.records.index import COLUMNS, Index
from rl_lab.records.metrics import MAIN_METRICS, STEP
from rl_lab.records.run_directory import RunDirectory
from rl_lab.ui.series import Series

SHOWN = 2_000  # rows of the table, the newest ones
HIDDEN = {"metrics", "experiment", "updated"}
SWEEPS = "sweeps"
CHECKED_SECONDS = 5.0  # how long a folder that was looked through counts as clean
SPARK_POINTS, SPARK_BYTES, SPARK_SAMPLES = 40, 256 * 1024, 60
WHOLE_BYTES = 1 << 20  # of a file that is read whole for a sparkline: the usual size and more
FEW_POINTS = 8  # of a metric, in the rows that were read of a longer one
MOST_SERIES = 64  # files whose curves stay in memory


class NotHereError(UserError):
    """There is no such run, file or sweep here."""


class Library:
    """The runs of one folder, with what was read of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._clean: dict[Path, float] = {}  # folders without links that leave them, until when
        self._series: dict[Path, Series] = {}
        self._sparks: dict[tuple[str, str], tuple[tuple[int, int], list[float]]] = {}
        self._lock = Lock()

    # ------------------------------------------------------------------------------------- table

    def table(self, words: Sequence[str]) -> dict[str, Any]:
        """The newest runs that fulfil all words: conditions of `rl-lab list`, or parts of names."""
        signs = ("=", "<", ">")
        conditions = [query.parse_filter(word) for word in words if _has(word, signs)]
        parts = [word.lower() for word in words if not _has(word, signs)]
        quick = {each.key for each in conditions} <= {*COLUMNS, "tag"}
        found = Index(self.root).rows(quick=quick)[::-1]
        found = [row for row in found if row["path"] and self._is_own(row["path"])]
        chosen = query.select(found, conditions)
        chosen = [row for row in chosen if all(_mentions(row, part) for part in parts)]
        names = [name for name in COLUMNS if name not in HIDDEN and name != "stamp"]
        return {
            "columns": names,
            "rows": [[row.get(name) for name in names] for row in chosen[:SHOWN]],
            "fulfilling": len(chosen),
            "total": len(found),
            "root": str(self.root),
        }

    def _is_own(self, name: str) -> bool:
        path = self.root / name
        return os.sep not in name and (not path.is_symlink() or _is_below(path, self.root))

    def sparks(self, names: Sequence[str], metric: str) -> dict[str, list[float]]:
        """A few values of a metric of each run, for a picture as small as a word."""
        found = {}
        for name in names:
            with suppress(UserError):
                found[name] = self._spark(self.run(name), metric)
        return found

    def _spark(self, run: RunDirectory, metric: str) -> list[float]:
        try:
            status = run.metrics_file.stat()
        except OSError:
            return []
        stamp, key = (status.st_size, status.st_mtime_ns), (run.path.name, metric)
        if key not in self._sparks or self._sparks[key][0] != stamp:
            self._sparks[key] = stamp, _glimpse(run.metrics_file, metric)
        return self._sparks[key][1]

    # --------------------------------------------------------------------------------------- runs

    def run(self, name: str) -> RunDirectory:
        """A run by the name of its folder or its id; its folder was looked through."""
        try:
            folders = [each.name for each in self.root.iterdir()]
        except OSError:
            folders = []
        # A name is only ever compared with the folders there are, never joined to the root.
        found = [each for each in folders if each == name]
        found = found or [each for each in folders if RunDirectory(Path(each)).id == name]
        for each in found:
            run = RunDirectory(self.root / each)
            if not each.startswith(".") and run.config_file.is_file():
                self.check(run.path)
                return run
        raise NotHereError(f"there is no run '{name[:80]}' here")

    def check(self, folder: Path) -> None:
        """`UserError` if a folder leads, or has a link that leads, out of where it seems to be."""
        now = time.monotonic()
        if self._clean.get(folder, 0.0) > now:
            return
        if not _is_below(folder, self.root):
            raise NotHereError(f"'{folder.name}' is a link that leaves {self.root}")
        check_folder(folder)
        with self._lock:
            self._clean = {path: until for path, until in self._clean.items() if until > now}
            self._clean[folder] = now + CHECKED_SECONDS

    def file(self, run: RunDirectory, relative: str) -> Path:
        """A file of a run, by its path in the run's folder: nothing above it, nothing hidden."""
        parts = relative.split("/")
        if any(part in ("", ".", "..") or part.startswith(".") or "\0" in part for part in parts):
            raise NotHereError(f"there is no file '{relative[:80]}'")
        path = run.path.joinpath(*parts)
        try:
            inside = path.is_file() and _is_below(path, run.path)
        except (OSError, ValueError):  # a name that no file can have
            inside = False
        if not inside:
            raise NotHereError(f"there is no file '{relative[:80]}'")
        return path

    def series(self, path: Path) -> Series:
        """The curves of a file of metrics; those that were not asked for lately are forgotten."""
        with self._lock:
            found = self._series.pop(path, None) or Series(path)
            self._series[path] = found  # the last one is the youngest
            while len(self._series) > MOST_SERIES:
                self._series.pop(next(iter(self._series)))
            return found

    # ------------------------------------------------------------------------------------- sweeps

    def sweeps(self) -> list[str]:
        """The names of all sweeps."""
        folder = self.root / SWEEPS
        if not folder.is_dir():
            return []
        return sorted(each.name for each in folder.iterdir() if (each / "sweep.json").is_file())

    def sweep(self, name: str) -> Path:
        """The folder of a sweep."""
        if name not in self.sweeps():
            raise NotHereError(f"there is no sweep '{name[:80]}' here")
        self.check(self.root / SWEEPS / name)
        return self.root / SWEEPS / name


def _is_below(path: Path, folder: Path) -> bool:
    """Whether a path is inside of a folder once all links are followed."""
    return os.path.realpath(path).startswith(f"{os.path.realpath(folder)}{os.sep}")


def _has(word: str, signs: Sequence[str]) -> bool:
    return any(sign in word for sign in signs)


def _mentions(row: Mapping[str, Any], part: str) -> bool:
    texts = (row["name"], row["path"], row["algorithm"], row["environment"], row["status"])
    return any(part in str(text).lower() for text in (*texts, *(row["tags"] or ()), row["notes"]))


def _glimpse(path: Path, metric: str) -> list[float]:
    """Some values of a metric: of a short file all, of a long one from rows at equal distances.

    There, a metric that few rows have gives way to another one that means the same.
    """
    try:
        lines, whole = _sampled_lines(path)
    except OSError:
        return []
    known: list[float] = []
    for name in MAIN_METRICS.get(metric, (metric,)):
        key = json.dumps(name).encode()
        values = [_value(line, name) for line in lines if key in line]
        found = [value for value in values if value is not None]
        known = found if len(found) > len(known) else known
        if known and (whole or len(known) >= FEW_POINTS):
            break
    last, count = len(known) - 1, min(len(known), SPARK_POINTS)
    return [known[last * place // max(count - 1, 1)] for place in range(count)]


def _sampled_lines(path: Path) -> tuple[list[bytes], bool]:
    """Lines of a file, and whether these are all of them."""
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE_BYTES:
            return file.read().split(b"\n"), True
        lines: list[bytes] = []
        for place in range(SPARK_SAMPLES):
            file.seek(size * place // SPARK_SAMPLES)
            lines += file.read(SPARK_BYTES // SPARK_SAMPLES).split(b"\n")[1:-1]
        return lines, False


def _value(line: bytes, name: str) -> float | None:
    try:
        row = json.loads(line)
        found = row.get(name) if STEP in row else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return float(found) if isinstance(found, int | float) else None
