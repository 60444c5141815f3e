"""Learning bars of SAC, and broken twins that must stay below them. Slow: `make learn`."""

from statistics import mean

import pytest
import torch

from extras import installed_case
from rl_lab import api
from rl_lab.algorithms import sac

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)
PENDULUM = "Pendulum-v1:sac"


def final_return(tmp_path, spec: str, seed: int, *overrides: str) -> float:
    words = ["logging.tensorboard=false", "evaluation.every_steps=0", *overrides]
    outcome = api.train(spec, seed=seed, runs_dir=tmp_path, overrides=words)
    return outcome.summary["test"]["last"]["return_mean"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("steps", "bar"), [(10_000, -250), (20_000, -200)])
def test_pendulum(tmp_path, steps, bar, seed):
    words = [f"training.total_timesteps={steps}"]
    assert final_return(tmp_path, PENDULUM, seed, *words) >= bar


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("spec", "bar"),
    [
        ("CartPole-v1:sac", 400),
        ("MountainCarContinuous-v0:sac", 85),
        ("MountainCarContinuous-v0:sac_gsde", 85),  # no bonus
        installed_case("Hopper-v5:sac", 1000),
        installed_case("dm_control/cartpole-swingup:sac", 750),
        installed_case("dm_control/cheetah-run:sac", 200),
    ],
)
def test_learns(tmp_path, spec, bar, seed):
    assert final_return(tmp_path, spec, seed) >= bar


def test_half_cheetah(tmp_path):
    returns = [final_return(tmp_path, "HalfCheetah-v5:sac", seed) for seed in SEEDS]
    assert mean(returns) >= 5000 and min(returns) >= 4500, returns


def test_with_the_sign_of_the_temperature_s_loss_turned_it_does_not_learn(tmp_path, monkeypatch):
    honest = sac.temperature_loss

    def turned(*arguments):
        loss, gradient = honest(*arguments)
        return -loss, -gradient

    monkeypatch.setattr(sac, "temperature_loss", turned)
    assert final_return(tmp_path, PENDULUM, 1, "training.total_timesteps=10000") < -250


def test_without_the_bootstrap_it_does_not_learn(tmp_path, monkeypatch):
    """Every step taken for the last one: only the next reward counts, which is not enough here.

    Truncation alone taken for termination is one row of 200 in this task: too little to see in a
    return, so `test_a_truncated_loop_is_worth_its_future_and_its_entropy` looks at the values.
    """
    honest = sac.td_target

    def cut(reward, steps, terminated, *others):
        return honest(reward, steps, torch.ones_like(terminated), *others)

    monkeypatch.setattr(sac, "td_target", cut)
    assert final_return(tmp_path, PENDULUM, 1, "training.total_timesteps=10000") < -250
