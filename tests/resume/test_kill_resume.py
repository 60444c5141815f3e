"""Interrupted equals uninterrupted, bit for bit, after real SIGKILLs in real processes."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_lab.records.run_directory import RunDirectory, list_runs
from tiny_runs import run_hash

CHILD = Path(__file__).with_name("run_child.py")
ENVS = ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1")
MEMORIES = ("none", "gru")
COMPILE = ("off", "on")
DIAGONAL = [
    ("CartPole-v1", "none", "on"),
    ("Pendulum-v1", "gru", "off"),
    ("FrozenLake-v1", "none", "off"),
]
REST = [each for each in itertools.product(ENVS, MEMORIES, COMPILE) if each not in DIAGONAL]
# Killed at the n-th hook. The second and third come before a new checkpoint is written: a double
# kill, from which the run must return to the same checkpoint twice.
KILLS = (11, 1, 9)


def child(root: Path, *words: str, kill: int | None = None) -> int:
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parent.parent), "OMP_NUM_THREADS": "1"}
    environment.pop("RL_LAB_FAULT", None)
    if kill is not None:
        environment["RL_LAB_FAULT"] = f"hook.after:kill@{kill}"
    command = [sys.executable, str(CHILD), str(root), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def only_run(root: Path) -> RunDirectory:
    (run,) = list_runs(root)
    return run


def check(tmp_path: Path, env: str, memory: str, compile: str) -> None:
    words = [f"{env}:ppo_{memory}", f"compute.compile={compile}", "algorithm.minibatches=2"]
    if env == "Pendulum-v1":
        words += ["environment.normalize_obs=true", "environment.normalize_reward=true"]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert child(straight, "train", *words) == 0
    assert child(killed, "train", *words, kill=KILLS[0]) == -signal.SIGKILL
    for kill in KILLS[1:]:
        assert child(killed, "resume", "@last", kill=kill) == -signal.SIGKILL
    assert child(killed, "resume", "@last") == 0
    assert run_hash(only_run(straight)) == run_hash(only_run(killed))
    assert only_run(killed).read_summary()["resumes"] == 3 - 1  # the double kill was not saved


@pytest.mark.parametrize(("env", "memory", "compile"), DIAGONAL)
def test_killed_three_times(tmp_path, env, memory, compile):
    check(tmp_path, env, memory, compile)


@pytest.mark.slow
@pytest.mark.parametrize(("env", "memory", "compile"), REST)
def test_killed_three_times_everywhere(tmp_path, env, memory, compile):
    check(tmp_path, env, memory, compile)
