"""`rl-lab new algorithm`: what it writes trains, resumes, passes its tests, and is clean code."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from rl_lab.cli.main import main
from rl_lab.core import registry
from rl_lab.records import faults

SHORT = ["--total-timesteps", "1024", "evaluation.every_steps=0", "evaluation.test_episodes=2"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a run may add the current folder
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    yield tmp_path
    for name in ("my_idea", "my_other_idea", "my_maze", "corridor", "corridor_module"):
        sys.modules.pop(name, None)
        registry._entries["workflow"].pop(name, None)
    for id in ("MyMaze-v0", "Corridor-v0", "Hall-v0"):
        registry._entries.get("env", {}).pop(id, None)
        gym.registry.pop(id, None)


def test_the_printed_commands_work(folder, capsys):
    assert main(["new", "algorithm", "my_idea", "--directory", "my ideas"]) == 0
    output = capsys.readouterr().out
    assert [line for line in output.splitlines() if line.startswith("wrote")] == [
        f"wrote my ideas/{name}" for name in ("my_idea.py", "test_my_idea.py", "my_idea.yaml")
    ]
    lines = output.partition("Try next:")[2].strip().splitlines()
    train, check, test = (shlex.split(line) for line in lines)
    assert train[0] == check[0] == "rl-lab"
    assert main([*train[1:], *SHORT, "-q"]) == 0
    assert "test return: last" in capsys.readouterr().out
    assert main(check[1:]) == 0
    assert "bit for bit" in capsys.readouterr().out
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pytest_too = ["-m", "pytest", *test[1:], "-q", "-p", "no:cacheprovider"]
    for words in (test[1:], pytest_too):  # the first needs nothing but the core
        command = [sys.executable, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr


def test_the_printed_commands_of_an_environment_work(folder, capsys):
    assert main(["new", "env", "my_maze", "--directory", "my envs", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["files"] == [
        f"my envs/{name}" for name in ("my_maze.py", "test_my_maze.py", "my_maze.yaml")
    ]
    train, check, test = (shlex.split(line) for line in written["commands"])
    assert main([*train[1:], *SHORT, "-q"]) == 0
    shown = capsys.readouterr()
    assert "test return: last" in shown.out and "WARNING" not in shown.err
    assert main(check[1:]) == 0
    assert "warn" not in (shown := capsys.readouterr().out) and shown.endswith("OK: MyMaze-v0\n")
    assert main(["play", "@last", "--video", "film.gif"]) == 0 and Path("film.gif").exists()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pytest_too = ["-m", "pytest", *test[1:], "-q", "-p", "no:cacheprovider"]
    for words in (test[1:], pytest_too):
        command = [sys.executable, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr


PAGE = Path(__file__).parents[2] / "docs" / "your_environment.md"


def test_the_environment_of_the_page_works(folder, capsys):
    code = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    Path("corridor.py").write_text(code)
    assert main(["train", "Corridor-v0:ppo", "--plugin", "corridor.py", *SHORT, "-q"]) == 0
    assert capsys.readouterr().err == ""
    Path("corridor_module.py").write_text(
        "import gymnasium\nfrom corridor import Corridor\n"
        "gymnasium.register('Hall-v0', Corridor, max_episode_steps=20)\n"
    )
    assert main(["train", "corridor_module:Hall-v0:ppo", *SHORT, "-q"]) == 0  # of this folder
    assert main(["train", "Corrido-v9:ppo", *SHORT]) == 2
    assert "--plugin FILE.py" in capsys.readouterr().err


def test_an_interrupted_run_of_it_resumes(folder, capsys, monkeypatch):
    assert main(["new", "algorithm", "my_other_idea", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["files"][0] == "my_other_idea.py" and len(written["commands"]) == 3
    train = shlex.split(written["commands"][0])[1:]
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:term@3")
    assert main([*train, *SHORT, "-q"]) == 143
    monkeypatch.delenv("RL_LAB_FAULT")
    capsys.readouterr()
    assert main(["train", "--resume", "@last", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["status"] == "finished" and summary["resumes"] == 1
    assert summary["env_steps"] == 1024


def test_what_is_written_is_clean(folder):
    assert main(["new", "algorithm", "tidy_idea"]) == 0
    rules = ["--line-length", "100", "--isolated"]
    ruff = [sys.executable, "-m", "ruff"]
    files = ["tidy_idea.py", "test_tidy_idea.py"]
    for command in (
        [*ruff, "format", "--check", *rules, *files],
        [*ruff, "check", *rules, "--select", "E,F,UP,B,SIM,RUF,N", *files],
        [*ruff, "check", *rules, "--select", "D1", "tidy_idea.py"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    text = Path("tidy_idea.py").read_text()
    assert "my_algorithm" not in text and "class TidyIdea(Algorithm)" in text
    assert len(text.splitlines()) <= 110


def test_what_is_written_for_an_environment_is_clean(folder):
    assert main(["new", "env", "tidy_maze"]) == 0
    rules = ["--line-length", "100", "--isolated"]
    for words in (["format", "--check"], ["check", "--select", "E,F,UP,B,SIM,RUF,N"]):
        command = [sys.executable, "-m", "ruff", *words, *rules, "."]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    text = Path("tidy_maze.py").read_text()
    assert "my_env" not in text and "class TidyMaze(gym.Env)" in text and "TidyMaze-v0" in text


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("ppo", "an algorithm 'ppo' exists already"),
        ("json", "'json' is the name of a Python module"),
        ("My-Idea", "'My-Idea' cannot be a name"),
        ("../idea", "'../idea' cannot be a name"),
        ("class", "'class' cannot be a name"),
    ],
)
def test_bad_names_are_refused_in_one_line(folder, capsys, name, problem):
    assert main(["new", "algorithm", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {problem}")
    assert list(folder.iterdir()) == []


def test_nothing_is_overwritten(folder, capsys):
    Path("my_idea.yaml").write_text("mine")
    assert main(["new", "algorithm", "my_idea"]) == 2
    assert "my_idea.yaml exists" in capsys.readouterr().err
    assert [file.name for file in folder.iterdir()] == ["my_idea.yaml"]
