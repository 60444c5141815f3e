"""Runs in processes of their own that are killed and resumed, against the run that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from rl_lab.records.run_directory import RunDirectory, list_runs
from tiny_runs import run_hash

CHILD = Path(__file__).with_name("run_child.py")
# Killed at the n-th hook. The second and third come before a new checkpoint is written: a double
# kill, from which the run must return to the same checkpoint twice.
KILLS = (11, 1, 9)


def child(root: Path, *words: str, kill: int | None = None) -> int:
    """One process, killed at a hook if asked to; its exit code."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHILD.parent.parent / "support"),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("RL_LAB_FAULT", None)
    if kill is not None:
        environment["RL_LAB_FAULT"] = f"hook.after:kill@{kill}"
    command = [sys.executable, str(CHILD), str(root), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def only_run(root: Path) -> RunDirectory:
    """The run of a folder that has one."""
    (run,) = list_runs(root)
    return run


def check_killed(tmp_path: Path, *words: str, kills: tuple[int, ...] = KILLS) -> None:
    """Interrupted equals uninterrupted: all state, and the bytes of metrics.jsonl."""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert child(straight, "train", *words) == 0
    assert child(killed, "train", *words, kill=kills[0]) == -signal.SIGKILL
    for kill in kills[1:]:
        assert child(killed, "resume", "@last", kill=kill) == -signal.SIGKILL
    assert child(killed, "resume", "@last") == 0
    assert run_hash(only_run(straight)) == run_hash(only_run(killed))
    assert only_run(killed).read_summary()["resumes"] == len(kills) - 1  # the double kill
