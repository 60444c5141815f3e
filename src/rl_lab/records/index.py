"""An SQLite index over the runs of a folder. Lists are fast with it, and correct without it.

Every list looks at the names and times of the folders, once: what was moved, deleted, copied here
or changed by another program is noticed, and only that is read again.
"""

import fcntl
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.records.config_file import at, experiment_of, read_config
from rl_lab.records.files import open_to_read, read_bounded
from rl_lab.records.labels import Labels, read_labels
from rl_lab.records.metrics import STEP, is_number, plain
from rl_lab.records.run_directory import RunDirectory, list_runs

COLUMNS = {
    "id": "TEXT PRIMARY KEY",
    "name": "TEXT",
    "path": "TEXT",  # relative to the root
    "algorithm": "TEXT",
    "environment": "TEXT",
    "seed": "INTEGER",
    "status": "TEXT",
    "env_steps": "INTEGER",
    "best": "REAL",
    "last_return": "REAL",
    "created": "TEXT",
    "updated": "TEXT",
    "wall_time": "REAL",
    "experiment": "TEXT",  # the same for runs that differ in the seed only
    "group": "TEXT",  # the sweep, or whatever else made several experiments
    "parent": "TEXT",  # ID:STEP of the run that this one was forked from
    "tags": "JSON",  # a list
    "notes": "TEXT",
    "alerts": "JSON",  # monitors that have fired, each once
    "metrics": "JSON",  # the last value of each metric, by name
    "stamp": "INTEGER",  # when the folder's list of names had last changed; not for readers
}
STAMP = "stamp"
DAMAGED = "damaged"  # the status of a run whose config.yaml or summary.json cannot be read
LOCK_BYTES = 32  # of a run.lock: a process id
BUSY_SECONDS = 30.0
TAIL_BYTES = 32 * 1024  # of metrics.jsonl: several rows, so that rare metrics are among them
_FROM_SUMMARY = (
    *("status", "env_steps", "best", "last_return", "created", "updated", "wall_time"),
    *("group", "alerts"),
)
_log = logging.getLogger(__name__)

Row = dict[str, Any]
T = TypeVar("T")


