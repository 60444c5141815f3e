"""Learning bars of hindsight replay, and the same runs without it. Slow: `make learn`.

The bar is the share of episodes that end at their goal. It is an outcome, so the pair also shows
that outcomes arrive in the final test.
"""

import pytest

from rl_lab import api

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)
PRESETS = ("PointGoal-v0:sac_her", "PointGoalDiscrete-v0:dqn_her")
WITHOUT = "buffers.replay.type=uniform"


def success(tmp_path, spec: str, seed: int, *overrides: str) -> float:
    words = ["logging.tensorboard=false", "evaluation.every_steps=0", *overrides]
    outcome = api.train(spec, seed=seed, runs_dir=tmp_path, overrides=words)
    return outcome.summary["test"]["last"]["is_success"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spec", PRESETS)
def test_goals_are_reached(tmp_path, spec, seed):
    assert success(tmp_path, spec, seed) >= 0.9


@pytest.mark.parametrize("spec", PRESETS)
def test_without_hindsight_they_are_not(tmp_path, spec):
    assert success(tmp_path, spec, 1, WITHOUT) < 0.3


@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
@pytest.mark.parametrize("spec", PRESETS)
def test_every_strategy_runs(tmp_path, spec, strategy):
    words = [f"buffers.replay.strategy={strategy}", "training.total_timesteps=1500"]
    assert 0.0 <= success(tmp_path, spec, 1, *words) <= 1.0
