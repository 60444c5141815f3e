"""Disks that fail, are slow, or run out of names; clocks that go back; and what days would leak."""

import errno
import gc
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.metrics import read_metrics
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_orchestrator, tiny_run


def state(number: int) -> dict[str, object]:
    return {"weight": torch.full((8,), float(number)), "number": number}


@pytest.mark.parametrize("name", ["EIO", "EDQUOT", "ENOSPC"])
def test_a_save_that_fails_keeps_the_checkpoint_before_it(tmp_path, monkeypatch, name):
    """Fault matrix, row 8: what an fsync refused is written again as a whole, never trusted."""
    store, real = CheckpointStore(tmp_path), os.fsync
    store.save(100, state(1))
    for place in range(1, 20):  # the first fsync fails, then the second, …
        calls = 0

        def fail(descriptor: int, place: int = place) -> None:
            nonlocal calls
            calls += 1
            if calls == place:
                raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            try:
                store.save(100 + place, state(place))
            except OSError as error:
                assert error.errno == getattr(errno, name)
        assert store.load("last")[0]["number"] in (place, max(place - 1, 1))
        assert not list(tmp_path.glob(".tmp-*"))
        store.save(100 + place, state(place))
        assert store.load("last")[0]["number"] == place
        if calls < place:
            break
    assert 3 < place < 19  # every fsync of a save has failed once


def test_a_disk_without_inodes_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    """Fault matrix, row 8: no name can be made, neither of a folder nor of a file."""
    store = CheckpointStore(tmp_path)
    store.save(100, state(1))

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for method in ("mkdir", "symlink_to", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, full)
            try:
                store.save(200, state(2))
            except OSError as error:
                assert error.errno == errno.ENOSPC
        assert store.load("last")[0]["number"] in (1, 2)
        assert not list(tmp_path.glob(".tmp-*"))
    store.save(200, state(2))
    assert store.load("last")[0]["number"] == 2


def test_a_run_goes_on_after_an_input_output_error(tmp_path, monkeypatch):
    """Fault matrix, row 8: it says so, and its later checkpoints are what they would have been."""
    straight = tiny_run(tmp_path / "a").run
    real, calls = os.fsync, 0

    def fail(descriptor: int) -> None:
        nonlocal calls
        calls += Path(f"/proc/self/fd/{descriptor}").readlink().name == "state.safetensors"
        if calls == 2:
            calls += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    other = tiny_run(tmp_path / "b").run
    assert "failed: [Errno 5] Input/output error" in other.log_file.read_text()
    assert run_hash(other) == run_hash(straight)


def test_a_slow_disk_costs_its_time_and_nothing_else(tmp_path, monkeypatch):
    """Fault matrix, row 43: a save has few fsyncs, as many the tenth time as the first."""
    straight = tiny_run(tmp_path / "a").run
    real, calls = os.fsync, 0

    def slow(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.002)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    other = tiny_run(tmp_path / "b").run
    assert run_hash(other) == run_hash(straight)
    run = tiny_orchestrator(tmp_path / "c")
    counts = []
    for _ in range(10):
        before = calls
        run.counters.env_steps += 4
        assert run.save()
        counts.append(calls - before)
    assert run.seconds["checkpoint"] >= 0.002 * counts[-1]  # told in timing.jsonl
    run.close()
    assert max(counts[1:]) == min(counts[1:]) <= 6, counts


def test_a_clock_that_goes_back_changes_nothing(tmp_path, monkeypatch):
    """Fault matrix, row 32: durations are monotonic, checkpoints are ordered by their step."""
    straight = tiny_run(tmp_path / "a").run
    moment, real = [time.time()], time.gmtime

    def earlier() -> float:
        moment[0] -= 3_600
        return moment[0]

    monkeypatch.setattr(time, "time", earlier)
    monkeypatch.setattr(time, "gmtime", lambda *args: real(*(args or (earlier(),))))
    other = tiny_run(tmp_path / "b").run
    for step in CheckpointStore(other.checkpoints).steps():
        os.utime(other.checkpoints / f"step_{step:012d}", (2e9 - step, 2e9 - step))
    assert CheckpointStore(other.checkpoints).load("last")[1]["step"] == 1024
    resume(f"{other.path}:256", root=tmp_path / "b")
    assert run_hash(other) == run_hash(straight)
    assert other.read_summary()["wall_time"] > 0
    rows = read_metrics(other.timing_file)
    assert all(value >= 0 for row in rows for name, value in row.items() if "time/" in name)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_evaluations_and_saves_leak_nothing(tmp_path):
    """Fault matrix, row 44: descriptors, threads and memory stay where they were."""
    run = tiny_orchestrator(tmp_path, "CartPole-v1:ppo_defaults", "logging.tensorboard=true")

    def cycles(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            run.measure()
            run.write_row()
            run.counters.env_steps += 4
            run.save()
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), resident()

    cycles(20)  # imports, caches
    descriptors, threads, before = cycles(20)
    found = cycles(100)
    run.close()
    assert found[:2] == (descriptors, threads)
    assert found[2] - before < 4_000_000  # 100 leaked states would be more
