"""Learning bars of REINFORCE, and the twin that must not learn. Slow: `make learn`."""

import pytest

from rl_lab import api
from rl_lab.algorithms import reinforce

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)


def tested(tmp_path, spec: str, seed: int, *overrides: str) -> dict[str, float]:
    """Mean returns of the last and the best policy, on seeds that nothing else has seen."""
    outcome = api.train(
        spec, seed=seed, runs_dir=tmp_path, overrides=["logging.tensorboard=false", *overrides]
    )
    return {which: each["return_mean"] for which, each in outcome.summary["test"].items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", ["reinforce", "reinforce_baseline"])
def test_learns(tmp_path, variant, seed):
    steps = "training.total_timesteps=200000"
    result = tested(tmp_path, f"CartPole-v1:{variant}", seed, steps)
    assert result["best"] >= 400
    assert result["last"] >= 300


@pytest.mark.parametrize("seed", SEEDS)
def test_whole_episode_returns_learn_too(tmp_path, seed):
    """Noisier than the reward to go, so the bar is lower."""
    result = tested(tmp_path, "CartPole-v1:reinforce", seed, "algorithm.returns_type='mc:episode'")
    assert result["best"] >= 150


def test_ascending_the_loss_does_not_learn(tmp_path, monkeypatch):
    """The broken twin: with the sign of the gradient turned, the bar must not be reached."""
    honest = reinforce.policy_gradient
    monkeypatch.setattr(reinforce, "policy_gradient", lambda *rows: -honest(*rows))
    steps = "training.total_timesteps=30000"
    assert tested(tmp_path, "CartPole-v1:reinforce", 1, steps)["best"] < 100
