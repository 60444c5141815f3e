import pytest

from tiny_runs import tiny_run

PENDULUM = [
    "Pendulum-v1:sac",
    "environment.num_envs=2",
    "environment.max_episode_steps=20",
    "network.actor.hidden_dims=[8]",
    "network.critic.hidden_dims=[8]",
    "algorithm.learning_starts=16",
    "algorithm.batch_size=8",
    "algorithm.replay_ratio=0.1",
    "buffers.replay.capacity=200",
    "training.total_timesteps=150",
    "evaluation.every_steps=50",
    "checkpoint.every_steps=50",
    "checkpoint.keep_last=9",
]


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory):
    """A run with continuous actions, whose policy acts in [-1, 1]."""
    return tiny_run(tmp_path_factory.mktemp("runs"), *PENDULUM).run


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory):
    """A run with discrete actions and a memory."""
    words = ["CartPole-v1:ppo_defaults", "network.memory=gru", "training.total_timesteps=512"]
    return tiny_run(tmp_path_factory.mktemp("runs"), *words).run


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    """Where datasets with a name are."""
    monkeypatch.setenv("RL_LAB_DATASETS", str(tmp_path / "datasets"))
    return tmp_path / "datasets"