class Index:
    """`<root>/index.sqlite`. The run folders are the truth: losing the index loses nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "index.sqlite"

    def upsert(self, row: Mapping[str, Any]) -> None:
        """Add a run or change the given columns of it. A broken index never stops a run."""
        _check_columns(row)
        if "id" not in row:
            raise ValueError("a row of the index needs an 'id'")
        try:
            self._healed(lambda db: _upsert(db, row), write=True)
        except (sqlite3.Error, OSError) as error:
            _log.warning("the index %s was not updated: %s", self.path, error)

    def rows(self, *, quick: bool = False, **filters: object) -> list[Row]:
        """The runs whose columns equal the filters, oldest first: as their folders are now.

        Metrics are the largest part by far; `quick` leaves them out, as None.
        """
        _check_columns(filters)
        if not self.root.is_dir():
            return []
        try:
            stored = self._healed(lambda db: _select(db, quick=quick), write=False)
            rows, fresh = compare_with_folders(stored, self.root)
        except (sqlite3.Error, OSError) as error:
            _log.warning("the index %s cannot be read: %s", self.path, error)
            rows, fresh = compare_with_folders([], self.root)[0], []
        if fresh:
            # Only to spare the next reader the work, so it may fail: a read-only disk, for example.
            with suppress(sqlite3.Error, OSError):
                self._healed(lambda db: _upsert_all(db, fresh), write=True)
        for row in rows:
            row.pop(STAMP)
            if row["status"] == "running" and row["path"] is not None:
                row["status"] = true_status(self.root / row["path"], row["status"])
        return [row for row in rows if all(row[name] == filters[name] for name in filters)]

    def rebuild(self) -> int:
        """Make the index again from the run folders; how many there are."""
        try:
            return self._replace_all()
        except sqlite3.DatabaseError as error:
            if not _is_corrupt(error):
                raise
            self._discard()
            return self._replace_all()

    def _replace_all(self) -> int:
        with self._transaction(write=True) as db:
            # The folders are read within the transaction: no run can report in between.
            runs = list_runs(self.root)
            db.execute("DROP TABLE runs")  # it may have the columns of another version
            _create(db)
            _upsert_all(db, [row_of(run, self.root) for run in runs])
        return len(runs)

    def _healed(self, work: Callable[[sqlite3.Connection], T], *, write: bool) -> T:
        """Do it; if the file is missing or turns out to be corrupt, rebuild and do it again."""
        if self.path.exists():
            try:
                with self._transaction(write=write) as db:
                    return work(db)
            except sqlite3.DatabaseError as error:
                if not _is_corrupt(error):
                    raise
                _log.warning(
                    "the index %s is damaged or of another version (%s): rebuilding it",
                    self.path,
                    error,
                )
        self.rebuild()
        with self._transaction(write=write) as db:
            return work(db)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """One transaction on a connection of its own: none is ever shared with a forked worker."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (
            self._guard(fcntl.LOCK_SH),
            closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as db,
        ):
            if write:
                db.execute("PRAGMA journal_mode=WAL")
                # A kill loses nothing; a power loss may cost rows, which the folders still have.
                db.execute("PRAGMA synchronous=NORMAL")
                # A deferred transaction that reads first and writes later fails, not waits.
                db.execute("BEGIN IMMEDIATE")
                _create(db)
            else:
                db.execute("BEGIN")
            yield db
            db.execute("COMMIT")

    def _discard(self) -> None:
        """Remove a corrupt file, unless another process has already put a good one there."""
        with self._guard(fcntl.LOCK_EX):
            with suppress(sqlite3.Error), closing(sqlite3.connect(self.path)) as db:
                if db.execute("PRAGMA quick_check").fetchone()[0] == "ok":
                    return
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(f"{self.path.name}{suffix}").unlink(missing_ok=True)

    @contextmanager
    def _guard(self, kind: int) -> Iterator[None]:
        """Shared by users, exclusive for removal: SQLite does not expect its files to vanish."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            deadline = time.monotonic() + BUSY_SECONDS
            while not _flock(descriptor, kind):
                if time.monotonic() > deadline:
                    raise sqlite3.OperationalError("the index is in use")
                time.sleep(0.01)
            yield
        finally:
            os.close(descriptor)


def compare_with_folders(stored: list[Row], root: Path) -> tuple[list[Row], list[Row]]:
    """The rows as the folders under `root` are now, oldest first, and those that were read again.

    A row without a path is kept: it is not known yet where its run lives.
    """
    stamps = _stamps(root)
    rows: list[Row] = []
    fresh: list[Row] = []
    pathless = {row["id"]: row for row in stored if row["path"] is None}
    for row in stored:
        if row["id"] in pathless:
            continue
        # A run outside of the root may be in the index too: it was resumed by its path.
        path = row["path"]
        stamp = _stamp(root / path) if os.sep in path else stamps.get(path)
        if stamp is None:  # the folder is gone
            continue
        if stamp == row[STAMP]:
            rows.append(row)
        elif (run := RunDirectory(root / path)).config_file.exists():
            rows.append(row_of(run, root))
            fresh.append(rows[-1])
    known, ids = {row["path"] for row in rows}, {row["id"] for row in rows}
    unknown = [RunDirectory(root / name) for name in stamps if name not in known]
    for run in sorted((run for run in unknown if run.config_file.exists()), key=_born):
        more = {name: each for name, each in pathless.pop(run.id, {}).items() if each is not None}
        rows.append({**row_of(run, root), **more})
        if run.id not in ids:  # of two folders with one id, the index can have only one
            ids.add(run.id)
            fresh.append(rows[-1])
    rows += pathless.values()
    return sorted(rows, key=lambda row: row["created"] or ""), fresh


def row_of(run: RunDirectory, root: Path) -> Row:
    """The index row of a run folder; what cannot be read is None, and the run `damaged`."""
    stamp = _stamp(run.path)  # before the files: what changes in between is read again
    config = read_config(run.config_file)
    damaged = config is None
    try:
        summary = run.read_summary()
    except UserError:
        summary, damaged = {}, True
    try:
        labels = read_labels(run, config or {})
    except UserError:
        labels = Labels()
    row: Row = {
        "id": run.id,
        "name": _text(at(config, "experiment", "name")) or run.path.name,
        "path": os.path.relpath(run.path, root),
        "algorithm": at(config, "algorithm", "name"),
        "environment": at(config, "environment", "id"),
        "seed": at(config, "experiment", "seed"),
        "experiment": experiment_of(config),
        "parent": _parent(summary.get("parent")),
        "tags": list(labels.tags),
        "notes": labels.notes or None,
        "metrics": last_metrics(run.metrics_file),
        STAMP: stamp,
    }
    row |= {name: summary.get(name) for name in _FROM_SUMMARY}
    row["status"] = DAMAGED if damaged else row["status"]
    row["created"] = row["created"] or run.created
    return {name: _storable(row[name], kind) for name, kind in COLUMNS.items()}


def true_status(run: Path, status: str | None) -> str | None:
    """A run whose process is gone is not running, whatever its last summary says."""
    if status != "running":
        return status
    try:
        os.kill(int(read_bounded(run / "run.lock", LOCK_BYTES)), 0)
    except PermissionError:  # it lives, as another user
        return status
    except (OSError, ValueError, OverflowError):
        return "killed"
    return status


def last_metrics(path: Path) -> dict[str, Any]:
    """The last value of each metric in the last rows of a metrics.jsonl; {} if there is none."""
    try:
        with open_to_read(path) as file:
            start = max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    values: dict[str, Any] = {}
    # Only whole rows: not the first of a tail, nor what follows the last line end.
    for line in lines[1 if start else 0 : -1]:
        with suppress(ValueError, TypeError, RecursionError):  # a bad row hides no other
            values |= json.loads(line)
    values.pop(STEP, None)
    return {str(name): value for name, value in values.items() if is_number(value)}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _parent(parent: object) -> str | None:
    if isinstance(parent, Mapping) and "id" in parent:
        return f"{parent['id']}:{parent.get('step')}"
    return parent if isinstance(parent, str) else None


def _stamps(root: Path) -> dict[str, int]:
    """The folders under `root`, and when a name in each of them had last changed."""
    found = {}
    with os.scandir(root) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                with suppress(OSError):  # it may vanish while we look
                    if entry.is_dir():
                        found[entry.name] = entry.stat().st_mtime_ns
    return found


def _stamp(folder: Path) -> int | None:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return None


def _born(run: RunDirectory) -> tuple[str, int, str]:
    try:
        return run.created, run.config_file.stat().st_mtime_ns, run.path.name
    except OSError:  # it vanished while we looked
        return run.created, 0, run.path.name


def _storable(value: object, kind: str) -> Any:
    if kind == "JSON":
        return value
    if isinstance(value, int) and abs(value) >= 2**63:  # a seed: SQLite has no such numbers
        return None
    wanted = str if kind.startswith("TEXT") else (int, float)
    return value if isinstance(value, wanted) else None


def _create(db: sqlite3.Connection) -> None:
    columns = ", ".join(f"[{name}] {kind}" for name, kind in COLUMNS.items())
    db.execute(f"CREATE TABLE IF NOT EXISTS runs ({columns})")


def _upsert(db: sqlite3.Connection, row: Mapping[str, Any]) -> None:
    # Brackets: `group` is a word of SQL, and a name in quotes that is no column would be a text.
    names = [f"[{name}]" for name in row]
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name != "[id]")
    action = f"UPDATE SET {changes}" if changes else "NOTHING"
    db.execute(
        f"INSERT INTO runs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT (id) DO {action}",
        [
            json.dumps(plain(each), allow_nan=False) if COLUMNS[name] == "JSON" else each
            for name, each in row.items()
        ],
    )


def _upsert_all(db: sqlite3.Connection, rows: list[Row]) -> None:
    for row in rows:
        _upsert(db, row)


def _select(db: sqlite3.Connection, *, quick: bool) -> list[Row]:
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone() is None:
        return []  # another process is just making it
    wanted = ["NULL" if quick and name == "metrics" else f"[{name}]" for name in COLUMNS]
    found = db.execute(f"SELECT {', '.join(wanted)} FROM runs ORDER BY created, rowid")
    rows = [dict(zip(COLUMNS, values, strict=True)) for values in found]
    try:
        for name in [name for name, kind in COLUMNS.items() if kind == "JSON"]:
            # All at once: the parser then makes every metric's name once, not once per run.
            texts = ",".join("null" if row[name] is None else row[name] for row in rows)
            for row, value in zip(rows, json.loads(f"[{texts}]"), strict=True):
                row[name] = value
    except (ValueError, TypeError) as error:  # as good as a damaged file
        raise sqlite3.DatabaseError(f"a value is not JSON: {error}") from error
    return rows


def _is_corrupt(error: sqlite3.DatabaseError) -> bool:
    # A damaged file is a plain DatabaseError; locked, full or read-only have classes of their own.
    # A table of another shape comes from another version: as good as damaged.
    return (
        type(error) is sqlite3.DatabaseError or "no such" in str(error) or "no column" in str(error)
    )


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_columns(row: Mapping[str, Any]) -> None:
    for name in row:
        if name not in COLUMNS:
            raise ValueError(f"the index has no column '{name}'{did_you_mean(name, COLUMNS)}")
