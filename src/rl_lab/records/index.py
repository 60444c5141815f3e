"""An SQLite index over the runs of a folder. Lists are fast with it, and correct without it."""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped, unused-ignore]

from rl_lab.core.errors import UserError, did_you_mean
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
}
BUSY_SECONDS = 30.0
_FROM_SUMMARY = ("status", "env_steps", "best", "last_return", "created", "updated", "wall_time")
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

    def rows(self, **filters: Any) -> list[Row]:
        """The runs whose columns equal the filters, oldest first; from the folders if need be."""
        _check_columns(filters)
        if not self.root.is_dir():
            return []
        try:
            return self._healed(lambda db: _select(db, filters), write=False)
        except (sqlite3.Error, OSError) as error:
            _log.warning("the index %s cannot be read: %s", self.path, error)
        rows = [row_of(run, self.root) for run in list_runs(self.root)]
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
            for run in runs:
                _upsert(db, row_of(run, self.root))
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
                _log.warning("the index %s is corrupt (%s): rebuilding it", self.path, error)
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
            db.row_factory = sqlite3.Row
            if write:
                db.execute("PRAGMA journal_mode=WAL")
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


def row_of(run: RunDirectory, root: Path) -> Row:
    """The index row of a run folder; what cannot be read is None."""
    config = _config(run.config_file)
    try:
        summary = run.read_summary()
    except (UserError, OSError):
        summary = {}
    row: Row = {
        "id": run.id,
        "name": _at(config, "experiment", "name") or run.path.name,
        "path": os.path.relpath(run.path, root),
        "algorithm": _at(config, "algorithm", "name"),
        "environment": _at(config, "environment", "id"),
        "seed": _at(config, "experiment", "seed"),
    }
    row |= {name: summary.get(name) for name in _FROM_SUMMARY}
    row["created"] = row["created"] or run.created
    return {name: _storable(row[name], kind) for name, kind in COLUMNS.items()}


def _config(path: Path) -> Any:
    # libyaml's safe loader takes an eighth of the time: half a minute for ten thousand runs.
    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        loader = kind(path.read_bytes())
        return loader.get_single_data()
    except (OSError, yaml.YAMLError):
        return None


def _at(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _storable(value: Any, kind: str) -> Any:
    wanted = str if kind.startswith("TEXT") else (int, float)
    return value if isinstance(value, wanted) else None


def _create(db: sqlite3.Connection) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    db.execute(f"CREATE TABLE IF NOT EXISTS runs ({columns})")


def _upsert(db: sqlite3.Connection, row: Mapping[str, Any]) -> None:
    names = list(row)
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
    action = f"UPDATE SET {changes}" if changes else "NOTHING"
    db.execute(
        f"INSERT INTO runs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT (id) DO {action}",
        [row[name] for name in names],
    )


def _select(db: sqlite3.Connection, filters: Mapping[str, Any]) -> list[Row]:
    where = " AND ".join(f"{name} IS ?" for name in filters) or "1"
    query = f"SELECT {', '.join(COLUMNS)} FROM runs WHERE {where} ORDER BY created, rowid"
    return [dict(row) for row in db.execute(query, list(filters.values()))]


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
