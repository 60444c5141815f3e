"""Runs on C simulators, killed and resumed in other processes, end like uninterrupted ones."""

import signal
from pathlib import Path

import pytest
from killing import child, only_run

from extras import installed_case
from rl_lab.core.state import differences
from tiny_runs import final_state, run_hash

SMALLER = [
    "training.total_timesteps=256",
    "environment.num_envs=2",
    "algorithm.minibatches=2",
    "checkpoint.every_steps=64",
    "evaluation.every_steps=128",
    "evaluation.test_episodes=0",
]
KILLS = (5, 2)  # at the n-th hook: in the middle, and again before a new checkpoint
IDS = [
    ("HalfCheetah-v5", "E0"),
    ("LunarLander-v3", "E1"),
    ("BipedalWalker-v3", "E1"),
    ("Ant-v5", "E0"),
    ("dm_control/cartpole-balance", "E0"),
]


def check(tmp_path: Path, id: str, level: str, vectorization: str) -> None:
    words = [f"{id}:ppo_defaults", *SMALLER, f"environment.vectorization={vectorization}"]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert child(straight, "train", *words) == 0
    assert child(killed, "train", *words, kill=KILLS[0]) == -signal.SIGKILL
    assert child(killed, "resume", "@last", kill=KILLS[1]) == -signal.SIGKILL
    assert child(killed, "resume", "@last") == 0
    one, other = only_run(straight), only_run(killed)
    assert run_hash(one) == run_hash(other), differences(final_state(one), final_state(other))
    assert one.read_summary()["snapshot_level"] == level
    assert other.read_summary()["resume_exact"] is True


@pytest.mark.parametrize(
    ("id", "level", "vectorization"),
    [
        installed_case(*IDS[0], "sync"),
        installed_case(*IDS[1], "process"),
        installed_case(*IDS[2], "sync"),
        installed_case(*IDS[4], "process"),
    ],
)
def test_killed_twice(tmp_path: Path, id: str, level: str, vectorization: str) -> None:
    check(tmp_path, id, level, vectorization)


@pytest.mark.slow
@pytest.mark.parametrize("vectorization", ["sync", "process"])
@pytest.mark.parametrize(("id", "level"), [installed_case(*each) for each in IDS])
def test_killed_twice_everywhere(tmp_path: Path, id: str, level: str, vectorization: str) -> None:
    check(tmp_path, id, level, vectorization)
