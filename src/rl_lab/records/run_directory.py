"""One run is one folder. Makes it, names what is in it, keeps others out, and finds it again."""

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.records.commit import make_directory, sweep, write_atomically
from rl_lab.records.files import check_folder, own_file, read_object
from rl_lab.records.formatting import from_here
from rl_lab.records.metrics import plain

Which = str | int | None  # "best", "last", a step, or None: not given

_FOLDER = re.compile(r"(?P<name>.+)-(?P<time>\d{8}-\d{6})-(?P<id>[0-9a-f]{6})")
_CHECKPOINT = re.compile(r"step_(?P<step>\d{1,15})")
_ENVIRONMENT = re.compile(r"^environment:\n(?:  .*\n)*?  id: (?P<id>\S+)", re.MULTILINE)
MOST_READ = 65_536  # characters of a config.yaml in which its environment is looked for
_held: set[int] = set()  # descriptors of the locks this process holds


@dataclass(frozen=True)
class RunDirectory:
    """The folder of a run. Subfolders appear when something is written into them."""

    path: Path

    @classmethod
    def create(cls, root: Path, name: str) -> "RunDirectory":
        """Make `<name>-<time>-<id>` under `root`; no two processes ever get the same one."""
        try:
            make_directory(root)
            while True:
                # UTC, so that names sort by age also in the night the clocks are set back.
                stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
                path = root / f"{folder_name(name)}-{stamp}-{token_hex(3)}"
                # An id names a run everywhere, so it must not repeat under another name either.
                if not any(root.glob(f"*-{path.name[-6:]}")) and make_directory(path):
                    return cls(path)
        except OSError as error:
            raise UserError(
                f"cannot create a run in {from_here(root)}: {error.strerror}; choose another "
                "folder with --runs-dir or RL_LAB_RUNS"
            ) from error

    @property
    def id(self) -> str:
        """Six hex digits, or the whole name of a folder that was renamed by hand."""
        match = _FOLDER.fullmatch(self.path.name)
        return match["id"] if match else self.path.name

    @property
    def created(self) -> str:
        """When it was made, as in its name (UTC, sortable); empty for a renamed folder."""
        match = _FOLDER.fullmatch(self.path.name)
        return match["time"] if match else ""

    @property
    def config_file(self) -> Path:
        """The resolved configuration. A folder with this file is a run."""
        return self.path / "config.yaml"

    @property
    def provenance_file(self) -> Path:
        """Where the run came from."""
        return self.path / "provenance.json"

    @property
    def mark_file(self) -> Path:
        """Tells the user who made the run that it is his own: see `records/mark.py`."""
        return self.path / "mark.json"

    @property
    def metrics_file(self) -> Path:
        """What was learned: identical byte for byte after any interruption."""
        return self.path / "metrics.jsonl"

    @property
    def timing_file(self) -> Path:
        """Wall-clock and machine metrics, which no two runs share."""
        return self.path / "timing.jsonl"

    @property
    def alerts_file(self) -> Path:
        """Alerts of monitors about the metrics: identical after any interruption, as they are."""
        return self.path / "alerts.jsonl"

    @property
    def timing_alerts_file(self) -> Path:
        """Alerts of monitors about the clock and the machine."""
        return self.path / "timing_alerts.jsonl"

    @property
    def summary_file(self) -> Path:
        """Status and results at a glance."""
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of a `CheckpointStore`."""
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        """Films of its policies at play."""
        return self.path / "videos"

    @property
    def log_file(self) -> Path:
        """The messages of the run."""
        return self.path / "logs" / "run.log"

    @property
    def lock_file(self) -> Path:
        """Held by the process that writes."""
        return self.path / "run.lock"

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replace summary.json."""
        text = json.dumps(plain(summary), indent=2, sort_keys=True, allow_nan=False)
        write_atomically(self.summary_file, f"{text}\n".encode())

    def read_summary(self) -> dict[str, Any]:
        """The summary, or an empty one while there is none; `UserError` if it is damaged."""
        try:
            summary = read_object(self.summary_file)
        except FileNotFoundError:
            return {}
        for name, (is_right, word) in _SHAPES.items():
            if summary.get(name) is not None and not is_right(summary[name]):
                raise UserError(f"{self.summary_file} is not valid: '{name}' must be {word}")
        return summary

    def check_complete(self) -> None:
        """Refuse a run that was cleaned up, or whose folder has what no run has."""
        check_folder(self.path)
        if cleaned := self.read_summary().get("cleaned"):
            raise UserError(
                f"run {self.id} was cleaned up on {cleaned['time'][:8]} and has no checkpoints "
                f"left; start it again with: rl-lab train --config {self.config_file}"
            )

    def clean(self) -> None:
        """Remove unfinished files of a killed writer. Only for the holder of the lock."""
        sweep(self.path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes this run. The kernel frees it when the process dies."""
        try:
            check_folder(self.path)
            descriptor = own_file(str(self.lock_file), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UserError(f"cannot write to run {self.path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                raise UserError(
                    f"run {self.path.name} is in use by process {owner}: wait for it or stop it"
                ) from error
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            _held.add(descriptor)
            yield
        finally:
            _held.discard(descriptor)
            os.close(descriptor)


def folder_name(name: str) -> str:
    """The name as a safe part of a file name: at most 64 characters of `[A-Za-z0-9._-]`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:64].rstrip("-.") or "run"


