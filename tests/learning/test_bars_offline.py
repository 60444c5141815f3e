"""Learning bars of offline algorithms, and controls that must stay below. Slow: `make learn`."""

import pytest

from offline_data import cartpole_mixed, pendulum_expert
from rl_lab import api

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)
QUIET = ["logging.tensorboard=false", "logging.report=false", "evaluation.every_steps=0"]
HEADS = ["network.actor.hidden_dims=[64, 64]", "network.critic.hidden_dims=[64, 64]"]
SETTINGS = ["algorithm.learning_rate=1e-3", "algorithm.batch_size=128"]
SOFT = ["algorithm.target_every=1", "algorithm.target_rate=0.01"]
IMITATION = "algorithm.alpha=0"


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    return pendulum_expert(tmp_path_factory.mktemp("data") / "expert.npz")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return cartpole_mixed(tmp_path_factory.mktemp("data") / "mixed.npz")


def final_return(tmp_path, spec: str, data, updates: int, *words: str, seed: int = 1) -> float:
    """Of the last policy after that many updates on a dataset; no environment step is taken."""
    phase = f"{{name: offline, type: offline, duration_updates: {updates}, hooks: [update]}}"
    own = [f"buffers={{data: {{type: offline, path: {data}}}}}", f"training.phases=[{phase}]"]
    own += [*QUIET, *SETTINGS, "compute.compile=off", "environment.normalize_obs=true", *words]
    outcome = api.train(f"{spec}_defaults", seed=seed, runs_dir=tmp_path, overrides=own)
    assert outcome.summary["env_steps"] == 0
    return outcome.summary["test"]["last"]["return_mean"]


@pytest.mark.parametrize("seed", SEEDS)
def test_td3_bc_learns_from_an_expert(tmp_path, expert, seed):
    assert final_return(tmp_path, "Pendulum-v1:td3_bc", expert, 3000, *HEADS, seed=seed) >= -250


def test_imitation_alone_learns_from_an_expert(tmp_path, expert):
    assert final_return(tmp_path, "Pendulum-v1:td3_bc", expert, 3000, *HEADS, IMITATION) >= -300


def test_without_imitation_td3_fails_on_what_an_expert_has_shown(tmp_path, expert):
    assert final_return(tmp_path, "Pendulum-v1:td3", expert, 3000, *HEADS) <= -800


@pytest.mark.parametrize("seed", SEEDS)
def test_discrete_cql_learns_from_good_and_random_episodes(tmp_path, mixed, seed):
    assert final_return(tmp_path, "CartPole-v1:cql_discrete", mixed, 2000, *SOFT, seed=seed) >= 400


def test_without_its_term_it_is_dqn_and_fails(tmp_path, mixed):
    assert final_return(tmp_path, "CartPole-v1:dqn", mixed, 2000, *SOFT) <= 300
