"""Learning bars of DQN and R2D2, of the best checkpoint and of the last policy; broken twins.

Three seeds each, judged by 20 greedy test episodes on seeds that neither training nor evaluation
has seen. Slow: `make learn`.
"""

import pytest
import torch

from extras import installed_case
from rl_lab import api
from rl_lab.algorithms import dqn

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)


def tested(tmp_path, spec: str, seed: int, *overrides: str) -> dict[str, float]:
    """Mean returns of the best checkpoint and of the last policy."""
    outcome = api.train(
        spec, seed=seed, runs_dir=tmp_path, overrides=["logging.tensorboard=false", *overrides]
    )
    return {which: each["return_mean"] for which, each in outcome.summary["test"].items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("spec", "steps", "bar"),
    [
        ("CartPole-v1:dqn", 50_000, 450),
        ("CartPole-v1:dqn_c51", 50_000, 450),
        ("CartPole-v1:dqn_quantile", 50_000, 450),
        ("CartPole-v1:dqn_noisy", 50_000, 450),
        ("Acrobot-v1:dqn", 100_000, -100),
        installed_case("LunarLander-v3:dqn", 150_000, 100),
        ("CartPole-v1:r2d2_masked", 50_000, 400),
    ],
)
def test_learns(tmp_path, spec, steps, bar, seed):
    found = tested(tmp_path, spec, seed, f"training.total_timesteps={steps}")
    assert min(found["best"], found["last"]) >= bar, found


def test_a_target_that_judges_the_wrong_action_does_not_learn(tmp_path, monkeypatch):
    """The broken twin: the worst action is chosen for the bootstrap."""
    honest = dqn.chosen_value
    monkeypatch.setattr(dqn, "chosen_value", lambda choice, *rest: honest(-choice, *rest))
    assert tested(tmp_path, "CartPole-v1:dqn", 1)["best"] < 200


def test_without_a_target_network_it_does_not_hold_the_pole(tmp_path):
    """The broken twin: the network is its own target, and chases itself."""
    itself = ["algorithm.target_every=1", "algorithm.target_rate=1"]
    assert tested(tmp_path, "CartPole-v1:dqn", 1, *itself)["best"] < 450


def test_without_a_memory_r2d2_cannot_see_what_moves(tmp_path):
    none = ["network.memory.type=none", "~network.memory.hidden_dim"]
    assert tested(tmp_path, "CartPole-v1:r2d2_masked", 1, *none)["best"] < 100


def test_a_target_of_noise_does_not_learn(tmp_path, monkeypatch):
    """The broken twin: what the future is worth says nothing."""
    monkeypatch.setattr(dqn, "chosen_value", lambda choice, *_: 10 * torch.randn(len(choice)))
    assert tested(tmp_path, "CartPole-v1:dqn", 1)["best"] < 200
