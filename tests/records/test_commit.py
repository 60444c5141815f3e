import errno
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_lab.core.errors import UserError
from rl_lab.core.state import differences
from rl_lab.records import commit, faults
from rl_lab.records.commit import (
    CorruptCheckpoint,
    commit_tree,
    encode_manifest,
    make_directory,
    point_link,
    read_manifest,
    read_tree,
    remove,
    sweep,
    verify,
    write_atomically,
)


@pytest.fixture(autouse=True)
def fresh_faults():
    faults.reset()
    yield
    faults.reset()


def some_tree():
    return {
        "weights": torch.randn(3, 4),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 5),
        "scalar": torch.tensor(7),
        "stats": {"mean": np.array([0.1, 0.2]), "count": 12, "frames": np.zeros(3, np.uint8)},
        "rng": {"state": 2**120 + 1, "inc": 3},
        "list": [1, 2.5, None, True, "text", float("inf")],
    }


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_committed_is_read_back_to_the_bit(tmp_path):
    tree = some_tree()
    commit_tree(tmp_path / "a" / "b", tree, manifest={"step": 5, "note": "ü"})
    loaded, manifest = read_tree(tmp_path / "a" / "b")
    assert differences(tree, loaded) == []
    assert (manifest["step"], manifest["note"], manifest["format"]) == (5, "ü", 1)
    assert verify(tmp_path / "a" / "b") == manifest
    assert files_of(tmp_path / "a") == ["b"]
    assert files_of(tmp_path / "a" / "b") == ["manifest.json", "state.json", "state.safetensors"]
    loaded["weights"][0, 0] = 1.0  # memory of its own, not a read-only view of a file
    loaded["stats"]["mean"][0] = 1.0


def test_equal_state_is_equal_bytes(tmp_path):
    tree = some_tree()
    for name in "ab":
        commit_tree(tmp_path / name, tree, manifest={"step": 1})
    for file in files_of(tmp_path / "a"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_every_flipped_bit_is_found(tmp_path):
    path = tmp_path / "c"
    commit_tree(path, some_tree(), manifest={"step": 5, "score": 1.5})
    files = [path / name for name in files_of(path)]
    sizes = [file.stat().st_size for file in files]
    dice = random.Random(0)
    for _ in range(200):
        # Each file gets its share; a manifest is small beside the tensors but matters as much.
        file, size = dice.choice(list(zip(files, sizes, strict=True)))
        good = file.read_bytes()
        place, bit = dice.randrange(size), dice.randrange(8)
        bad = bytearray(good)
        bad[place] ^= 1 << bit
        file.write_bytes(bad)
        with pytest.raises(CorruptCheckpoint, match=file.name):
            read_tree(path)
        with pytest.raises(CorruptCheckpoint, match=file.name):
            verify(path)
        file.write_bytes(good)
    read_tree(path)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "state.safetensors"])