def find_run(reference: str, root: Path) -> tuple[RunDirectory, Which]:
    """The run that is meant, and which of its checkpoints if the reference ends in `:…`."""
    if _is_run(Path(reference)):
        return RunDirectory(Path(reference)), None
    if (found := _of_checkpoint(Path(reference))) is not None:
        return found
    name, which = _split(reference)
    return _find(name, root), which


def _of_checkpoint(path: Path) -> tuple[RunDirectory, Which] | None:
    """The run and the step of a path such as `RUN/checkpoints/step_000000050000/`."""
    step = _CHECKPOINT.fullmatch(path.name)
    if step is None or path.parent.name != "checkpoints" or not _is_run(path.parent.parent):
        return None
    if not _exists(path):
        raise UserError(f"{path}: there is no such checkpoint")
    return RunDirectory(path.parent.parent), int(step["step"])


def list_runs(root: Path) -> list[RunDirectory]:
    """Every run under `root`, oldest first."""
    if not root.is_dir():
        return []
    paths = [path for path in root.iterdir() if not path.name.startswith(".") and _is_run(path)]
    return [RunDirectory(path) for path in sorted(paths, key=_age)]


def _split(reference: str) -> tuple[str, Which]:
    name, colon, tail = reference.rpartition(":")
    if not colon:
        return reference, None
    if tail.isdecimal():
        return name, int(tail)
    if reference.startswith("@best:") and tail not in ("best", "last"):
        return reference, None  # the best run of an environment
    if tail not in ("best", "last"):
        hint = did_you_mean(tail, ["best", "last"])
        raise UserError(f"'{reference}': ':{tail}' is not a checkpoint or a step{hint}")
    return name, tail


def _find(name: str, root: Path) -> RunDirectory:
    path = Path(name)
    if name and _is_run(path):
        return RunDirectory(path)
    # A name is only ever compared with the folders there are, never joined to the root.
    runs = list_runs(root)
    if name == "@last":
        return _last(runs, root)
    if name == "@best" or name.startswith("@best:"):
        return _best(runs, root, name.removeprefix("@best").removeprefix(":"))
    if not name.startswith("@") and "/" not in name and name:
        exact = [run for run in runs if name in (run.id, run.path.name)]
        found = exact or [run for run in runs if _begins(run, name)]
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(run.path.name for run in found[:8])
            more = f" and {len(found) - 8} more" if len(found) > 8 else ""
            raise UserError(f"'{name}' could be {len(found)} runs, write more of it: {shown}{more}")
    if name and _exists(path):
        raise UserError(f"{name} is not a run: it has no config.yaml")
    known = {"@last", "@best", "@best:ENV"} if name.startswith("@") else _known_names(runs)
    where = f"there are no runs in {root}" if not runs else f"no run '{name[:80]}' in {root}"
    raise UserError(f"{where}{did_you_mean(name, known)}")


