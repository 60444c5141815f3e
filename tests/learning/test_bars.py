"""Learning bars: every preset must reach its return, and the controls must not.

Three seeds each, at the preset's own number of steps, judged by the preset's greedy test episodes
on seeds that neither training nor evaluation has seen. Slow: `make learn`.
"""

from statistics import mean

import pytest

from extras import installed_case
from rl_lab import api

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)


def final_return(tmp_path, spec: str, seed: int, *overrides: str) -> float:
    outcome = api.train(
        spec, seed=seed, runs_dir=tmp_path, overrides=["logging.tensorboard=false", *overrides]
    )
    return outcome.summary["test"]["last"]["return_mean"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("spec", "bar"),
    [
        ("CartPole-v1:ppo", 475),
        ("Acrobot-v1:ppo", -100),
        ("Pendulum-v1:ppo", -300),
        ("CartPole-v1:ppo_gru_masked", 300),
        ("CartPole-v1:ppo_lstm_masked", 300),
        ("MountainCar-v0:ppo", -120),
        ("MountainCarContinuous-v0:ppo", 85),
        installed_case("LunarLander-v3:ppo", 150),
        installed_case("Hopper-v5:ppo", 1000),
        installed_case("Walker2d-v5:ppo", 2000),
        ("FrozenLake-v1:ppo", 0.65),  # the optimum is 0.74
    ],
)
def test_learns(tmp_path, spec, bar, seed):
    assert final_return(tmp_path, spec, seed) >= bar


def test_half_cheetah_runs_on_its_feet(tmp_path):
    """On its back it learns to run, too, and stays below 2,500."""
    returns = [final_return(tmp_path, "HalfCheetah-v5:ppo", seed) for seed in SEEDS]
    assert mean(returns) >= 4000 and min(returns) >= 2500, returns


@pytest.mark.parametrize("seed", SEEDS)
def test_without_memory_the_masked_task_cannot_be_solved(tmp_path, seed):
    assert final_return(tmp_path, "CartPole-v1:ppo_masked", seed) < 100


@pytest.mark.parametrize(
    ("env", "bar"),
    [
        ("CartPole-v1", 475),
        ("Acrobot-v1", -100),
        ("Pendulum-v1", -300),
        ("MountainCar-v0", -120),
        ("MountainCarContinuous-v0", 85),
        installed_case("LunarLander-v3", 150),
        installed_case("HalfCheetah-v5", 2500),
        installed_case("Hopper-v5", 1000),
        installed_case("Walker2d-v5", 2000),
        ("FrozenLake-v1", 0.65),
    ],
)
def test_random_actions_do_not_reach_the_bar(tmp_path, env, bar):
    overrides = ["training.total_timesteps=5000", "evaluation.every_steps=0"]
    assert final_return(tmp_path, f"{env}:random", 1, *overrides) < bar


def test_ascending_the_loss_does_not_learn(tmp_path, monkeypatch):
    """The broken twin: with the sign of the policy loss turned, the bar must not be reached."""
    from rl_lab.algorithms import ppo

    honest = ppo.clipped_surrogate

    def turned(*arguments):
        loss, metrics = honest(*arguments)
        return -loss, metrics

    monkeypatch.setattr(ppo, "clipped_surrogate", turned)
    assert final_return(tmp_path, "CartPole-v1:ppo", 1, "training.total_timesteps=30000") < 100
