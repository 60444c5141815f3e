"""Learning bars of TD3, and a broken variant that must stay below. Slow: `make learn`."""

import pytest
import torch

from rl_lab import api
from rl_lab.algorithms import td3

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)


def final_return(tmp_path, spec: str, seed: int) -> float:
    words = ["logging.tensorboard=false", "evaluation.every_steps=0"]
    outcome = api.train(spec, seed=seed, runs_dir=tmp_path, overrides=words)
    return outcome.summary["test"]["last"]["return_mean"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("spec", "bar"), [("Pendulum-v1:td3", -200), ("HalfCheetah-v5:td3", 2000)])
def test_learns(tmp_path, spec, bar, seed):
    assert final_return(tmp_path, spec, seed) >= bar


def test_without_the_bootstrap_it_does_not_learn(tmp_path, monkeypatch):
    """Every step taken for the last one: only the next reward counts, which is not enough here."""
    honest = td3.td_target

    def cut(reward, steps, terminated, *others):
        return honest(reward, steps, torch.ones_like(terminated), *others)

    monkeypatch.setattr(td3, "td_target", cut)
    assert final_return(tmp_path, "Pendulum-v1:td3", 1) < -250