def _begins(run: RunDirectory, name: str) -> bool:
    return run.id.startswith(name.lower()) or run.path.name.startswith(name)


def _known_names(runs: list[RunDirectory]) -> set[str]:
    folders = {run.path.name for run in runs}
    titles = {match["name"] for folder in folders if (match := _FOLDER.fullmatch(folder))}
    return folders | titles | {run.id for run in runs}


def _last(runs: list[RunDirectory], root: Path) -> RunDirectory:
    if not runs:
        raise UserError(f"@last: there are no runs in {root}")
    return runs[-1]


def _best(runs: list[RunDirectory], root: Path, environment: str = "") -> RunDirectory:
    """The best run of an environment; of the one last trained if none is named."""
    wanted = environment or next(filter(None, map(_environment, reversed(runs))), "")
    scored = [(score, run) for run in runs if (score := _score(run)) is not None]
    for _, run in sorted(scored, key=lambda pair: pair[0], reverse=True):
        if _environment(run) == wanted:
            return run
    here = f"of {wanted} in {root}" if wanted else f"in {root}"
    others = sorted({_environment(run) for _, run in scored})
    hint = f"; others have: @best:{', @best:'.join(others[:8])}" if others else ""
    raise UserError(f"@best: no run {here} has a best score yet{hint}")


def _environment(run: RunDirectory) -> str:
    """Which environment a run is trained on; empty if that cannot be read."""
    try:
        if known := run.read_summary().get("environment"):
            return str(known)
    except (UserError, OSError, TypeError, ValueError):
        pass  # one broken summary must not hide the other runs
    try:  # a run of an earlier version: as text, nothing of it is constructed
        if not run.config_file.is_file():
            return ""
        with run.config_file.open(encoding="utf-8") as file:
            found = _ENVIRONMENT.search(file.read(MOST_READ))
    except (OSError, ValueError):
        return ""
    return found["id"].strip("'\"") if found else ""


def _score(run: RunDirectory) -> float | None:
    try:
        best = run.read_summary().get("best")
    except UserError:  # one broken summary must not hide the other runs
        return None
    return float(best) if isinstance(best, (int, float)) else None


def _is_run(path: Path) -> bool:
    return _exists(path / "config.yaml")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long or with a NUL is no path at all
        return False


def _age(path: Path) -> tuple[str, int, str]:
    # The name tells the second; within it, the file system tells the order.
    return RunDirectory(path).created, (path / "config.yaml").stat().st_mtime_ns, path.name


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _has_numbers(value: object) -> bool:
    # NaN and infinities are texts in JSON.
    return isinstance(value, dict) and all(isinstance(x, int | float | str) for x in value.values())


def _is_test(value: object) -> bool:
    return isinstance(value, dict) and all(map(_has_numbers, value.values()))


def _is_parent(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("step"), int) and "id" in value


def _is_cleaned(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("time"), str)


# What readers of a summary rely on; everything else in it is only shown.
_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("best", "last_return", "wall_time", "env_steps", "total_timesteps", "best_step"),
        (_is_number, "a number"),
    ),
    **dict.fromkeys(("parameters", "efficiency", "skipped"), (_has_numbers, "names with numbers")),
    "test": (_is_test, "results with numbers"),
    "parent": (_is_parent, "the id and the step of a run"),
    "cleaned": (_is_cleaned, "when it was cleaned up"),
    "rollbacks": (lambda value: isinstance(value, list), "a list"),
    "status": (lambda value: isinstance(value, str), "a text"),
}


def _drop_inherited_locks() -> None:
    """A forked worker shares its parent's locks and would keep them when the parent is killed."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited_locks)
