"""examples/pets.py trains, resumes and is what its parts say: real runs of a few hundred steps."""

from pathlib import Path

import pytest
import torch

from rl_lab.api import configure
from rl_lab.config.catalog import load_plugin
from rl_lab.core import registry
from rl_lab.records import faults
from rl_lab.run.session import resume, train
from tiny_runs import run_hash, tiny_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "pets.py"
WORDS = [
    "Pendulum-v1:random",
    f"plugins=['{EXAMPLE}']",
    "algorithm.name=pets",
    "algorithm.learning_starts=64",
    "algorithm.train_every=16",
    "algorithm.batch_size=32",
    "algorithm.replay_ratio=0.1",
    "algorithm.ensemble.hidden_dims=[16]",
    "algorithm.ensemble.members=2",
    "algorithm.planner={horizon: 4, candidates: 10, elites: 3, iterations: 2, warm_start: true}",
    "buffers={replay: {type: uniform, capacity: 1000}}",
    "training.total_timesteps=512",
    "checkpoint.every_steps=128",
    "compute.compile=off",
]


@pytest.fixture
def plugin(monkeypatch):
    monkeypatch.setitem(registry._entries, "workflow", dict(registry._entries["workflow"]))
    load_plugin(str(EXAMPLE))


def test_it_learns_the_dynamics_and_resumes_exactly(plugin, tmp_path, monkeypatch):
    straight = tiny_run(tmp_path / "straight", *WORDS)
    last = straight.run.metrics_file.read_text().splitlines()[-1]
    assert '"train/model_error"' in last
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@9")
    with pytest.raises(OSError, match="injected at hook"):
        tiny_run(tmp_path / "cut", *WORDS)
    monkeypatch.delenv("RL_LAB_FAULT")
    torch.manual_seed(123)
    outcome = resume("@last", root=tmp_path / "cut")
    assert run_hash(outcome.run) == run_hash(straight.run)


@pytest.mark.slow
def test_it_swings_the_pendulum_up(plugin, tmp_path):
    """Random play gives about -1200, good policies about -150."""
    words = ["logging.tensorboard=false", "logging.report=false"]
    config, _ = configure(None, words, config_file=EXAMPLE.with_suffix(".yaml"))
    outcome = train(config, root=tmp_path)
    assert outcome.summary["test"]["last"]["return_mean"] > -400
