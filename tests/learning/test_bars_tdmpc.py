"""Learning bars of TD-MPC2, and a broken twin that must stay below them. Slow: `make learn`."""

import pytest

from rl_lab import api
from rl_lab.algorithms.tdmpc.tdmpc import TDMPC2
from rl_lab.core.batch import PREVIOUS_ACTION

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)
PENDULUM = "Pendulum-v1:tdmpc2"


def final_return(tmp_path, seed: int, steps: int) -> float:
    words = [
        "logging.tensorboard=false",
        "evaluation.every_steps=0",
        f"training.total_timesteps={steps}",
    ]
    outcome = api.train(PENDULUM, seed=seed, runs_dir=tmp_path, overrides=words)
    return outcome.summary["test"]["last"]["return_mean"]


@pytest.mark.parametrize("seed", SEEDS)
def test_learns(tmp_path, seed):
    assert final_return(tmp_path, seed, 10_000) >= -250  # at random -1200


def test_from_the_actions_of_other_sequences_it_does_not_learn(tmp_path, monkeypatch):
    """The model knows all that the frames say, and nothing of what actions do."""
    honest = TDMPC2.update

    def mixed(self, batch, *, phase):
        others = batch[PREVIOUS_ACTION].roll(1, 2)  # [K, H + 1, B, A]
        return honest(self, {**batch, PREVIOUS_ACTION: others}, phase=phase)

    monkeypatch.setattr(TDMPC2, "update", mixed)
    assert final_return(tmp_path, 1, 10_000) < -600
