"""Options of TD-MPC2: where terminations are learned, the first version, what is refused."""

import pytest

from rl_lab.algorithms.tdmpc.config import TDMPC1Config, expects_ends
from rl_lab.core.errors import ConfigError
from tiny_runs import tiny_config


@pytest.mark.parametrize(
    ("episodic", "environment", "expected"),
    [
        ("auto", "Pendulum-v1", False),
        ("auto", "dm_control/walker-walk", False),
        ("auto", "dm_control/lqr-lqr_2_1", True),
        ("auto", "HalfCheetah-v5", False),
        ("auto", "Hopper-v5", True),
        ("auto", "CartPole-v1", True),
        (False, "Hopper-v5", False),
        (True, "Pendulum-v1", True),
    ],
)
def test_terminations_are_learned_where_there_may_be_any(episodic, environment, expected):
    assert expects_ends(episodic, environment) is expected


def test_the_first_version_is_a_set_of_values():
    first = TDMPC1Config()
    assert (first.latent, first.units, first.planner.horizon, first.planner.candidates) == (
        *(50, 512, 5),
        512 + 25,
    )
    assert (first.simnorm, first.bins, first.norm, first.target_encoder) == (0, 0, False, True)
    config = tiny_config("Pendulum-v1:random", "algorithm.name=tdmpc")
    assert isinstance(config.algorithm, TDMPC1Config)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.size=5m", "algorithm.units=64"], "algorithm.units: is decided by size 5m"),
        (
            ["algorithm.size=own", "algorithm.latent=20"],
            "algorithm.simnorm: must divide the 20 numbers",
        ),
        (["algorithm.bins=100"], "algorithm.bins: must be odd"),
        (["algorithm.gamma=1.5"], "algorithm.gamma: must be"),
        (["algorithm.optimizer.accumulate=2"], "accumulate must be 1"),
        (["environment.normalize_obs=true"], "normalize_obs to false"),
        (["buffers.replay.capacity=8"], "planner.horizon"),
    ],
)
def test_what_cannot_work_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        tiny_config("Pendulum-v1:random", "algorithm.name=tdmpc2", *words)
