"""A writer that is killed, or loses its power, between any two operations on the disk.

The real writer works in a real folder. What it has made durable is recorded: the content of a file
at its last fsync, the names in a folder at its last fsync. At every operation the disk is built as
a crash could leave it, and read.
"""

import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rl_lab.records import checkpoint, chunks, commit
from rl_lab.records.checkpoint import CheckpointConfig, CheckpointStore
from rl_lab.records.run_directory import RunDirectory

STEPS = (100, 200, 200, 300, 400)  # one is saved twice
IMAGES = 3  # random mixtures of lost and kept names at each moment


class Disk:
    """What a folder would hold after a crash."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[int, bytes] = {}  # inode -> what is durable
        self.names: dict[int, dict[str, os.DirEntry[str]]] = {}
        self.links: dict[int, str] = {}
        self.held: list[int] = []  # open descriptors: no inode is used twice

    def synced(self, descriptor: int) -> None:
        """An fsync has returned."""
        self.held.append(os.dup(descriptor))
        found, path = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISDIR(found.st_mode):
            self.names[found.st_ino] = self.listed(path)
        else:
            self.contents[found.st_ino] = path.read_bytes()

    def listed(self, folder: Path) -> dict[str, os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            found = {entry.name: entry for entry in entries}
        for entry in found.values():
            self.held.append(os.open(entry.path, os.O_PATH | os.O_NOFOLLOW))
            entry.is_dir()  # remembered by the entry
            if entry.is_symlink():
                self.links[entry.inode()] = str(Path(entry.path).readlink())
        return found

    def image(self, target: Path, lost: Callable[[], bool]) -> Path:
        """The disk after a power loss; `lost()`: whether a folder forgets unsynced names."""
        shutil.rmtree(target, ignore_errors=True)
        self._copy(self.root, self.root.stat().st_ino, target, lost)
        return target

    def _copy(self, path: Path | None, inode: int, target: Path, lost: Callable[[], bool]) -> None:
        target.mkdir(parents=True)
        durable = self.names.get(inode, {})
        now = durable if path is None else self.listed(path)
        for name, entry in (durable if lost() else now).items():
            if entry.inode() in self.links:
                (target / name).symlink_to(self.links[entry.inode()])
            elif entry.is_dir():
                there = Path(entry.path) if _inode(entry.path) == entry.inode() else None
                self._copy(there, entry.inode(), target / name, lost)
            else:
                (target / name).write_bytes(self.contents.get(entry.inode(), b""))


def _inode(path: str) -> int | None:
    try:
        return Path(path).stat().st_ino
    except OSError:
        return None


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk, and `disk.at_every_operation(check)`."""
    root = tmp_path / "disk"
    root.mkdir()
    made = Disk(root)
    descriptor = os.open(root, os.O_RDONLY)
    made.synced(descriptor)
    os.close(descriptor)
    checks: list[Callable[[], None]] = []
    busy = False

    def look(*args: object) -> None:
        nonlocal busy
        if checks and not busy:
            busy = True
            checks[0]()
            busy = False

    real = os.fsync

    def fsync(descriptor: int) -> None:
        look()
        real(descriptor)
        made.synced(descriptor)
        look()

    monkeypatch.setattr(os, "fsync", fsync)
    for module in (commit, checkpoint, chunks):
        if hasattr(module, "fault"):
            monkeypatch.setattr(module, "fault", look)
    made.at_every_operation = checks.append  # type: ignore[attr-defined]
    yield made
    for held in made.held:
        os.close(held)


def state(number: int) -> dict[str, object]:
    return {"weight": torch.full((8,), float(number)), "number": number}


def save_all(root: Path, on_saved: Callable[[int], None]) -> None:
    store = CheckpointStore(root / "checkpoints", CheckpointConfig(keep_last=1, keep_best=1))
    run = RunDirectory(root)
    for number, step in enumerate(STEPS):
        store.save(step, state(number), score=float(number % 3))
        run.write_summary({"number": number})
        on_saved(number)


def check_image(image: Path, done: int) -> None:
    """The newest checkpoint is the one that was saved last, or the one that is being saved."""
    store = CheckpointStore(image / "checkpoints")
    if done >= 0 or store.steps():
        number = store.load("last")[0]["number"]
        assert number in (done, done + 1), (number, done)
    if done >= 0:
        summary = json.loads((image / "summary.json").read_text())
        assert summary["number"] in (done, done + 1)


def test_a_power_loss_at_any_moment_leaves_the_last_checkpoint(disk, tmp_path):
    """Fault matrix, row 3."""
    rng, done, moments = random.Random(0), [-1], [0]

    def check() -> None:
        moments[0] += 1
        for lost in (lambda: True, lambda: False, *[lambda: rng.random() < 0.5] * IMAGES):
            check_image(disk.image(tmp_path / "image", lost), done[0])

    disk.at_every_operation(check)
    save_all(disk.root, lambda number: done.__setitem__(0, number))
    check()
    assert moments[0] > 100


def test_a_kill_at_any_operation_leaves_the_last_checkpoint(disk, tmp_path):
    """Fault matrix, row 2: what the process had written is there, synced or not."""
    done = [-1]

    def check() -> None:
        shutil.rmtree(tmp_path / "image", ignore_errors=True)
        shutil.copytree(disk.root, tmp_path / "image", symlinks=True)
        check_image(tmp_path / "image", done[0])
        CheckpointStore(tmp_path / "image" / "checkpoints").clean()
        check_image(tmp_path / "image", done[0])

    disk.at_every_operation(check)
    save_all(disk.root, lambda number: done.__setitem__(0, number))


def test_the_simulation_finds_a_writer_that_does_not_sync(disk, tmp_path, monkeypatch):
    """Else the tests above would prove nothing."""
    monkeypatch.setattr(commit, "sync_names", lambda folder: None)
    CheckpointStore(disk.root / "checkpoints").save(100, state(0))
    image = disk.image(tmp_path / "image", lambda: True)
    assert CheckpointStore(image / "checkpoints").steps() == []
