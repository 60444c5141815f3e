"""Learning bars of Dreamer, and a broken twin that must stay below them. Slow: `make learn`."""

import pytest

from extras import installed_case
from rl_lab import api
from rl_lab.algorithms.dreamer import dreamer

pytestmark = pytest.mark.slow
LAKE, POLE, BALANCE = "FrozenLake-v1", "CartPole-v1", "dm_control/cartpole-balance"
SWINGUP = "dm_control/cartpole-swingup"


def tested(tmp_path, spec: str, seed: int) -> dict[str, float]:
    """The final test of the last policy, and of the checkpoint that evaluations liked best."""
    words = ["logging.tensorboard=false", "logging.report=false"]
    outcome = api.train(spec, seed=seed, runs_dir=tmp_path, overrides=words)
    return {which: test["return_mean"] for which, test in outcome.summary["test"].items()}


@pytest.mark.parametrize("seed", (1, 2, 3))
@pytest.mark.parametrize(
    ("spec", "best", "last"),
    [
        (f"{LAKE}:dreamer_v3", 0.9, 0.9),  # at random 0.01
        (f"{LAKE}:dreamer_v2", 0.9, 0.9),
        (f"{POLE}:dreamer_v3", 400, 400),  # at random 22
        (f"{POLE}:dreamer_v2", 200, 120),  # the last policy does not hold all of it
        installed_case(f"{BALANCE}:dreamer_v1", 700, 700),  # at random 350
    ],
)
def test_learns(tmp_path, spec, best, last, seed):
    found = tested(tmp_path, spec, seed)
    assert found["best"] >= best and found["last"] >= last, found


@pytest.mark.parametrize("seed", (1, 2))
def test_cartpole_is_swung_up_from_the_state_as_published(tmp_path, seed):
    """The published runs begin at 489; a random policy has about 30. Hours per seed."""
    assert tested(tmp_path, f"{SWINGUP}:dreamer_v3", seed)["last"] >= 489


def test_a_policy_that_is_told_the_opposite_does_not_learn(tmp_path, monkeypatch):
    honest = dreamer.reinforce_loss

    def turned(actor, features, action, advantage, weight, entropy_scale):
        return honest(actor, features, action, -advantage, weight, entropy_scale)

    monkeypatch.setattr(dreamer, "reinforce_loss", turned)
    assert tested(tmp_path, f"{LAKE}:dreamer_v3", 1)["best"] < 0.5
