"""SIGKILL inside checkpoint writes: at random moments, and at every named point.

The work is done in one child interpreter that forks its victims (this file, run as a program):
a fresh interpreter for each kill would spend all its time importing.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from growing_rows import Rows
from rl_lab.core.errors import UserError
from rl_lab.core.schema import CheckpointConfig
from rl_lab.records import faults
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import read_manifest

TESTS = str(Path(__file__).parents[1] / "support")
KILLS = 100
MEMORY = (
    "/dev/shm" if Path("/dev/shm").is_dir() else None
)  # a kill, unlike a power loss, needs no disk
KEEP = CheckpointConfig(keep_last=1, keep_best=1)
# (step, score, content): the best is the first, so retention wants to throw it away at every save.
SCENARIO = [(100, 9.0, 1), (200, 1.0, 2), (200, 2.0, 3), (300, None, 4), (400, 3.0, 5)]


KEPT = 5  # rows: of the scenario's saves, the first ones have chunks that later ones let go of


def tree(content, rows, size=64):
    rows.add(2)
    return {
        "weight": torch.full((size,), float(content)),
        "content": content,
        "buffer": rows.state_dict(),
    }


def check(directory, *, acked, best):
    """Whatever happened: it loads, is whole, not older than acknowledged, and the best is there."""
    skipped: list[str] = []
    store = CheckpointStore(directory, KEEP, on_skip=skipped.append)
    try:
        state, manifest, _ = store.load()
    except UserError:
        assert acked is None, f"nothing loads, but {acked} was acknowledged"
        return
    assert skipped == [], skipped
    assert torch.equal(state["weight"], torch.full_like(state["weight"], float(state["content"])))
    check_rows(state["buffer"])
    if acked is not None:
        found = (manifest["step"], state["content"])
        assert found >= acked, f"found {found}, but {acked} was acknowledged"
    if best is not None:
        state, manifest, _ = store.load("best")
        assert manifest["score"] >= best
        check_rows(state["buffer"])
    named = {name for path in directory.glob("step_*") for name in chunks_of(path)}
    assert named <= {path.name for path in (directory / "chunks").iterdir()}


def check_rows(buffer):
    """The newest rows of all that were ever added: none lost, none twice."""
    total = buffer["total"]
    expected = [row / 2 for row in range(max(total - KEPT, 0), total)]
    assert buffer["log"].read()["reward"].tolist() == expected


def chunks_of(path):
    return read_manifest(path)["chunks"]


def returned(directory):
    """The buffer of the newest checkpoint, or an empty one."""
    rows, store = Rows(KEPT), CheckpointStore(directory, KEEP)
    if store.steps():
        rows.load_state_dict(store.load()[0]["buffer"])
    return rows


def victim(work):
    """Run `work(acknowledge)` in a fork; its pid and the pipe with what it acknowledged."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(lambda *facts: os.write(writer, json.dumps(facts).encode() + b"\n"))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    return pid, reader


def acknowledged(reader):
    with os.fdopen(reader, "rb") as pipe:
        return [json.loads(line) for line in pipe.read().splitlines()]


def random_kills(directory):
    dice = random.Random(0)
    acked, best, litter = None, None, 0
    for kill in range(KILLS):
        begin, rows = acked[0] if acked else 0, returned(directory)

        def work(acknowledge, begin=begin, rows=rows):
            store = CheckpointStore(directory, KEEP)
            store.clean()
            for step in range(begin + 1, begin + 10_000):
                score = float(step * 7919 % 1009)
                store.save(step, tree(2 * step, rows, 20_000))
                acknowledge(step, 2 * step, None)
                store.save(step, tree(2 * step + 1, rows, 20_000), score=score)
                acknowledge(step, 2 * step + 1, score)

        pid, reader = victim(work)
        if kill % 2:  # however slow the machine is: half of them have saved something
            select.select([reader], [], [])
        time.sleep(dice.uniform(0.0, 0.12))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for step, content, score in acknowledged(reader):
            acked = (step, content)
            best = best if score is None else max(best or 0.0, score)
        litter += any(directory.rglob(".*")) if directory.exists() else 0
        check(directory, acked=acked, best=best)
    return {"acked": acked, "litter": litter}


def scenario(directory, acknowledge):
    store, rows = CheckpointStore(directory, KEEP), Rows(KEPT)
    for step, score, content in SCENARIO:
        store.save(step, tree(content, rows), score=score)
        acknowledge(step, content, score)


def every_point(action):
    """Strike at each occurrence of each point that the scenario passes."""
    os.environ[faults.VARIABLE] = "none:kill"
    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
        scenario(Path(scratch), lambda *facts: None)
    passed = dict(faults._reached)
    struck = 0
    for point, count in sorted(passed.items()):
        for occurrence in range(1, count + 1):
            with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
                strike(Path(scratch), action, f"{point}:{action}@{occurrence}")
            struck += 1
    return {"struck": struck, "points": sorted(passed)}


def strike(directory, action, plan):
    faults.reset()
    os.environ[faults.VARIABLE] = plan
    pid, reader = victim(lambda acknowledge: scenario(directory, acknowledge))
    _, status = os.waitpid(pid, 0)
    if action == "kill":
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, plan
    os.environ[faults.VARIABLE] = "none:kill"
    facts = acknowledged(reader)
    acked = tuple(facts[-1][:2]) if facts else None
    best = 9.0 if facts else None
    check(directory, acked=acked, best=best)
    if action == "error":  # an error, unlike a kill, cleans up behind itself
        assert not list(directory.rglob(".tmp-*")), plan
    store = CheckpointStore(directory, KEEP)
    store.clean()
    check(directory, acked=acked, best=best)
    assert not list(directory.rglob(".*")), plan
    assert not list(directory.glob("*.new")), plan
    store.save(500, tree(6, returned(directory)))  # and the run goes on
    check(directory, acked=(500, 6), best=best)
    named = {name for path in directory.glob("step_*") for name in chunks_of(path)}
    assert named == {path.name for path in (directory / "chunks").iterdir()}, plan
    assert len(store.steps()) <= 2, plan


def run_as_program(directory, mode):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": TESTS}
    environment.pop(faults.VARIABLE, None)
    done = subprocess.run(
        [sys.executable, __file__, mode, str(directory)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_hundred_kills_at_random_moments_lose_nothing(tmp_path):
    result = run_as_program(tmp_path / "checkpoints", "random")
    assert result["acked"][0] > 20  # it got somewhere
    assert result["litter"] > KILLS // 4  # and the kills fell within writes


@pytest.mark.parametrize("action", ["kill", "error"])
def test_a_strike_at_every_point_loses_nothing(tmp_path, action):
    result = run_as_program(tmp_path, action)
    assert {
        "ckpt.before_mkdir", "ckpt.after_mkdir", "ckpt.after_write", "ckpt.after_fsync",
        "ckpt.after_folder_fsync", "ckpt.after_rename", "ckpt.after_parent_fsync",
        "ckpt.before_retention", "ckpt.after_doom", "ckpt.after_delete", "ckpt.before_settle",
        "ckpt.after_move", "ckpt.after_symlink", "ckpt.after_link",
        "chunk.after_write", "chunk.after_fsync", "chunk.after_rename",
        "chunk.after_folder_fsync", "chunk.after_delete",
    } <= set(result["points"])  # fmt: skip
    assert result["struck"] > 60


if __name__ == "__main__":
    mode, where = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(random_kills(where) if mode == "random" else every_point(mode)))
