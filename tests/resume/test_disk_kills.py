"""A run whose buffer is in files, killed and resumed: the same run, and the same files."""

import os
import signal
import subprocess
import sys

import pytest
from killing import CHILD, only_run

from tiny_runs import run_hash

RUN = [
    "CartPole-v1:dqn",
    "buffers={replay: {type: disk, folder: data, capacity: 150, segment: 700}}",
    "environment.num_envs=2",
    "training.total_timesteps=320",
    "checkpoint.every_steps=96",
    "evaluation.every_steps=0",
    "evaluation.test_episodes=0",
    "algorithm.learning_starts=32",
    "algorithm.batch_size=16",
    "algorithm.replay_ratio=0.25",
    "algorithm.train_every=1",
    "algorithm.n_step=3",
]


def child(root, *words, kill=None):
    """One process in a folder of its own, killed at a hook if asked to; its exit code."""
    root.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHILD.parent.parent / "support"),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("RL_LAB_FAULT", None)
    if kill is not None:
        environment["RL_LAB_FAULT"] = f"hook.after:kill@{kill}"
    command = [sys.executable, str(CHILD), str(root / "runs"), *words]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
def test_a_killed_run_has_the_same_files(tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert child(straight, "train", *RUN) == 0
    assert child(killed, "train", *RUN, kill=250) == -signal.SIGKILL  # checkpoint at 96 and 192
    before = sorted((killed / "data").iterdir())
    assert child(killed, "resume", "@last", kill=3) == -signal.SIGKILL  # the same checkpoint again
    assert child(killed, "resume", "@last") == 0
    files = {path.name: path.read_bytes() for path in (straight / "data").iterdir()}
    assert {path.name: path.read_bytes() for path in (killed / "data").iterdir()} == files
    assert len(files) > len(before) > 10
    assert run_hash(only_run(straight / "runs")) == run_hash(only_run(killed / "runs"))
