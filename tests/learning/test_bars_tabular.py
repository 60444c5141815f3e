"""Learning bars of the tables, judged by greedy episodes on seeds of their own. Slow: `make learn`.

The optima are known: CliffWalking -13, Taxi 7.93 on average over its starts, FrozenLake 0.744 with
its 100 steps. The mean of 2,000 episodes of the best policy there has a deviation of
sqrt(0.744 * 0.256 / 2000) = 0.01.
"""

import pytest

from rl_lab import api

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)
BARS = [
    ("CliffWalking-v1", 10_000, 100, -13.0),
    ("Taxi-v4", 200_000, 200, 7.5),
    ("FrozenLake-v1", 400_000, 2000, 0.70),
]


def final_return(tmp_path, spec: str, seed: int, steps: int, episodes: int, *words: str) -> float:
    settings = [f"training.total_timesteps={steps}", f"evaluation.test_episodes={episodes}"]
    settings += ["evaluation.every_steps=0", "logging.tensorboard=false", *words]
    outcome = api.train(spec, seed=seed, runs_dir=tmp_path, overrides=settings)
    tested = outcome.summary["test"]["last"]
    assert tested["episodes"] == episodes
    return tested["return_mean"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("env", "steps", "episodes", "bar"), BARS)
def test_q_learning(tmp_path, env, steps, episodes, bar, seed):
    assert final_return(tmp_path, f"{env}:q_learning", seed, steps, episodes) >= bar


@pytest.mark.parametrize("seed", SEEDS)
def test_sarsa_keeps_away_from_the_cliff(tmp_path, seed):
    """The policy that explores is safer on a longer path: 15 to 17 steps instead of 13."""
    assert -17 <= final_return(tmp_path, "CliffWalking-v1:sarsa", seed, 20_000, 100) < -13


@pytest.mark.parametrize(("env", "steps", "episodes", "bar"), BARS)
def test_random_actions_do_not_reach_the_bar(tmp_path, env, steps, episodes, bar):
    limit = ["environment.max_episode_steps=200"]  # the cliff has none of its own
    assert final_return(tmp_path, f"{env}:random", 1, 5000, episodes, *limit) < bar
