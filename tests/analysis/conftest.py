import pytest

from tiny_runs import tiny_run


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A folder of six real runs: PPO and random actions on CartPole-v1, seeds 1, 2 and 3."""
    root = tmp_path_factory.mktemp("lab") / "runs"
    for spec in ("CartPole-v1:ppo_defaults", "CartPole-v1:random"):
        for seed in (1, 2, 3):
            outcome = tiny_run(root, spec, f"experiment.seed={seed}")
            assert outcome.exit_code == 0
    return root
