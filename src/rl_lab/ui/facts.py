"""One run as data for its page: results, checkpoints, films, alerts, the end of its log."""

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.display.metric_style import Display
from rl_lab.records.alerts import read_alerts
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import CorruptCheckpoint, read_manifest
from rl_lab.records.files import open_to_read
from rl_lab.records.formatting import visible
from rl_lab.records.index import row_of, true_status
from rl_lab.records.metrics import plain
from rl_lab.records.run_directory import RunDirectory
from rl_lab.records.source import read_provenance

MOST_ALERTS = 200
LOG_BYTES = 64 * 1024
MEDIA = {
    ".png": "image/png",
    ".gif": "image/gif",
    ".jpg": "image/jpeg",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}
MEDIA_FOLDERS = ("videos", "pictures")
MOST_MEDIA = 200
WATCHED = (
    "summary.json",
    "labels.json",
    "alerts.jsonl",
    "timing_alerts.jsonl",
    "checkpoints",
    "recordings",
    *MEDIA_FOLDERS,
)


def facts(run: RunDirectory, root: Path) -> dict[str, Any]:
    """Everything on the page but the curves and the settings."""
    try:
        summary = run.read_summary()
    except UserError as error:
        summary = {"error": str(error)}
    row = row_of(run, root)
    row["status"] = true_status(run.path, row["status"])
    provenance = read_provenance(run)
    git = provenance.get("git")
    return {
        "row": {name: row[name] for name in row if name not in ("metrics", "stamp")},
        "summary": plain(summary),
        "command": _words(provenance.get("command")),
        "commit": git.get("sha") if isinstance(git, Mapping) else None,
        "machine": {name: provenance.get(name) for name in ("cpu", "cpu_count", "gpus", "python")},
        "checkpoints": _checkpoints(run),
        "media": _media(run),
        "alerts": alerts(run),
        "report": run.path.joinpath("report.html").is_file(),
    }


def stamp(run: RunDirectory) -> dict[str, int]:
    """What changes when something of a run does: sizes of what grows, times of the rest."""
    found = {}
    for name in ("metrics.jsonl", "timing.jsonl", "logs/run.log"):
        try:
            found[name] = (run.path / name).stat().st_size
        except OSError:
            found[name] = 0
    times: list[object] = [true_status(run.path, "running")]  # its process may be killed
    for name in WATCHED:
        try:
            times.append((run.path / name).stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return {**found, "facts": hash(tuple(times)) & 0xFFFFFFFFFFFF}


def styles(display: Display, names: list[str]) -> list[dict[str, Any]]:
    """How metrics are shown, in the order of metrics.yaml."""
    return [
        {
            "name": name,
            "unit": display[name].unit,
            "precision": display[name].precision,
            "highlight": display[name].highlight,
            "better": display[name].better,
        }
        for name in display.ordered(names)
    ]


def alerts(run: RunDirectory) -> list[dict[str, Any]]:
    """The last warnings of the run's monitors, the newest first."""
    files = (run.alerts_file, run.timing_alerts_file)
    found = [alert for file in files for alert in read_alerts(file)]
    found.sort(key=lambda alert: alert.step, reverse=True)
    return [alert.to_tree() for alert in found[:MOST_ALERTS]]


def tail(path: Path) -> str:
    """The end of a text file; empty without one."""
    try:
        with open_to_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - LOG_BYTES, 0))
            text = file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
    if size > LOG_BYTES:
        text = text.partition("\n")[2]
    return visible(text)


def _checkpoints(run: RunDirectory) -> list[dict[str, Any]]:
    store = CheckpointStore(run.checkpoints)
    best = store.best()
    found = []
    for step in store.steps():
        try:
            score = read_manifest(run.checkpoints / f"step_{step:012d}").get("score")
        except (CorruptCheckpoint, UserError):  # damaged, or of a newer version
            score = None
        found.append({"step": step, "score": plain(score), "best": step == best})
    return found


def _media(run: RunDirectory) -> list[dict[str, Any]]:
    """Films and pictures, the newest first."""
    files = []
    for folder in MEDIA_FOLDERS:
        for file in (run.path / folder).glob("**/*"):
            if file.suffix not in MEDIA or file.name.startswith(".") or not file.is_file():
                continue
            with suppress(FileNotFoundError):  # it has just gone
                status = file.stat()
                name = file.relative_to(run.path).as_posix()
                kind = MEDIA[file.suffix].partition("/")[0]
                files.append((status.st_mtime, name, kind, status.st_size))
    files.sort(reverse=True)
    return [{"file": name, "kind": kind, "bytes": size} for _, name, kind, size in files][
        :MOST_MEDIA
    ]


def _words(command: object) -> str | None:
    if not isinstance(command, list) or not command:
        return None
    return shlex.join(["rl-lab", *map(str, command[1:])])