def test_every_truncation_and_addition_is_found(tmp_path, name):
    path = tmp_path / "c"
    commit_tree(path, some_tree(), manifest={"step": 5})
    good = (path / name).read_bytes()
    for length in sorted({len(good) * k // 20 for k in range(20)} | {len(good) - 1}):
        (path / name).write_bytes(good[:length])
        with pytest.raises(CorruptCheckpoint, match=name):
            read_tree(path)
    (path / name).write_bytes(good + b"\n")
    with pytest.raises(CorruptCheckpoint, match=name):
        read_tree(path)
    (path / name).unlink()
    with pytest.raises(CorruptCheckpoint, match=name):
        read_tree(path)


def test_a_manifest_that_lies_is_refused_before_anything_is_allocated(tmp_path):
    path = tmp_path / "c"
    commit_tree(path, {"x": torch.ones(2)}, manifest={})
    honest = read_manifest(path)
    other = honest["files"]["state.json"]
    lies = [
        {**honest, "files": {**honest["files"], "state.json": {"size": 10**15, "crc32": 1}}},
        {**honest, "files": {**honest["files"], "missing.bin": other}},
        {**honest, "files": {**honest["files"], "../c/state.json": other}},
        {**honest, "files": {**honest["files"], "/etc/passwd": other}},
        {**honest, "files": {**honest["files"], "state.json": {"size": "many"}}},
        {**honest, "files": {}},
        {**honest, "files": None},
        {**honest, "format": "one"},
        {key: value for key, value in honest.items() if key != "files"},
    ]
    for lie in lies:
        (path / "manifest.json").write_bytes(encode_manifest(lie))
        with pytest.raises(CorruptCheckpoint, match="c"):
            read_tree(path)


def test_a_file_that_grew_beyond_memory_is_refused_before_it_is_read(tmp_path):
    commit_tree(tmp_path / "c", {"x": 1}, manifest={})
    os.truncate(tmp_path / "c" / "state.json", 2**42)  # sparse: takes no space
    with pytest.raises(CorruptCheckpoint, match=r"state\.json: 4398046511104 bytes"):
        read_tree(tmp_path / "c")


def test_files_with_right_checksums_that_do_not_fit_together(tmp_path):
    skeleton = json.dumps({"x": {"__tensor__": "/y"}}).encode()
    payload = {**commit.encode_tree({"x": torch.ones(2)}), "state.json": skeleton}
    commit.commit_files(tmp_path / "c", payload, manifest={})
    verify(tmp_path / "c")
    with pytest.raises(CorruptCheckpoint, match="fit together"):
        read_tree(tmp_path / "c")
    hostile = {"state.safetensors": b"\x80\x04cos\nsystem\n", "state.json": b"{}"}
    commit.commit_files(tmp_path / "d", hostile, manifest={})
    with pytest.raises(CorruptCheckpoint):
        read_tree(tmp_path / "d")


def test_a_newer_format_is_refused_with_advice(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(commit, "FORMAT", 2)
        commit_tree(tmp_path / "c", {"x": 1}, manifest={})
    with pytest.raises(UserError, match=r"newer rl-lab \(checkpoint format 2.*upgrade"):
        read_tree(tmp_path / "c")


def test_no_permission_is_not_mistaken_for_damage(tmp_path, monkeypatch):
    commit_tree(tmp_path / "c", {"x": 1}, manifest={})

    def refuse(*args):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(commit, "read_bounded", refuse)
    with pytest.raises(PermissionError):
        read_tree(tmp_path / "c")


def test_nothing_is_overwritten_and_reserved_fields_are_ours(tmp_path):
    commit_tree(tmp_path / "c", {"x": 1}, manifest={})
    with pytest.raises(FileExistsError):
        commit_tree(tmp_path / "c", {"x": 2}, manifest={})
    with pytest.raises(ValueError, match="files"):
        commit_tree(tmp_path / "d", {"x": 2}, manifest={"files": {}})
    assert read_tree(tmp_path / "c")[0] == {"x": 1}
    assert files_of(tmp_path) == ["c"]


def test_what_cannot_be_saved_leaves_nothing(tmp_path):
    with pytest.raises(TypeError, match="/x"):
        commit_tree(tmp_path / "c", {"x": object()}, manifest={})
    with pytest.raises(TypeError):
        commit_tree(tmp_path / "c", {"x": 1}, manifest={"bad": object()})
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("point", ["ckpt.after_mkdir", "ckpt.after_write", "ckpt.after_fsync"])
def test_a_full_disk_leaves_no_draft(tmp_path, monkeypatch, point):
    monkeypatch.setenv(faults.VARIABLE, f"{point}:error")
    with pytest.raises(OSError, match="No space left"):
        commit_tree(tmp_path / "c", {"x": torch.ones(2)}, manifest={})
    assert files_of(tmp_path) == []
    commit_tree(tmp_path / "c", {"x": 1}, manifest={})  # space again: it works again


def test_files_then_folder_are_synced_before_the_name_appears(tmp_path, monkeypatch):
    """The order is what survives a power loss; without any one of these syncs it would not."""
    trace: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def spy_fsync(descriptor):
        trace.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name[:5]))
        fsync(descriptor)

    def spy_rename(self, target):
        trace.append(("rename", target.name))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "rename", spy_rename)
    commit_tree(tmp_path / "new" / "c", {"x": torch.ones(2)}, manifest={})
    assert trace == [
        ("sync", tmp_path.name[:5]),  # the new parent folder has a durable name itself
        ("sync", "state"),
        ("sync", "state"),
        ("sync", "manif"),
        ("sync", ".tmp-"),
        ("rename", "c"),
        ("sync", "new"),
    ]
    trace.clear()
    monkeypatch.setattr(Path, "replace", spy_rename)  # of a file: rename overwrites it too
    write_atomically(tmp_path / "new" / "f", b"x")
    assert trace == [("sync", ".tmp-"), ("rename", "f"), ("sync", "new")]


def test_single_files_are_replaced_whole(tmp_path, monkeypatch):
    file = tmp_path / "sub" / "summary.json"
    write_atomically(file, b"old")
    monkeypatch.setenv(faults.VARIABLE, "file.after_write:error")
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert files_of(file.parent) == ["summary.json"]
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"


def test_folders_links_and_litter(tmp_path):
    assert make_directory(tmp_path / "x" / "y")
    assert not make_directory(tmp_path / "x" / "y")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        make_directory(tmp_path / "file" / "y")

    point_link(tmp_path / "latest", "x")
    point_link(tmp_path / "latest", "file")
    assert (tmp_path / "latest").readlink() == Path("file")

    (tmp_path / ".tmp-a").mkdir()
    (tmp_path / ".tmp-a" / "f").write_bytes(b"1")
    (tmp_path / ".del-b").mkdir()
    (tmp_path / ".tmp-c").write_bytes(b"1")
    (tmp_path / ".tmp-d").symlink_to("x")
    (tmp_path / ".bad-e").mkdir()
    sweep(tmp_path)
    assert files_of(tmp_path) == [".bad-e", "file", "latest", "x"]
    remove(tmp_path / "x")
    assert files_of(tmp_path) == [".bad-e", "file", "latest"]
    sweep(tmp_path / "absent")
