"""Our own format: a folder of whole episodes, with a description and a card. Writes and reads it.

    dataset.json               what is in it, where it came from, a checksum of every file
    README.md                  the same for people
    000000000000-4000.npz      vector steps of one environment, as a disk buffer writes them

A file has whole episodes only and appears whole or not at all. So a folder whose writer was killed
is a dataset: `status` is then `recording`, and what is known only at the end is missing.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.about import actions_of, spec_of
from rl_lab.buffers.datasets import find_data
from rl_lab.buffers.disk import SEGMENT
from rl_lab.buffers.disk_ring import ABOUT, DiskRing, about, read_about
from rl_lab.buffers.segments import (
    FINAL,
    FOLLOWS,
    HEAD,
    SUFFIX,
    Segment,
    find_segments,
    write_durably,
    write_segment,
)
from rl_lab.buffers.storage import CUT, layout
from rl_lab.buffers.walk import Episode, episodes_of
from rl_lab.core.batch import ACTION, OBS, REWARD, TERMINATED, TRUNCATED
from rl_lab.core.chunks import Columns
from rl_lab.core.errors import UserError
from rl_lab.core.spec import EnvSpec, Space
from rl_lab.datasets.card import card
from rl_lab.datasets.numbers import Numbers
from rl_lab.records.commit import CorruptCheckpoint, entry_of, verify_file

RECORDING, COMPLETE = "recording", "complete"
CARD = "README.md"
RAM = 64 * 2**20  # of files that are mapped at a time

Tell = Callable[[int, int], None]  # how many are done, of how many


def silent(done: int, total: int) -> None:
    """Tell nobody."""


@dataclass
class Folder:
    """A dataset that is there."""

    path: Path
    about: dict[str, Any]

    @classmethod
    def open(cls, name: str) -> "Folder":
        """By a path, or by a name in `datasets/`."""
        path = find_data(name)
        found = read_about(path) if path.is_dir() else None
        if found is None:
            raise UserError(
                f"{path} is not a dataset: it has no {ABOUT} "
                "(rl-lab dataset convert makes one of other files)"
            )
        folder = cls(path, found)
        spec_of(found, path / ABOUT)  # one that lies is refused here
        return folder

    @cached_property
    def spec(self) -> EnvSpec:
        """What the environment looks like."""
        return spec_of(self.about, self.path / ABOUT)

    @property
    def complete(self) -> bool:
        """True unless its recorder was stopped before its end."""
        return self.about.get("status", COMPLETE) == COMPLETE

    def ring(self) -> DiskRing:
        """Its vector steps, which stay on disk."""
        count = int(self.about["num_envs"])
        segments = find_segments(self.path)
        rows = max(segments[-1].stop if segments else 0, 1)
        made = DiskRing(self.spec, rows, count, self.path, segment=SEGMENT, ram=RAM)
        if made.total:
            made.end()
        return made

    def episodes(self) -> Iterator[Episode]:
        """One by one."""
        return episodes_of(self.ring())

    def verify(self, tell: Tell = silent) -> None:
        """Compare every file with its checksum; one line about the first that is damaged."""
        files = self.about.get("files")
        there = find_segments(self.path)
        if not isinstance(files, Mapping):
            return  # an unfinished one: every file is checked by itself when it is read
        names = [each.path.name for each in there]
        for name in files:
            if name not in names:
                raise UserError(f"{self.path} is damaged: the file {str(name)[:80]} is missing")
        for number, each in enumerate(there):
            if each.path.name not in files:
                raise UserError(f"{each.path} is not one of the dataset's files")
            try:
                verify_file(each.path, files[each.path.name])
            except (CorruptCheckpoint, KeyError, TypeError) as error:
                raise UserError(f"{self.path} is damaged: {error}") from error
            tell(number + 1, len(there))


class Writer:
    """A dataset that is being written, file by file."""

    def __init__(self, path: Path, description: dict[str, Any]) -> None:
        self.path, self.description = path, description
        self.numbers: Numbers | None = None
        self.stop = 0  # steps that are in files

    @classmethod
    def begin(cls, path: Path, spec: EnvSpec, actions: Space, facts: Mapping[str, Any]) -> "Writer":
        """A new folder; `facts` are what is known before the first episode."""
        if path.exists() and any(path.iterdir()) if path.is_dir() else path.exists():
            raise UserError(f"{path} exists: choose another name, or delete it")
        description = {
            **about(spec, 1),
            "status": RECORDING,
            "actions": actions_of(actions),
            **facts,
        }
        writer = cls(path, description)
        path.mkdir(parents=True, exist_ok=True)
        writer._describe()
        return writer

    @classmethod
    def go_on(cls, folder: Folder, facts: Mapping[str, Any]) -> "Writer":
        """Behind what a writer that was stopped has left."""
        writer = cls(folder.path, {**folder.about, **facts})
        segments = find_segments(folder.path)
        writer.stop = segments[-1].stop if segments else 0
        return writer

    def add(self, episodes: Iterable[Episode]) -> Segment:
        """One more file with these episodes."""
        segment = write_segment(self.path, self.stop, columns_of(list(episodes)))
        self.stop = segment.stop
        return segment

    def add_all(self, episodes: Iterable[Episode], size: int = SEGMENT) -> int:
        """All of a stream, in files of about that many bytes; how many episodes there were."""
        waiting: list[Episode] = []
        held = count = 0
        for episode in episodes:
            waiting.append(episode)
            count += 1
            held += sum(each.nbytes for each in episode.frames.values()) + episode.action.nbytes
            if held >= size:
                self.add(waiting)
                waiting, held = [], 0
        if waiting:
            self.add(waiting)
        return count

    def finish(self, facts: Mapping[str, Any], tell: Tell = silent) -> Folder:
        """Count and describe what is there, and write the card: the dataset is complete."""
        if not self.stop:
            raise UserError(f"{self.path}: there is no whole episode to keep")
        folder = Folder(self.path, self.description)
        segments = find_segments(self.path)
        self.description |= Numbers.of(folder.ring(), folder.spec, tell).to_tree()
        self.description |= {
            **facts,
            "files": {each.path.name: entry_of(each.path.read_bytes()) for each in segments},
            "status": COMPLETE,
        }
        self._describe()
        text = card(self.path.name, self.description).encode()
        write_durably(self.path / CARD, lambda file: file.write(text))
        return Folder(self.path, self.description)

    def _describe(self) -> None:
        text = (json.dumps(self.description, indent=1, allow_nan=False) + "\n").encode()
        write_durably(self.path / ABOUT, lambda file: file.write(text))


def columns_of(episodes: list[Episode]) -> Columns:
    """Whole episodes as the arrays of one file."""
    flags = [each.flags() for each in episodes]
    ends = np.cumsum([len(each) for each in episodes]) - 1
    steps = int(ends[-1]) + 1
    columns: Columns = {
        ACTION: np.concatenate([each.action for each in episodes]),
        REWARD: np.concatenate([each.reward for each in episodes]),
        TERMINATED: np.concatenate([each for each, _ in flags]),
        TRUNCATED: np.concatenate([each for _, each in flags]),
        CUT: np.isin(np.arange(steps), ends),
    }
    for name in episodes[0].frames:
        columns[name] = np.concatenate([each.frames[name][:-1] for each in episodes])
    columns = {name: rows[:, None] for name, rows in columns.items()}
    columns[FOLLOWS] = np.array(False)
    for name in episodes[0].frames:
        columns[f"{FINAL}/{name}"] = np.stack([each.frames[name][-1] for each in episodes])
        columns[f"{HEAD}/{name}"] = episodes[-1].frames[name][-1:]
    return columns


def fitted(episode: Episode, spec: EnvSpec, where: str) -> Episode:
    """An episode of another source in the types of our columns, or one line about why not."""
    wanted = layout(spec)
    rows = {**episode.frames, ACTION: episode.action, REWARD: episode.reward}
    found: Columns = {}
    for name, (shape, kind) in wanted.items():
        if name in (TERMINATED, TRUNCATED):
            continue
        length = len(episode) + (name.partition("/")[0] == OBS)
        if name not in rows or rows[name].shape != (length, *shape):
            there = list(rows[name].shape) if name in rows else "missing"
            raise UserError(f"{where}: '{name}' is {there}, wanted is {[length, *shape]}")
        found[name] = np.ascontiguousarray(rows[name], dtype=kind)
    frames = {name: found[name] for name in wanted if name.partition("/")[0] == OBS}
    return Episode(frames, found[ACTION], found[REWARD], episode.terminated)


def segment_files(path: Path) -> list[Path]:
    """The files of episodes in a folder."""
    return sorted(path.glob(f"*{SUFFIX}"))
