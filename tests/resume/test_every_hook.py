"""A three-phase run is stopped between every pair of hooks; each time it ends the same."""

import pytest
from stopping import hash_if_not_stopped, hash_if_stopped

from tiny_runs import run_hash, tiny_run

PHASES = (
    "training.phases=["
    "{name: explore, policy: random, duration_steps: 64, hooks: [collect]},"
    "{repeat: 2, phases: [{name: learn, duration_cycles: 1,"
    " hooks: [collect, {update: 2}, evaluate]}]},"
    "{name: finish, until: 'eval/return_mean >= 1e9', max_steps: 128, hooks: [collect, update]}]"
)
WORDS = [
    "CartPole-v1:ppo_gru_defaults",
    PHASES,
    "algorithm.minibatches=2",
    "environment.normalize_obs=true",
    "checkpoint.every_steps=64",
    "training.total_timesteps=4096",
]
HOOKS = 1 + 2 * 4 + 2 * 2


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return run_hash(tiny_run(tmp_path_factory.mktemp("straight"), *WORDS).run)


@pytest.mark.parametrize("point", ["hook.before", "hook.after"])
@pytest.mark.parametrize("number", range(1, HOOKS + 1))
def test_stopped_here_it_ends_the_same(tmp_path, monkeypatch, straight, point, number):
    assert hash_if_stopped(tmp_path, monkeypatch, f"{point}:error@{number}", WORDS) == straight


def test_the_fixture_has_that_many_hooks(tmp_path, monkeypatch, straight):
    assert hash_if_not_stopped(tmp_path, monkeypatch, HOOKS, WORDS) == straight
