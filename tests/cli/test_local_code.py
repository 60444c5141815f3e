"""An algorithm in one local file trains, is interrupted, resumes exactly and is evaluated."""

import json
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from rl_lab.cli.main import main
from rl_lab.records.run_directory import find_run
from tiny_runs import SMALL, run_hash

EXAMPLES = Path(__file__).parents[2] / "examples"
CALLS = {
    "my_algorithm": ["--config", "my_algorithm.yaml"],
    "by_name": ["CartPole-v1:my_algorithm", "--plugin", "my_algorithm.py"],
    "by_target": ["CartPole-v1:random", "~algorithm.name", "algorithm._target_=my_algorithm.py:MyAlgorithm"],  # noqa: E501
    "your_workflow": ["--config", "your_workflow.yaml"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The examples, copied to where a user may have them."""
    for file in EXAMPLES.glob("*.*"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    forget()  # another test may have imported the originals
    yield tmp_path
    forget()


def forget():
    """As a new process: no local file has been imported, no name of one is known."""
    from rl_lab.core import registry

    for name, module in list(sys.modules.items()):
        if name.startswith(("my_algorithm", "your_workflow")) and module is not None:
            del sys.modules[name]
    registry._entries["workflow"].pop("my_algorithm", None)


@pytest.mark.parametrize("case", CALLS)
def test_local_code_resumes_exactly(folder, monkeypatch, capsys, case):
    words = ["train", *CALLS[case], *SMALL, "-q"]
    assert main(words) == 0
    straight = run_hash(find_run("@last", Path("runs"))[0])
    interrupt_once(monkeypatch)
    assert main(words) == 143
    run = find_run("@last", Path("runs"))[0]
    assert 0 < run.read_summary()["env_steps"] < 1024
    elsewhere = folder / "elsewhere"  # a resume must not depend on where it is started
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    forget()
    where = ["--runs-dir", str(folder / "runs")]
    assert main(["train", "--resume", "@last", "-q", *where]) == 0
    run = find_run("@last", folder / "runs")[0]
    assert run_hash(run) == straight
    capsys.readouterr()
    assert main(["evaluate", "@last", "--episodes", "3", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 3


def interrupt_once(monkeypatch):
    """SIGTERM in the middle of the next run, between two hooks."""
    from rl_lab.run.orchestrator import Orchestrator

    original, count = Orchestrator.execute, [0]

    def execute(self, action):
        original(self, action)
        count[0] += 1
        if count[0] == 5:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Orchestrator, "execute", execute)


def test_the_world_model_learns_in_its_own_hook(folder, capsys):
    assert main(["train", "--config", "your_workflow.yaml", *SMALL, "-q"]) == 0
    run = find_run("@last", Path("runs"))[0]
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert rows[-1]["updates"] == 256  # one per collect call: 1024 steps of 4 environments
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


def test_a_local_algorithm_is_listed_with_its_file(folder, capsys):
    assert main(["algorithms", "--plugin", "my_algorithm.py"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"my_algorithm +both +REINFORCE with a linear policy\.", listed)
    assert main(["algorithms", "my_algorithm", "--plugin", "my_algorithm.py"]) == 0
    assert "declares no options" in capsys.readouterr().out


ENVIRONMENT = """
import gymnasium as gym
import numpy as np


class LocalWalk(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._shown(), {}

    def step(self, action):
        return self._shown(), float(action), False, False, {}

    def _shown(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


gym.register("LocalWalk-v0", entry_point=LocalWalk, max_episode_steps=10)
"""


def test_a_local_environment_runs_in_worker_processes(tmp_path, monkeypatch):
    (tmp_path / "local_walk.py").write_text(ENVIRONMENT)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ["train", "LocalWalk-v0:random", "--plugin", str(tmp_path / "local_walk.py"), "-q"]
    assert main([*words, *SMALL, "environment.vectorization=process"]) == 0
    assert find_run("@last", Path("runs"))[0].read_summary()["status"] == "finished"
