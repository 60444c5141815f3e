"""Several seeds: how they are written, one after the other, side by side, and when one fails."""

import json
import shlex
import signal
import subprocess
import sys
import time

import pytest

from rl_lab.cli.main import main
from rl_lab.cli.request import Request
from rl_lab.core.errors import UserError
from rl_lab.records.run_directory import list_runs

TINY = [
    "CartPole-v1:random",
    "training.total_timesteps=64",
    "environment.num_envs=2",
    "evaluation.every_steps=0",
    "evaluation.test_episodes=1",
    "logging.tensorboard=false",
    "logging.report=false",
]
FAILS = """\
import os
import gymnasium as gym
from rl_lab import register_environment

@register_environment("NAME")
class Fails(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,), "float32")
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.observation_space.low, {}

    def step(self, action):
        self.left -= 1
        if os.path.exists("bad"):
            os.unlink("bad")  # whoever is first fails
            raise KeyError("late")
        return self.observation_space.low, 1.0, self.left == 0, False, {}
"""


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("7", [7]), ("1,2,3", [1, 2, 3]), ("1-3", [1, 2, 3]), ("0-1,5, 7-8", [0, 1, 5, 7, 8])],
)
def test_seeds_as_they_are_written(text, seeds):
    assert Request(seed=text).seeds == seeds


@pytest.mark.parametrize("text", ["abc", "3-1", "1,", "1-1000000", "1..3", "1-2-3", "1-3,2"])
def test_seeds_that_make_no_sense(text):
    with pytest.raises(UserError, match="--seed: "):
        _ = Request(seed=text).seeds


def results(folder):
    return {run.read_summary()["seed"]: run for run in list_runs(folder)}


def test_side_by_side_is_the_same_as_one_after_the_other(tmp_path, capfd):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder, jobs in zip(folders, ("1", "2"), strict=True):
        words = [*TINY, "--seed", "1-2", "--jobs", jobs, "--runs-dir", str(folder)]
        assert main(["train", *words]) == 0
    one, other = map(results, folders)
    assert sorted(one) == sorted(other) == [1, 2]
    for seed, run in one.items():
        assert run.metrics_file.read_bytes() == other[seed].metrics_file.read_bytes()
    output = capfd.readouterr().out
    lines = [line for line in output.splitlines() if " | " in line]
    assert lines and all(line.startswith(("seed 1 | ", "seed 2 | ")) for line in lines)
    tried = [shlex.split(line) for line in output.rpartition("Try next:")[2].splitlines() if line]
    assert ["rl-lab", "compare", *(other[seed].id for seed in (1, 2))] == tried[1][:4]
    assert tried[2][-4:-2] == ["--seed", "3"]


@pytest.mark.parametrize("where", [[], ["--runs-dir", "elsewhere"]])
def test_run_it_again_names_a_folder_only_if_one_was_typed(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    words = ["train", *TINY[:-1]]
    assert main([*words, "--seed", "1,2", "--jobs", "2", "-q", *where]) == 0
    for seed, run in results(tmp_path / (where[-1] if where else "runs")).items():
        report = (run.path / "report.md").read_text()
        again = report.partition("## Run it again\n\n```\n")[2].partition("\n```")[0]
        assert shlex.split(again) == ["rl-lab", *words, "--seed", str(seed), *where]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_one_failed_seed_does_not_stop_the_others(tmp_path, monkeypatch, capfd, jobs):
    name = f"FailsOnce{jobs}-v0"
    (tmp_path / f"fails{jobs}.py").write_text(FAILS.replace("NAME", name))
    (tmp_path / "bad").touch()
    monkeypatch.chdir(tmp_path)
    words = [f"{name}:random", *TINY[1:], "environment.vectorization=sync"]
    words += ["--plugin", f"fails{jobs}.py", "--seed", "1-2", "--jobs", jobs]
    assert main(["train", *words]) == 1
    runs = results(tmp_path / "runs")
    assert sorted(run.read_summary()["status"] for run in runs.values()) == ["failed", "finished"]
    output = capfd.readouterr()
    assert "KeyError" in output.err + output.out and "seed" in output.err
    assert "finished" in output.out  # the table has the other one


def test_a_signal_saves_all_of_them(tmp_path):
    words = ["CartPole-v1:random", "training.total_timesteps=100_000_000", "--seed", "1,2,3"]
    words += ["logging.tensorboard=false", "evaluation.every_steps=0", "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_lab", "train", *words, "--runs-dir", str(tmp_path), "--json"],
        stdout=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if (
                sum(run.read_summary().get("status") == "running" for run in list_runs(tmp_path))
                == 2
            ):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    told = json.loads(output)
    assert [each["seed"] for each in told] == [1, 2]  # the third was not begun
    for run in list_runs(tmp_path):
        assert run.read_summary()["status"] == "preempted" and list(run.checkpoints.glob("step_*"))


def test_what_a_resumed_run_keeps_is_told_with_the_command_that_changes_it(tmp_path, capsys):
    words = ["--resume", "@last", "--total-timesteps", "10k", "algorithm.gamma=0.9"]
    assert main(["train", *words, "--runs-dir", str(tmp_path)]) == 2
    command = "rl-lab train --fork @last algorithm.gamma=0.9 --total-timesteps 10k --runs-dir"
    assert command in capsys.readouterr().err


def test_what_is_suggested_keeps_what_was_asked_for():
    request = Request(words=["CartPole-v1:ppo"], track=True, total_timesteps="5k", debug=True)
    again = "CartPole-v1:ppo --total-timesteps 5k --debug --track --seed 4"
    assert request.again(4) == again.split()
