"""Learning bars of PlaNet, and a broken twin that must stay below them. Slow: `make learn`."""

import pytest

from extras import installed_case
from rl_lab import api
from rl_lab.algorithms import planet

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)
BALANCE = "dm_control/cartpole-balance:planet"


def final_return(tmp_path, spec: str, seed: int, *overrides: str) -> float:
    words = ["logging.tensorboard=false", "evaluation.every_steps=0", *overrides]
    outcome = api.train(spec, seed=seed, runs_dir=tmp_path, overrides=words)
    return outcome.summary["test"]["last"]["return_mean"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("spec", "bar"),
    [installed_case(BALANCE, 800), ("Pendulum-v1:planet", -400)],  # at random 350 and -1200
)
def test_learns(tmp_path, spec, bar, seed):
    assert final_return(tmp_path, spec, seed) >= bar


@pytest.mark.needs("dm_control")
def test_with_plans_of_the_world_before_the_action_it_does_not_learn(tmp_path, monkeypatch):
    """The reward of a state that the action has not changed yet: plans are one step late."""
    honest = planet.reward_sums

    def late(world, belief, latents, candidates, **options):
        still = candidates.roll(1, 2)
        still[:, :, 0] = 0.0
        return honest(world, belief, latents, still, **options)

    monkeypatch.setattr(planet, "reward_sums", late)
    assert final_return(tmp_path, BALANCE, 1, "training.total_timesteps=2500") < 600
