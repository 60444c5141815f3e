"""Dreamer stopped between its hooks, in phases of every kind: each time it ends the same.

The first evaluations are the best so far, so checkpoints lie between a world model that has learned
and the controller that is to dream from its states.
"""

import pytest
from stopping import hash_if_not_stopped, hash_if_stopped

from tiny_runs import run_hash, tiny_run

PHASES = (
    "training.phases=["
    "{name: explore, policy: random, duration_steps: 64, hooks: [collect]},"
    "{name: model, type: offline, duration_updates: 2, hooks: [update_world_model]},"
    "{name: both, duration_cycles: 2,"
    " hooks: [collect, update_world_model, evaluate, update_controller]},"
    "{name: dream, type: offline, duration_updates: 2, hooks: [update_controller]},"
    "{name: play, duration_cycles: 1, hooks: [collect, update_controller]},"
    "{name: turns, duration_cycles: 2, hooks: [collect, update]}]"
)
WORDS = [
    "CartPole-v1:random",
    "algorithm.name=dreamer_v3",
    *(f"algorithm.{each}=8" for each in ("deter", "hidden", "units")),
    *(f"algorithm.{each}=3" for each in ("stoch", "batch_size", "horizon")),
    "algorithm.batch_length=6",
    "algorithm.layers=1",
    "algorithm.learning_starts=0",
    "algorithm.train_every=8",
    "algorithm.replay_ratio=0.07",
    PHASES,
    "checkpoint.every_steps=32",
    "training.total_timesteps=4096",
]
HOOKS = 2 + 2 + 2 * 4 + 2 + 2 + 2 * 2


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return run_hash(tiny_run(tmp_path_factory.mktemp("straight"), *WORDS).run)


@pytest.mark.parametrize("number", [3, 6, 7, 10, 11, 13, 15, 17, 18])
def test_stopped_here_it_ends_the_same(tmp_path, monkeypatch, straight, number):
    assert hash_if_stopped(tmp_path, monkeypatch, f"hook.after:error@{number}", WORDS) == straight


def test_the_run_has_that_many_hooks(tmp_path, monkeypatch, straight):
    assert hash_if_not_stopped(tmp_path, monkeypatch, HOOKS, WORDS) == straight
