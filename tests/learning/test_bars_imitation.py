"""Learning bars of imitation: two ways of a thing, and what loses them. Slow: `make learn`."""

import pytest

from rl_lab import api
from rl_lab.algorithms.diffusion import chunks, diffusion_policy

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)


def outcome_of(tmp_path, spec: str, seed: int, *words: str) -> dict[str, float]:
    """The final test: 100 episodes of the last policy."""
    run = api.train(
        spec, seed=seed, runs_dir=tmp_path, overrides=["logging.tensorboard=false", *words]
    )
    return run.summary["test"]["last"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["diffusion_policy", "flow_policy"])
def test_both_arcs_are_kept(tmp_path, name, seed):
    found = outcome_of(tmp_path, f"TwoArcs-v0:{name}", seed)
    assert found["return_mean"] >= 0.9
    assert min(found["above"], found["below"]) >= 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_squared_error_goes_through_the_middle(tmp_path, seed):
    assert outcome_of(tmp_path, "TwoArcs-v0:bc", seed)["return_mean"] == 0.0


@pytest.mark.parametrize("broken", ["one action later", "a chunk is decided again at each step"])
def test_broken_acting_fails(tmp_path, monkeypatch, broken):
    if broken == "one action later":
        monkeypatch.setattr(
            diffusion_policy,
            "executed_slice",
            lambda chunk, history, executed: chunks.executed_slice(chunk, history, executed).roll(
                -1, 1
            ),
        )
        words = []
    else:
        words = ["algorithm.execution_horizon=1"]
    found = outcome_of(tmp_path, "TwoArcs-v0:flow_policy", 1, *words)
    assert found["return_mean"] < 0.3
