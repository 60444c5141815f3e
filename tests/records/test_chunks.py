"""Checkpoints of logs: what is written, what is read, what is thrown away."""

import os
import random
import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from growing_rows import Rows
from rl_lab.core.chunks import Chunk, Log
from rl_lab.core.errors import UserError
from rl_lab.core.schema import CheckpointConfig
from rl_lab.core.state import differences, fingerprint, join, split
from rl_lab.records import chunks as chunk_files
from rl_lab.records import faults
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import MANIFEST, encode_manifest, read_manifest


@pytest.fixture(autouse=True)
def fresh_faults():
    faults.reset()
    yield
    faults.reset()


def make(folder, **options):
    said: list[str] = []
    store = CheckpointStore(folder, CheckpointConfig(**options), on_skip=said.append)
    return store, said


def save(store, step, buffer, **more):
    return store.save(step, {"weight": torch.ones(3), "buffer": buffer.state_dict()}, **more)


def files(folder):
    """Every chunk file with what makes it another one when it is written again."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in (folder / "chunks").glob("*")
    }


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def rewards(log):
    return log.read()["reward"].tolist()


def flip(path, place=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


# -- trees ----------------------------------------------------------------------------------------


def pieces(*cuts, first=0, salt=0):
    maker = Rows(salt=salt)
    chunks = [Chunk(a, b - a, maker.columns(a, b)) for a, b in pairwise(cuts)]
    return {"log": Log(chunks, first), "n": 1}


def test_equal_rows_are_equal_however_they_were_sealed():
    whole = pieces(2, 9, first=4)
    assert fingerprint(whole) == fingerprint(pieces(0, 3, 4, 9, first=4))
    assert differences(whole, pieces(3, 5, 9, first=4)) == []
    for other in (pieces(2, 9, first=5), pieces(2, 8, first=4), pieces(2, 9, first=4, salt=1)):
        assert fingerprint(whole) != fingerprint(other)
        assert differences(whole, other) == ["/log"]


def test_a_log_in_memory_goes_through_split_and_join():
    again = join(*split(pieces(0, 3, 9, first=4)))["log"]
    assert rewards(again) == [2.0, 2.5, 3.0, 3.5, 4.0]  # rows 4 to 8, halved
    assert (again.first, again.chunks[0].first, again.chunks[0].count) == (4, 4, 5)
    empty = join(*split({"log": Log([], 7)}))["log"]
    assert (empty.first, empty.chunks, empty.read()) == (7, [], {})


# -- what is written ------------------------------------------------------------------------------


def test_a_save_writes_what_is_new_and_nothing_else(tmp_path):
    store, _ = make(tmp_path, keep_last=100, keep_best=0)
    buffer = Rows(width=1000)
    new = 1008 * 1000  # bytes of a thousand rows: 1000 bytes of obs, 8 of reward
    before, index = 0, []
    for step in range(1, 6):
        buffer.add(1000)
        path = save(store, step, buffer)
        written, before = size(tmp_path) - before, size(tmp_path)
        index.append(size(path))
        assert new <= written - index[-1] <= 1.001 * new
    assert index[0] < 4000 and max(index) - min(index) < 2000  # a line or two per chunk
    assert [int(name.split("-")[0]) for name in sorted(files(tmp_path))] == [
        0,
        1000,
        2000,
        3000,
        4000,
    ]


def test_a_save_without_new_rows_writes_no_chunk(tmp_path):
    store, _ = make(tmp_path)
    buffer = Rows()
    buffer.add(5)
    save(store, 1, buffer)
    before = files(tmp_path)
    save(store, 1, buffer)  # the same step again
    save(store, 2, buffer)
    assert files(tmp_path) == before and len(before) == 1
    assert rewards(store.load()[0]["buffer"]["log"]) == [0, 0.5, 1, 1.5, 2]


def test_memory_lets_go_of_what_is_on_disk(tmp_path):
    store, _ = make(tmp_path)
    buffer = Rows()
    buffer.add(5)
    save(store, 1, buffer)
    (chunk,) = buffer.chunks
    assert chunk.columns is None and chunk.name in files(tmp_path)
    assert chunk.read()["reward"].tolist() == [0, 0.5, 1, 1.5, 2]


def test_a_file_with_the_same_content_is_taken_and_another_one_is_not(tmp_path):
    store, _ = make(tmp_path)
    for salt in (0, 0):
        buffer = Rows(salt=salt)
        buffer.add(5)
        save(store, 1, buffer)
    (name,) = files(tmp_path)
    flip(tmp_path / "chunks" / name)
    buffer = Rows()
    buffer.add(5)
    save(store, 2, buffer)  # not trusted: it is written again, beside the damaged one
    assert sorted(files(tmp_path)) == sorted([name, name.replace(".", "-1.")])
    assert rewards(store.load()[0]["buffer"]["log"]) == [0, 0.5, 1, 1.5, 2]


def test_a_chunk_of_another_run_is_copied(tmp_path):
    buffer = Rows()
    buffer.add(3)
    save(make(tmp_path / "a")[0], 1, buffer)
    state = make(tmp_path / "a")[0].load()[0]
    store, _ = make(tmp_path / "b")
    store.save(1, state)
    shutil.rmtree(tmp_path / "a")
    assert rewards(store.load()[0]["buffer"]["log"]) == [0, 0.5, 1]


def test_a_run_folder_can_be_moved(tmp_path):
    buffer = Rows()
    for step in (1, 2):
        buffer.add(3)
        save(make(tmp_path / "a")[0], step, buffer)
    (tmp_path / "a").rename(tmp_path / "b")
    store, said = make(tmp_path / "b")
    moved = Rows()
    moved.load_state_dict(store.load()[0]["buffer"])
    before = files(tmp_path / "b")
    moved.add(1)
    save(store, 3, moved)
    assert rewards(store.load()[0]["buffer"]["log"]) == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert len(files(tmp_path / "b")) == 3 and before.items() <= files(tmp_path / "b").items()
    assert said == []


# -- what is thrown away --------------------------------------------------------------------------


def test_chunks_live_as_long_as_a_checkpoint_that_names_them(tmp_path):
    store, _ = make(tmp_path, keep_last=1, keep_best=1)
    buffer = Rows(keep=4)
    for step in range(1, 6):
        buffer.add(2)
        save(store, step, buffer, score=9.0 if step == 2 else 0.0)
    # The best, step 2, has rows 0 to 3; the last, step 5, rows 6 to 9.
    assert [int(name.split("-")[0]) for name in sorted(files(tmp_path))] == [0, 2, 6, 8]
    assert rewards(store.load("best")[0]["buffer"]["log"]) == [0, 0.5, 1, 1.5]
    assert rewards(store.load()[0]["buffer"]["log"]) == [3, 3.5, 4, 4.5]


def test_nothing_is_thrown_away_while_a_manifest_cannot_be_read(tmp_path):
    store, said = make(tmp_path, keep_last=1, keep_best=0)
    buffer = Rows(keep=2)
    buffer.add(2)
    flip(save(store, 1, buffer) / MANIFEST)
    for step in (2, 3):
        buffer.add(2)
        save(store, step, buffer)
    assert len(files(tmp_path)) == 3
    shutil.rmtree(tmp_path / "step_000000000001")
    store.clean()
    assert [name.split("-")[0] for name in files(tmp_path)] == ["000000000004"]
    assert said == []


def test_litter_of_a_killed_writer_goes(tmp_path):
    store, _ = make(tmp_path)
    buffer = Rows()
    buffer.add(2)
    save(store, 1, buffer)
    before = files(tmp_path)
    for name in ("000000000002-5-00000000.safetensors", ".tmp-000000000002-x"):
        (tmp_path / "chunks" / name).write_bytes(b"half of it")
    store.clean()
    assert files(tmp_path) == before


def test_after_a_rewind_other_rows_have_the_same_numbers(tmp_path):
    store, _ = make(tmp_path, keep_last=5)
    buffer = Rows()
    for step in (1, 2, 3):
        buffer.add(2)
        save(store, step, buffer)
    again = Rows(salt=100)
    again.load_state_dict(store.load(1)[0]["buffer"])
    store.rewind(1)
    assert len(files(tmp_path)) == 1
    for step in (2, 3):
        again.add(2)
        save(store, step, again)
    assert rewards(store.load()[0]["buffer"]["log"]) == [0, 0.5, 101, 101.5, 102, 102.5]
    assert rewards(store.load(2)[0]["buffer"]["log"]) == [0, 0.5, 101, 101.5]


# -- damage ---------------------------------------------------------------------------------------


def three(tmp_path):
    """Three checkpoints: the chunk of step n is named by n and all later ones."""
    store, said = make(tmp_path, keep_last=5)
    buffer = Rows()
    paths = []
    for step in (1, 2, 3):
        buffer.add(2)
        save(store, step, buffer)
        (name,) = set(files(tmp_path)) - {path.name for path in paths}
        paths.append(tmp_path / "chunks" / name)
    return store, said, paths


def test_any_damage_to_a_chunk_is_found_and_the_older_checkpoint_loads(tmp_path):
    store, said, paths = three(tmp_path)
    good, dice = paths[2].read_bytes(), random.Random(0)
    ways = [partial(flip, paths[2], dice.randrange(len(good))) for _ in range(30)]
    ways += [paths[2].unlink, lambda: paths[2].write_bytes(good[:-1])]
    ways += [lambda: paths[2].write_bytes(good + b"x"), lambda: paths[2].write_bytes(b"")]
    for harm in ways:
        harm()
        with pytest.raises(UserError, match=rf"checkpoint 3 is damaged: .*{paths[2].name}"):
            store.load(3)
        paths[2].write_bytes(good)
    store.load(3)
    flip(paths[2])
    state, manifest, _ = store.load()
    assert manifest["step"] == 2 and rewards(state["buffer"]["log"]) == [0, 0.5, 1, 1.5]
    assert len(said) == 1 and paths[2].name in said[0]


def test_quarantine_leaves_the_chunks_that_others_need(tmp_path):
    store, said, paths = three(tmp_path)
    flip(paths[2])
    state = store.load()[0]
    buffer = Rows()
    buffer.load_state_dict(state["buffer"])
    buffer.add(2)
    save(store, 4, buffer)  # of the damaged one, only what nobody else names is gone
    assert paths[0].exists() and paths[1].exists()
    assert rewards(store.load()[0]["buffer"]["log"]) == [0, 0.5, 1, 1.5, 2, 2.5]
    assert len(said) == 1


def test_a_chunk_that_all_checkpoints_need_takes_them_all(tmp_path):
    store, said, paths = three(tmp_path)
    paths[0].unlink()
    with pytest.raises(UserError, match="all of them are damaged"):
        store.load()
    assert len(said) == 3


def test_a_policy_needs_no_chunk(tmp_path):
    store, said, _ = three(tmp_path)
    shutil.rmtree(tmp_path / "chunks")
    state, manifest, _ = store.load("last", rows=False)
    assert manifest["step"] == 3 and state["weight"].tolist() == [1, 1, 1]
    assert said == []


def test_rows_are_read_only_when_they_are_wanted(tmp_path, monkeypatch):
    store, _, paths = three(tmp_path)
    read = []
    real = chunk_files.read_verified
    monkeypatch.setattr(
        chunk_files, "read_verified", lambda path, entry: read.append(path) or real(path, entry)
    )
    log = store.load()[0]["buffer"]["log"]
    assert read == []
    log.chunks[1].read()
    assert read == [paths[1]]


def test_a_manifest_that_names_a_chunk_elsewhere_is_refused(tmp_path):
    store, _, paths = three(tmp_path)
    folder = tmp_path / "step_000000000003"
    honest = read_manifest(folder)
    entry = honest["chunks"][paths[2].name]
    for lie in (
        {**honest["chunks"], "../chunks/x": entry},
        {**honest["chunks"], paths[2].name: {"size": 10**15, "crc32": 1}},
        {**honest["chunks"], paths[2].name: {"size": "many"}},
        {name: each for name, each in honest["chunks"].items() if name != paths[2].name},
        None,
        [],
    ):
        (folder / MANIFEST).write_bytes(encode_manifest({**honest, "chunks": lie}))
        with pytest.raises(UserError, match="checkpoint 3 is damaged"):
            store.load(3)


# -- a full disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["chunk.after_write", "chunk.after_folder_fsync"])
def test_a_full_disk_loses_no_row_and_gets_no_fuller(tmp_path, monkeypatch, point):
    store, _ = make(tmp_path)
    buffer = Rows()
    buffer.add(2)
    save(store, 1, buffer)
    before = size(tmp_path)
    monkeypatch.setenv(faults.VARIABLE, f"{point}:error")
    buffer.add(2)
    with pytest.raises(OSError, match="No space left"):
        save(store, 2, buffer)
    assert size(tmp_path) == before
    assert buffer.chunks[-1].columns is not None
    buffer.add(2)
    save(store, 3, buffer)
    assert rewards(store.load()[0]["buffer"]["log"]) == [0, 0.5, 1, 1.5, 2, 2.5]
    assert len(files(tmp_path)) == 2


def test_a_checkpoint_that_fails_after_its_chunks_uses_them_next_time(tmp_path, monkeypatch):
    store, _ = make(tmp_path)
    buffer = Rows()
    buffer.add(2)
    monkeypatch.setenv(faults.VARIABLE, "ckpt.after_write:error")
    with pytest.raises(OSError, match="No space left"):
        save(store, 1, buffer)
    before = files(tmp_path)
    save(store, 2, buffer)
    assert files(tmp_path) == before and store.steps() == [2]
    assert rewards(store.load()[0]["buffer"]["log"]) == [0, 0.5]


def test_a_chunk_that_somebody_deleted_is_not_named_again(tmp_path):
    store, _ = make(tmp_path)
    buffer = Rows()
    buffer.add(2)
    save(store, 1, buffer)
    shutil.rmtree(tmp_path / "chunks")
    with pytest.raises(FileNotFoundError, match="a chunk of a buffer was deleted"):
        save(store, 2, buffer)
    assert store.steps() == [1]


def test_the_names_of_chunks_are_durable_before_the_checkpoint_begins(tmp_path, monkeypatch):
    trace: list[tuple[str, str]] = []
    fsync, replace, mkdir = os.fsync, Path.replace, Path.mkdir

    def spy_fsync(descriptor):
        trace.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name[:7]))
        fsync(descriptor)

    def spy_replace(self, target):
        trace.append(("rename", Path(target).name[:12]))
        return replace(self, target)

    def spy_mkdir(self, *args, **more):
        trace.append(("mkdir", self.name[:9]))
        return mkdir(self, *args, **more)

    store, _ = make(tmp_path)
    buffer = Rows()
    buffer.add(2)
    save(store, 1, buffer)
    state = {"one": buffer.state_dict(), "two": pieces(3, 5, 6)["log"]}
    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    monkeypatch.setattr(Path, "mkdir", spy_mkdir)
    store.save(2, state)
    assert trace[:6] == [
        ("sync", ".tmp-00"),
        ("rename", "000000000003"),
        ("sync", ".tmp-00"),
        ("rename", "000000000005"),
        ("sync", "chunks"),  # once
        ("mkdir", ".tmp-step"),
    ]


def test_the_end_of_a_checkpoint_is_durable_before_its_chunks_go(tmp_path, monkeypatch):
    """Otherwise a power loss could bring it back without them."""
    trace: list[str] = []
    fsync, unlink = os.fsync, Path.unlink

    def spy_fsync(descriptor):
        trace.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def spy_unlink(self, **more):
        trace.append(f"unlink {self.name[:12]}")
        unlink(self, **more)

    store, _, _ = three(tmp_path)
    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "unlink", spy_unlink)
    store.rewind(1)
    deleted = [index for index, each in enumerate(trace) if each.startswith("unlink 0")]
    assert len(deleted) == 2 and tmp_path.name in trace[: deleted[0]]
