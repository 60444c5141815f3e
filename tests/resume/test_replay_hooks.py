"""DQN and SAC with noise of their own, R2D2 with a memory: stopped between hooks they end the same.

The noise of actions and of gradient steps must go on where it was, also after an evaluation in
mid-cycle.
"""

import pytest
from stopping import hash_if_not_stopped, hash_if_stopped

from tiny_runs import run_hash, tiny_run

DQN = ["CartPole-v1:random", "algorithm.name=dqn"]
SAC = [
    "Pendulum-v1:random",
    "algorithm.name=sac",
    "network.actor.hidden_dims=[16]",
    "network.critic.hidden_dims=[16]",
]
WORDS = [
    "algorithm.learning_starts=32",
    "algorithm.batch_size=16",
    "algorithm.train_every=8",
    "algorithm.replay_ratio=0.1",
    "algorithm.target_every=3",
    "buffers.replay.capacity=256",
    "training.phases=[{name: all, hooks: [collect, evaluate, update]}]",
    "checkpoint.every_steps=96",
    "training.total_timesteps=256",
]
HOOKS = 3 * 8  # one cycle is 8 steps of 4 environments
C51 = ["algorithm.distribution=c51", "algorithm.atoms=11", "algorithm.value_range=[0, 20]"]
VARIANTS = {
    "c51": [*DQN, *C51, "buffers.replay.type=prioritized", "algorithm.n_step=3"],
    "quantile": [*DQN, "algorithm.distribution=quantile", "algorithm.quantiles=7"],
    "noisy": [*DQN, "algorithm.noisy=true", "algorithm.dueling=true"],
    "noisy c51": [*DQN, "algorithm.noisy=true", "network.critic.hidden_dims=[8]", *C51],
    "memory": [
        *("CartPole-v1:random", "algorithm.name=r2d2", "algorithm.batch_length=8"),
        *("buffers.replay.burn_in=3", "network.memory.hidden_dim=8"),
    ],
    "gsde": [*SAC, "algorithm.policy=gsde", "algorithm.noise_every=5"],
    "flow droq": [
        *SAC,
        "algorithm.policy=flow",
        "algorithm.critic_dropout=0.2",
        "algorithm.critic_norm=true",
    ],
}


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, tmp_path_factory):
    """The words of a run, and what it is without any interruption."""
    words = [*VARIANTS[request.param], *WORDS]
    return words, run_hash(tiny_run(tmp_path_factory.mktemp("straight"), *words).run)


@pytest.mark.parametrize("number", [7, 11, 18])
def test_stopped_here_it_ends_the_same(tmp_path, monkeypatch, variant, number):
    words, straight = variant
    assert hash_if_stopped(tmp_path, monkeypatch, f"hook.after:error@{number}", words) == straight


def test_the_run_has_that_many_hooks(tmp_path, monkeypatch, variant):
    words, straight = variant
    assert hash_if_not_stopped(tmp_path, monkeypatch, HOOKS, words) == straight
