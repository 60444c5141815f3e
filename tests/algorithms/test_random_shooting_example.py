"""examples/random_shooting.py trains and resumes exactly, with both kinds of actions."""

from pathlib import Path

import pytest
import torch

from rl_lab.config.catalog import load_plugin
from rl_lab.core import registry
from rl_lab.records import faults
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "random_shooting.py"
WORDS = [
    f"plugins=['{EXAMPLE}']",
    "algorithm.name=random_shooting",
    *(f"algorithm.{each}=8" for each in ("deter", "hidden", "units", "plans", "batch_length")),
    *(f"algorithm.{each}=3" for each in ("stoch", "batch_size", "horizon")),
    "algorithm.layers=1",
    "algorithm.learning_starts=32",
    "algorithm.train_every=16",
    "algorithm.replay_ratio=0.03",
    "training.total_timesteps=256",
    "checkpoint.every_steps=64",
    "evaluation.every_steps=128",
]


@pytest.fixture(scope="module", autouse=True)
def plugin():
    """A file is imported once, and contract tests must not meet what it registers."""
    before = registry._entries["workflow"]
    registry._entries["workflow"] = dict(before)
    load_plugin(str(EXAMPLE))
    yield
    registry._entries["workflow"] = before


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_it_learns_a_model_and_resumes_exactly(tmp_path, monkeypatch, env):
    straight = tiny_run(tmp_path / "straight", f"{env}:random", *WORDS)
    assert '"train/kl"' in straight.run.metrics_file.read_text().splitlines()[-1]
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@6")
    with pytest.raises(OSError, match="injected at hook"):
        tiny_run(tmp_path / "cut", f"{env}:random", *WORDS)
    monkeypatch.delenv("RL_LAB_FAULT")
    torch.manual_seed(123)
    outcome = resume("@last", root=tmp_path / "cut")
    assert run_hash(outcome.run) == run_hash(straight.run)
