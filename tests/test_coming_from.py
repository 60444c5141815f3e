"""docs/coming_from.md tells the truth: what works is run, what does not is still refused."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from rl_lab.cli.main import main
from seed_files import ROOT, write_seed_files

TEST = "tests/core/test_clock.py"
PAGE = ROOT / "docs" / "coming_from.md"
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in PAGE.read_text().splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| printed", "| there |"))
]
WORKS = [row for row in ROWS if row[2] == "works"]
NOT_YET = [row for row in ROWS if row[2].startswith("not yet")]
# Whatever it trains: a second of it. A run that is resumed keeps its own configuration.
TINY = [
    "evaluation.every_steps=0",
    "evaluation.test_episodes=1",
    "evaluation.num_envs=1",
    "compute.compile=off",
    "logging.tensorboard=false",
    *("--total-timesteps", "300"),  # typed last, so it wins
]
FEW = ["algorithm.rollout_steps=8", "algorithm.epochs=1"]
FEW += ["algorithm.minibatches=1", "algorithm.batch_size=null"]  # whatever a preset says
LITTLE = [  # instead of 6 cars and room for 100,000 of their frames
    "environment.num_envs=2",
    "environment.vectorization=sync",
    "algorithm.train_every=20",
    "buffers.replay.capacity=1_000",
    "evaluation.test_episodes=0",
]


CHECKPOINT = "runs/RUN/checkpoints/step_000000100000"  # stands for one that is there


def command(row):
    """The first command of the middle column, without its explanation."""
    found = re.search(r"`([^`]*)`", row[1])
    return found[1] if found else ""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A clone's folders, the printed YAML, a finished run, and one that stopped half way."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("examples", "scripts"):
        shutil.copytree(ROOT / name, folder / name)
    write_seed_files(folder)
    old = folder / "experiments"
    measured = ["evaluation.every_steps=100", "evaluation.episodes=1"]  # for @best
    words = ["CartPole-v1:ppo", *TINY, *measured, "-q", "--runs-dir"]
    assert main(["train", *words, str(old)]) == 0
    next(old.glob("CartPole-v1-*")).rename(old / "ppo_cartpole_2024")
    assert main(["train", *words, str(folder / "runs")]) == 0
    return folder


@pytest.fixture(autouse=True)
def inside(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):  # films instead of windows
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(workspace))
    yield
    for name in [name for name in sys.modules if name == "src" or name.startswith("src.")]:
        del sys.modules[name]


def run(words, monkeypatch):
    """The exit code of a command, in this process if it is ours."""
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    if any(CHECKPOINT in word for word in words):
        there = sorted(Path("runs").glob("CartPole-v1-ppo-*/checkpoints/step_*"))[0]
        words = [word.replace(CHECKPOINT, str(there)) for word in words]
    if words[0] == "python" and words[1].startswith("scripts/"):
        verb = words[1].removeprefix("scripts/").removesuffix(".py")
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(sys, "argv", [*words[1:], *tiny(verb, words)])
            runpy.run_path(words[1], run_name="__main__")
        return ended.value.code
    assert words[0] == "rl-lab", words
    return main([*words[1:], *tiny(words[1], words)])


def tiny(verb, words):
    if verb == "sweep":
        return ["--dry-run"]
    if words[1:3] == ["bench", "networks"]:
        return ["--dry-run", "--memories", "none"]
    if verb == "publish":  # a hub is not there
        return ["--dry-run", str(Path(tempfile.mkdtemp()) / "policy"), "--episodes", "2"]
    resumed = any("--resume" in word or "resume_path" in word for word in words)
    if verb != "train" or resumed or "--list-envs" in words:
        return []
    slow = any(word.startswith(("CartPole-v1:ppo_lstm", "ALE/")) for word in words)
    large = any("og_wm_carracing" in word for word in words)
    return [*TINY, *(FEW if slow else []), *(LITTLE if large else [])]


@cache
def pytest_runs():
    """The same one file for every row that types `pytest`."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", TEST, "-x", "-m", "not slow"],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return True


NEEDS = {  # in the command -> what must be installed for it
    "--plot": "matplotlib",
    "wandb-dashboard": "wandb_workspaces",
    "rl-lab sweep": "optuna",
    "rl-lab bench": "optuna",
    "--set atari": "ale_py",
    "--set mujoco": "mujoco",
    "--set minigrid": "minigrid",
    "--set classic_control": "Box2D",
    "HalfCheetah": "mujoco",
    "og_wm_carracing": "Box2D",
    "world_models": "cma",
    ".mp4": "imageio_ffmpeg",
    "ALE/": "ale_py",
    "Pong": "ale_py",
}


def case(row):
    marks = [pytest.mark.needs(each) for text, each in NEEDS.items() if text in command(row)]
    return pytest.param(row, marks=marks, id=command(row))


@pytest.mark.parametrize("row", map(case, WORKS))
def test_what_works_works(row, monkeypatch, capsys):
    if row[1].startswith("nothing"):
        return
    words = shlex.split(command(row))
    if words[:2] == ["pip", "install"]:
        assert (ROOT / words[words.index("-r") + 1]).is_file()  # tests/test_requirements.py
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)
    elif words[0] == "tensorboard":
        shown = [word for word in TINY if "tensorboard" not in word]
        assert main(["train", "CartPole-v1:random", *shown, "-q"]) == 0
        assert list(Path(words[2]).rglob("events.out.tfevents.*"))
    elif "pytest" in words:
        assert TEST in words and pytest_runs()
    else:
        assert run(words, monkeypatch) == 0, capsys.readouterr().err


@pytest.mark.parametrize("row", [row for row in NOT_YET if command(row)], ids=command)
def test_what_is_not_there_yet_is_refused(row, monkeypatch, capsys):
    code = run(shlex.split(command(row)), monkeypatch)
    assert code == 2, f"it is there now: write so in {PAGE.name}"
    assert capsys.readouterr().err.startswith("error: ")


def test_every_row_says_where_it_stands():
    assert len(WORKS) > 50 and len(NOT_YET) > 5
    for row in ROWS:
        assert len(row) == 3, row
        assert re.match(r"works$|not yet: \w|not run: see below$", row[2]), row
        assert command(row) or row[1].startswith("nothing"), row


def test_the_doors_are_doors():
    for name in ("train", "evaluate", "sweep"):
        text = (ROOT / "scripts" / f"{name}.py").read_text()
        assert len(text.splitlines()) <= 8 and f'main(["{name}", *sys.argv[1:]])' in text
