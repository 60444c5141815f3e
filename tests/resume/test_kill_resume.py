"""Interrupted equals uninterrupted, bit for bit, after real SIGKILLs in real processes."""

import itertools
from pathlib import Path

import pytest
from killing import check_killed

ENVS = ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1")
MEMORIES = ("none", "gru")
COMPILE = ("off", "on")
DIAGONAL = [
    ("CartPole-v1", "none", "on"),
    ("Pendulum-v1", "gru", "off"),
    ("FrozenLake-v1", "none", "off"),
]
REST = [each for each in itertools.product(ENVS, MEMORIES, COMPILE) if each not in DIAGONAL]


def check(tmp_path: Path, env: str, memory: str, compile: str) -> None:
    words = [f"{env}:ppo_{memory}_defaults", f"compute.compile={compile}"]
    words += ["algorithm.minibatches=2"]
    if env == "Pendulum-v1":
        words += ["environment.normalize_obs=true", "environment.normalize_reward=true"]
    check_killed(tmp_path, *words)


@pytest.mark.parametrize(("env", "memory", "compile"), DIAGONAL)
def test_killed_three_times(tmp_path, env, memory, compile):
    check(tmp_path, env, memory, compile)


@pytest.mark.slow
@pytest.mark.parametrize(("env", "memory", "compile"), REST)
def test_killed_three_times_everywhere(tmp_path, env, memory, compile):
    check(tmp_path, env, memory, compile)


@pytest.mark.parametrize(
    "memory",
    [
        "gtrxl",
        "mamba2",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "trxl", "mamba")),
    ],
)
def test_a_memory_goes_on_in_mid_episode(tmp_path, memory):
    """Pendulum's episodes are longer than a rollout: the state before it is in the checkpoint."""
    check(tmp_path, "Pendulum-v1", memory, "off")
