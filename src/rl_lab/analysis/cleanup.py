"""Give back the disk that old runs take: their checkpoints, videos and TensorBoard events.

What says what was run and what came out stays: config, metrics, summary, report, labels, logs.
Kept whole is a run that trains, has a tag, was active in the last days, or is among the best of
its environment; returns of different environments cannot be compared.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.records.commit import DELETED, remove
from rl_lab.records.index import Index, row_of
from rl_lab.records.labels import read_labels
from rl_lab.records.run_directory import RunDirectory

LARGE = ("checkpoints", "videos", "tensorboard")
STAMP = "%Y%m%d-%H%M%S"  # how summaries and folder names tell the time (UTC)
RUNNING, TAGGED, RECENT, BEST = "running", "tagged", "recent", "best"
REASONS = (RUNNING, TAGGED, RECENT, BEST)


@dataclass(frozen=True)
class Verdict:
    """What becomes of one run."""

    row: Mapping[str, Any]
    kept: str | None  # one of REASONS, or None: it is cleaned up
    size: int = 0  # bytes that would be freed


def judge(
    rows: Sequence[Mapping[str, Any]], *, keep_best: int, keep_recent: int, now: datetime
) -> list[Verdict]:
    """Why each run is kept, or that it is not. `keep_recent` is a number of days."""
    best = _best_ids(rows, keep_best)
    since = now - timedelta(days=keep_recent)
    return [Verdict(row, _reason(row, best, since)) for row in rows]


def plan(root: Path, *, keep_best: int, keep_recent: int) -> list[Verdict]:
    """The same for the runs in a folder, oldest first, with what cleaning up would free."""
    # A run outside of the root may be in the index, or a link to one; neither is ours to clean up.
    rows = [row for row in Index(root).rows() if row["path"] and _is_own(root, row["path"])]
    verdicts = judge(rows, keep_best=keep_best, keep_recent=keep_recent, now=datetime.now(UTC))
    return [
        Verdict(each.row, each.kept, 0 if each.kept else size_of(root / each.row["path"]))
        for each in verdicts
    ]


def execute(row: Mapping[str, Any], root: Path) -> int:
    """Clean up one run; the bytes it freed. `UserError` if it has begun to run or got a tag."""
    run = RunDirectory(root / row["path"])
    with run.lock():
        if read_labels(run).tags:
            raise UserError(f"run {run.id} has got a tag")
        run.clean()
        before = size_of(run.path)
        # First: a run that lost a part of its checkpoints must not be taken for a whole one.
        summary = run.read_summary()
        already = (summary.get("cleaned") or {}).get("freed", 0)
        cleaned = {"time": time.strftime(STAMP, time.gmtime()), "freed": already + before}
        run.write_summary({**summary, "cleaned": cleaned})
        for folder in _large_folders(run.path):
            remove(folder)
        freed = before - size_of(run.path)
    Index(root).upsert(row_of(run, root))
    return freed


def size_of(run: Path) -> int:
    """Bytes on disk of what cleaning up removes."""
    return sum(_blocks(folder) for folder in _large_folders(run))


def _is_own(root: Path, path: str) -> bool:
    return os.sep not in path and not (root / path).is_symlink()


def _large_folders(run: Path) -> Iterator[Path]:
    """Not through links: what they lead to may belong to others."""
    for entry in sorted(run.iterdir()):
        named = entry.name in LARGE or entry.name.startswith(DELETED)
        if named and entry.is_dir() and not entry.is_symlink():
            yield entry


def _blocks(folder: Path) -> int:
    # Blocks, not lengths: a file with holes takes less than it says.
    files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(512 * os.lstat(file).st_blocks for file in files)


def _best_ids(rows: Sequence[Mapping[str, Any]], count: int) -> set[str]:
    scored: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["best"] is not None:
            scored.setdefault(row["environment"], []).append(row)
    return {
        row["id"]
        for members in scored.values()
        for row in sorted(members, key=lambda row: row["best"], reverse=True)[:count]
    }


def _reason(row: Mapping[str, Any], best: set[str], since: datetime) -> str | None:
    if row["status"] == "running":
        return RUNNING
    if row["tags"]:
        return TAGGED
    active = _active(row)
    if active is None or active >= since:
        return RECENT
    return BEST if row["id"] in best else None


def _active(row: Mapping[str, Any]) -> datetime | None:
    """When the run last did something; None if that is not known, and then it counts as recent."""
    try:
        return datetime.strptime(row["updated"] or row["created"], STAMP).replace(tzinfo=UTC)
    except (TypeError, ValueError):
        return None
