"""Every memory must solve what needs one, at the size and steps of the benchmark. `make learn`.

The cells are those of `rl-lab bench networks`: its kept results are results of these tests.
"""

from pathlib import Path

import pytest

from rl_lab import api
from rl_lab.benchmarking.networks.cells import plan
from rl_lab.benchmarking.networks.task_set import read_set
from rl_lab.config.values import as_override
from rl_lab.core import registry

pytestmark = pytest.mark.slow
SEEDS = (1, 2, 3)
MEMORIES = [name for name in registry.names("memory") if name != "none"]


def final_return(tmp_path, task: str, memory: str, seed: int, *words: str) -> float:
    """Of the last policy: 50 greedy episodes on seeds that training has not seen."""
    tasks = read_set(Path("memory")).chosen([task])
    (cell,) = plan(tasks, [memory], "parameters", lambda line: None).cells
    settings = [as_override(key, value) for key, value in cell.settings.items()]
    settings += ["logging.tensorboard=false", "logging.report=false", *words]
    outcome = api.train(cell.base_config, seed=seed, runs_dir=tmp_path, overrides=settings)
    assert outcome.summary["test"]["last"]["episodes"] == 50
    return outcome.summary["test"]["last"]["return_mean"]


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_memory_finds_its_way_through_ten_cells(tmp_path, memory):
    returns = [final_return(tmp_path, "TMaze10", memory, seed) for seed in SEEDS]
    assert sorted(returns)[1] >= 0.9, returns  # two of three


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(
    ("task", "bar"), [("TMaze20", 0.9), ("PocMemory", 1.0), ("CartPole-masked", 400)]
)
def test_a_memory_solves_what_needs_one(tmp_path, task, bar, memory):
    assert final_return(tmp_path, task, memory, 1) >= bar


@pytest.mark.parametrize("memory", ["none", "stack4"])
@pytest.mark.parametrize("task", ["TMaze10", "TMaze20"])
def test_what_sees_no_cue_guesses(tmp_path, task, memory):
    assert abs(final_return(tmp_path, task, memory, 1)) < 0.5


@pytest.mark.parametrize(("task", "most"), [("PocMemory", 0.3), ("CartPole-masked", 100)])
def test_without_a_memory_it_is_not_solved(tmp_path, task, most):
    assert final_return(tmp_path, task, "none", 1) < most


@pytest.mark.needs("minigrid")
def test_the_object_at_the_beginning_of_the_corridor_is_remembered(tmp_path):
    """The other object at the end is worth nothing: a guess earns half."""
    words = ["evaluation.every_steps=25000", "evaluation.stop_at=0.85", "evaluation.patience=2"]
    words += ["compute.compile=off", "logging.tensorboard=false"]
    spec = "MiniGrid-MemoryS7-v0:ppo_gru"
    outcome = api.train(spec, seed=1, runs_dir=tmp_path, overrides=words)
    assert outcome.summary["test"]["last"]["return_mean"] >= 0.85
