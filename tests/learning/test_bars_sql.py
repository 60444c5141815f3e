"""Soft Q-learning must keep all four goals of MultiGoal, and what cannot must not. `make learn`.

Judged by 100 stochastic episodes of at most 30 steps, on seeds that training has not seen.
"""

import pytest
import torch

from rl_lab import api
from rl_lab.algorithms import sql

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)
GOALS = ("goal_0", "goal_1", "goal_2", "goal_3")  # east, west, north, south


def reached(tmp_path, variant: str, seed: int, *words: str) -> dict[str, float]:
    """Shares of the test episodes that end at any goal, and at each."""
    settings = ["evaluation.deterministic=false", "evaluation.test_episodes=100"]
    settings += ["evaluation.every_steps=0", "logging.tensorboard=false", *words]
    spec = f"MultiGoal-v0:{variant}"
    outcome = api.train(spec, seed=seed, runs_dir=tmp_path, overrides=settings)
    tested = outcome.summary["test"]["last"]
    assert tested["episodes"] == 100
    return {name: tested[name] for name in ("reached", *GOALS)}


def keeps_all(shares: dict[str, float]) -> bool:
    return shares["reached"] >= 0.8 and min(shares[goal] for goal in GOALS) >= 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_every_goal_is_kept(tmp_path, seed):
    shares = reached(tmp_path, "sql", seed)
    assert keeps_all(shares), shares


def test_random_actions_reach_a_goal_too_seldom(tmp_path):
    shares = reached(tmp_path, "random", 1, "training.total_timesteps=1000")
    assert shares["reached"] < 0.5  # 0.28 over many


def test_without_repulsion_goals_are_lost(tmp_path, monkeypatch):
    """The broken twin: particles that do not push each other away gather at one place."""
    honest = sql.gaussian_kernel

    def silent(x, y):
        kernel, gradient = honest(x, y)
        return kernel, torch.zeros_like(gradient)

    monkeypatch.setattr(sql, "gaussian_kernel", silent)
    assert not keeps_all(reached(tmp_path, "sql", 1))


def test_a_gaussian_policy_loses_goals(tmp_path):
    """SAC on the same task: one hill cannot point into four directions."""
    assert not keeps_all(reached(tmp_path, "sac", 1, "training.total_timesteps=15000"))
