"""The checkpoints of one run: save, load the newest or best that verifies, forget the rest."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from zlib import crc32

from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.core.schema import CheckpointConfig
from rl_lab.records.chunks import delete_files, open_chunks, unnamed_files, write_chunks
from rl_lab.records.commit import (
    TENSORS,
    CorruptCheckpoint,
    commit_files,
    encode_tree,
    move,
    point_link,
    read_manifest,
    read_tree,
    remove,
    sweep,
    sync_names,
)
from rl_lab.records.faults import fault

if TYPE_CHECKING:
    from rl_lab.core.state import Tree

    Loaded = tuple[Tree, dict[str, Any], Path]  # state, manifest, folder

LATEST, BEST = "latest", "best"  # links for humans; nothing here ever reads them

# `.new` exists only while a checkpoint replaces an older one of the same step.
_FOLDER = re.compile(r"step_(\d{12,})(\.new)?")
_QUARANTINED = re.compile(r"\.bad-step_(\d{12,})(\.new)?-[0-9a-f]+")


@dataclass(frozen=True)
class _Entry:
    """A checkpoint as its manifest describes it."""

    path: Path
    step: int
    number: int  # the how-manieth of the run, from 1
    permanent: bool
    score: float | None
    tensors_crc: int


class CheckpointStore:
    """The folder `checkpoints/` of a run. The holder of the run's lock writes, all may load.

    `on_skip` receives a line about whatever was skipped or could not be deleted. `quarantine`, only
    for the holder of the lock: damaged checkpoints that a load meets are renamed to `.bad-…`.
    """

    def __init__(
        self,
        directory: Path,
        config: CheckpointConfig | None = None,
        *,
        quarantine: bool = False,
        on_skip: Callable[[str], object] = lambda message: None,
    ) -> None:
        self.directory = directory
        self.chunks = directory / "chunks"
        self.config = config or CheckpointConfig()
        self.quarantine = quarantine
        self.on_skip = on_skip

    def save(
        self,
        step: int,
        tree: "Tree",
        *,
        score: float | None = None,
        manifest: dict[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint durably, then let go of those no rule keeps. Higher scores are better.

        A second save at one step replaces the first. If it holds the same tensors and brings no
        score, the score it had stays: a last save after an evaluation must not lose the best.
        Of the logs of buffers only the chunks that are new are written.
        """
        chunks = write_chunks(self.chunks, tree)
        payload = encode_tree(tree, inline=False)
        self._settle(step)
        entries = {entry.step: entry for entry in self._entries()}
        before = entries.get(step)
        if before is not None:
            number = before.number
        else:
            number = 1 + max((e.number for e in entries.values() if e.step < step), default=0)
        score = None if score is None or not math.isfinite(score) else float(score)
        path = self.directory / f"step_{step:012d}"
        draft = path.with_name(f"{path.name}.new") if path.exists() else path
        every = self.config.keep_every
        commit_files(
            draft,
            payload,
            manifest={
                **(manifest or {}),
                "step": step,
                "number": number,
                "permanent": every > 0 and number % every == 0,
                "score": score if score is not None else _inherited(before, payload[TENSORS]),
            },
            chunks=chunks,
        )
        self._settle(step)
        fault("ckpt.before_retention")
        self._retain()
        self._link()
        self._collect()
        return path

    def load(self, which: str | int | None = "last", *, rows: bool = True) -> "Loaded":
        """State, manifest and folder of `last`, `best` or a step; None: `best`, or `last` if none.

        A damaged step is refused. Instead of a damaged `last` or `best` the next one is loaded, and
        `on_skip` is called, every time until something newer or better is saved. Without `rows`,
        the chunks of buffers are not read: a policy needs none of them.
        """
        if isinstance(which, int) or (which is not None and which.isdecimal()):
            return self._load_step(int(which), rows)
        if which not in (None, "last", "best"):
            raise UserError(f"unknown checkpoint '{which}'{did_you_mean(which, ['last', 'best'])}")
        quarantined = self.quarantined()  # by earlier loads
        skipped: dict[Path, str] = {}
        instead = ""
        try:
            found = self._load_first(which, rows, skipped)
            instead = f"; step {found[1]['step']} is used instead"
            for path in self._missed(which, found[1], quarantined):
                skipped[path] = f"skipped a damaged checkpoint ({path.name})"
            return found
        finally:
            for message in skipped.values():
                self.on_skip(f"{message}{instead}")

    def quarantined(self) -> list[Path]:
        """The damaged checkpoints that were renamed, oldest first."""
        return self._matching(_QUARANTINED)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        return sorted(self._folders())

    def best(self) -> int | None:
        """The step with the highest score; of equals the first. None while nothing is scored."""
        ranked = _ranked(self._entries())
        return ranked[0].step if ranked else None

    def rewind(self, step: int) -> None:
        """Forget every checkpoint after `step`: the run goes on from there, with a new future."""
        for path in reversed(self._paths()):
            if _step(path) > step:
                remove(path)
        self._link()
        self._collect()

    def clean(self) -> None:
        """Finish or undo what a killed writer left. Only for the holder of the run's lock."""
        sweep(self.directory)
        sweep(self.chunks)
        for step in self.steps():
            self._settle(step)
        self._collect()

    def _read(self, path: Path, rows: bool) -> "Loaded":
        tree, manifest = read_tree(path)
        if rows:
            open_chunks(self.chunks, tree, manifest)
        return tree, manifest, path

    def _load_first(self, which: str | None, rows: bool, skipped: dict[Path, str]) -> "Loaded":
        """The first that is intact; those before it are added to `skipped`, with a message."""
        while True:
            path = self._candidate(which, skipped)
            before = _inode(path)
            try:
                return self._read(path, rows)
            except CorruptCheckpoint as error:
                # While we read, retention may have removed it or a second save replaced it.
                if before is not None and _inode(path) == before:
                    skipped[path] = self._skip(path, str(error))

    def _load_step(self, step: int, rows: bool) -> "Loaded":
        path = self._folders().get(step)
        if path is None:
            for bad in self.quarantined():
                if _step(bad) == step:
                    raise UserError(f"checkpoint {step} is damaged ({bad.name}); try 'last'")
            raise UserError(f"{self.directory} has no checkpoint at step {step}{self._known()}")
        try:
            return self._read(path, rows)
        except CorruptCheckpoint as error:
            raise UserError(f"checkpoint {step} is damaged: {error}; try 'last'") from error

    def _candidate(self, which: str | None, skipped: Mapping[Path, str]) -> Path:
        by_step = {_step(path): path for path in self._paths() if path not in skipped}
        paths = list(by_step.values())
        if not paths:
            damaged = ": all of them are damaged" if skipped or self.quarantined() else ""
            raise UserError(f"{self.directory} has no checkpoint to load{damaged}")
        if which != "last":
            for path in paths:
                if _has_damaged_manifest(path):  # its score is unknown: it may have been the best
                    return path
            ranked = _ranked([entry for entry in map(_entry, paths) if entry is not None])
            if ranked:
                return ranked[0].path
            if which == "best":
                other = "other " if skipped else ""
                raise UserError(
                    f"{self.directory} has no {other}checkpoint with a score: use 'last'"
                )
        return paths[-1]

    def _missed(
        self, which: str | None, manifest: Mapping[str, Any], quarantined: list[Path]
    ) -> Iterator[Path]:
        """Those in quarantine that are newer than all others, or better than what was loaded."""
        steps, score = self.steps(), manifest.get("score")
        for path in quarantined:
            if _step(path) in steps:  # saved again since
                continue
            entry = _entry(path) if which != "last" else None
            its_score = None if entry is None else entry.score
            better = its_score is not None and (score is None or its_score > score)
            if better or _step(path) > steps[-1]:
                yield path

    def _known(self) -> str:
        steps = self.steps()
        return f" (there are: {', '.join(map(str, steps[-8:]))})" if steps else " (it has none)"

    def _paths(self) -> list[Path]:
        """Oldest first; the replacement of a step comes after what it replaces."""
        return self._matching(_FOLDER)

    def _matching(self, pattern: re.Pattern[str]) -> list[Path]:
        if not self.directory.is_dir():
            return []
        found = [path for path in self.directory.iterdir() if pattern.fullmatch(path.name)]
        return sorted(found, key=lambda path: (_step(path), path.name))

    def _folders(self) -> dict[int, Path]:
        return {_step(path): path for path in self._paths()}

    def _entries(self) -> list[_Entry]:
        """Oldest first. Without a readable manifest one is never counted and never deleted."""
        found = [_entry(path) for path in self._folders().values()]
        return [entry for entry in found if entry is not None]

    def _settle(self, step: int) -> None:
        """Give a durable `step_N.new` its name. At every moment one of the two is complete."""
        path = self.directory / f"step_{step:012d}"
        draft = path.with_name(f"{path.name}.new")
        if not draft.exists():
            return
        if path.exists():
            remove(path)
        fault("ckpt.before_settle")
        move(draft, path)

    def _retain(self) -> None:
        entries = self._entries()
        kept = {entry.step for entry in entries[-self.config.keep_last :] if entries}
        kept |= {entry.step for entry in _ranked(entries)[: self.config.keep_best]}
        kept |= {entry.step for entry in entries if entry.permanent}
        for entry in entries:
            if entry.step in kept:
                continue
            try:
                remove(entry.path)
            except OSError as error:  # the new checkpoint is safe; `clean` tries again
                self.on_skip(f"could not delete {entry.path}: {error}")

    def _collect(self) -> None:
        """Delete the chunks that no checkpoint names; none at all while one cannot be read."""
        try:
            litter = unnamed_files(self.chunks, [read_manifest(path) for path in self._paths()])
            if litter:  # no checkpoint that needed them may come back without them
                sync_names(self.directory)
        except (CorruptCheckpoint, UserError, OSError):
            return
        delete_files(litter, self.on_skip)

    def _link(self) -> None:
        """Best effort: a file system without links, or a full one, must not fail a good save."""
        steps, best = self.steps(), self.best()
        for name, step in ((LATEST, steps[-1] if steps else None), (BEST, best)):
            link = self.directory / name
            with suppress(OSError):
                if step is not None:
                    point_link(link, f"step_{step:012d}")
                elif link.is_symlink():
                    link.unlink()

    def _skip(self, path: Path, why: str) -> str:
        """What to say about a damaged checkpoint, which may be renamed."""
        message = f"skipped a damaged checkpoint ({why})"
        if self.quarantine:
            bad = path.with_name(f".bad-{path.name}-{uuid4().hex[:8]}")
            with suppress(OSError):  # a read-only folder: skipping is all we can do
                move(path, bad)
                message += f", moved to {bad.name}"
        return message


def _entry(path: Path) -> _Entry | None:
    try:
        manifest = read_manifest(path)
        return _Entry(
            path=path,
            step=_step(path),
            number=int(manifest["number"]),
            permanent=bool(manifest["permanent"]),
            score=manifest["score"],
            tensors_crc=int(manifest["files"][TENSORS]["crc32"]),
        )
    except (CorruptCheckpoint, UserError, KeyError, OSError):
        return None


def _has_damaged_manifest(path: Path) -> bool:
    try:
        read_manifest(path)
    except CorruptCheckpoint:
        return True
    except (UserError, OSError):  # of a newer version, or not ours to read
        return False
    return False


def _ranked(entries: list[_Entry]) -> list[_Entry]:
    scored = [(entry.score, entry) for entry in entries if entry.score is not None]
    return [entry for _, entry in sorted(scored, key=lambda pair: (-pair[0], pair[1].step))]


def _inherited(before: _Entry | None, tensors: bytes) -> float | None:
    return before.score if before is not None and before.tensors_crc == crc32(tensors) else None


def _step(path: Path) -> int:
    match = _FOLDER.fullmatch(path.name) or _QUARANTINED.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
