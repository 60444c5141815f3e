"""`rl-lab new algorithm`: what it writes trains, resumes, passes its tests, and is clean code."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rl_lab.cli.main import main
from rl_lab.core import registry
from rl_lab.records import faults

SHORT = ["--total-timesteps", "1024", "evaluation.every_steps=0", "evaluation.test_episodes=2"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    yield tmp_path
    for name in ("my_idea", "my_other_idea"):
        sys.modules.pop(name, None)
        registry._entries["workflow"].pop(name, None)


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
    command = [sys.executable, *test[1:], "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout


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
    assert "my_algorithm" not in text and "class TidyIdea(Workflow)" in text
    assert len(text.splitlines()) <= 110


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
