"""Offline, then online: stopped in either phase or at the switch, a run ends the same."""

import pytest
from killing import check_killed
from stopping import hash_if_not_stopped, hash_if_stopped

from offline_data import cartpole_mixed, pendulum_expert
from tiny_runs import run_hash, tiny_run

UPDATES, CYCLES = 30, 8
OFFLINE = f"{{name: offline, type: offline, buffer: data, duration_updates: {UPDATES}, "
OFFLINE += "hooks: [{update: 5}, evaluate]}"
ONLINE = "{name: online, buffer: mixed, hooks: [collect, update]}"
WORDS = [
    *("environment.num_envs=4", "algorithm.batch_size=16", "algorithm.train_every=8"),
    *("algorithm.replay_ratio=0.1", "buffers.replay.capacity=128"),  # it wraps
    "buffers.mixed={type: union, of: {replay: 0.5, data: 0.5}}",
    f"training.phases=[{OFFLINE}, {ONLINE}]",
    f"training.total_timesteps={32 * CYCLES}",
    *("checkpoint.every_updates=7", "logging.every_updates=10", "checkpoint.every_steps=96"),
]
HEADS = ["network.actor.hidden_dims=[8]", "network.critic.hidden_dims=[8]"]
CASES = {
    "td3_bc": ["Pendulum-v1:td3_bc_defaults", *HEADS],
    "iql": ["Pendulum-v1:iql_defaults", *HEADS],
    "cql": ["Pendulum-v1:cql_defaults", "algorithm.sampled_actions=2", *HEADS],
    "awac": ["Pendulum-v1:awac_defaults", *HEADS],
    "awac discrete": ["CartPole-v1:awac_defaults", *HEADS],
    "cql_discrete": ["CartPole-v1:cql_discrete_defaults"],
}
# Cycles of the offline phase have 5 updates and an evaluation, but the last update ends the phase.
SWITCH = UPDATES + UPDATES // 5 - 1
HOOKS = SWITCH + 2 * CYCLES


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    return {
        "Pendulum-v1": pendulum_expert(folder / "pendulum.npz", 2),
        "CartPole-v1": cartpole_mixed(folder / "cartpole.npz", 1),
    }


def words_of(case: str, datasets) -> list[str]:
    spec, *words = CASES[case]
    return [spec, f"buffers.data.path={datasets[spec.split(':')[0]]}", *words, *WORDS]


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory, datasets):
    """The words of a run, and what it is without any interruption."""
    words = words_of(request.param, datasets)
    return words, run_hash(tiny_run(tmp_path_factory.mktemp("straight"), *words).run)


@pytest.mark.parametrize(
    "number",
    [3, 17, SWITCH, SWITCH + 1, SWITCH + 9],
    ids=["first", "later", "switch", "after", "online"],
)
def test_stopped_here_it_ends_the_same(tmp_path, monkeypatch, case, number):
    words, straight = case
    assert hash_if_stopped(tmp_path, monkeypatch, f"hook.after:error@{number}", words) == straight


def test_the_run_has_that_many_hooks(tmp_path, monkeypatch, case):
    words, straight = case
    assert hash_if_not_stopped(tmp_path, monkeypatch, HOOKS, words) == straight


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_killed_offline_at_the_switch_and_online(tmp_path, datasets, name):
    """The second kill is at once, before another checkpoint; the third is in the online phase."""
    check_killed(tmp_path, *words_of(name, datasets), kills=(17, 1, SWITCH - 7))
