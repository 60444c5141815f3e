"""A new user's first hour: the README's commands, in an empty folder with the core install.

Slow: it makes a virtual environment, builds and installs the wheel with the pinned core alone, and
trains for real. Every command of a README block is run in its order and must do what the page says.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(heading: str, language: str = "") -> list[str]:
    """The fenced blocks below a heading of the README."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("rl-lab ")]


class Terminal:
    """An empty folder and an install that has nothing but the core."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.bin = folder / "venv" / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        pip = [self.bin / "python", "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "-c", ROOT / "constraints.txt", ROOT], check=True)
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            **{name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ},
        }

    def type(self, line: str, code: int = 0) -> str:
        """Run a line as it is written; what it printed."""
        words = shlex.split(line, comments=True)
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        shown = done.stdout + done.stderr
        assert done.returncode == code, f"{line}\nexit code {done.returncode}\n{shown}"
        assert "Traceback" not in shown, f"{line}\n{shown}"
        return shown


@pytest.fixture(scope="module")
def terminal(tmp_path_factory):
    return Terminal(tmp_path_factory.mktemp("first_hour"))


def test_the_tour(terminal):
    """The tour of 60 seconds: killed for real, resumed, evaluated, played, listed."""
    first, *rest = commands(blocks("A tour of 60 seconds")[0])
    words = shlex.split(first, comments=True)
    process = subprocess.Popen(
        words, cwd=terminal.folder, env=terminal.environment, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while not list(terminal.folder.glob("runs/*/checkpoints/step_*")):
        assert process.poll() is None and time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.1)
    process.kill()
    process.wait()
    seen = {line.split()[1]: terminal.type(line) for line in rest}
    assert re.search(r"resumed from step [\d,]+ of 100,000", seen["train"])
    assert "test return: last" in seen["train"] and "Try next:" in seen["train"]
    (run,) = terminal.folder.glob("runs/CartPole-v1-ppo-*")
    assert "<svg" in (run / "report.html").read_text()  # curves without matplotlib
    assert "(100 episodes" in seen["evaluate"] and "video: " in seen["play"]
    assert "finished" in seen["list"] and "bit for bit" in seen["show"]
    assert "# default" in seen["config"] and "ppo.yaml:" in seen["config"]


def test_changes_from_the_command_line(terminal):
    for line in commands(blocks("A tour of 60 seconds")[1]):
        shown = terminal.type(line)
        if "--seed 1,2,3" in line:
            assert len(re.findall(r"^[123] +[0-9a-f]{6} +finished", shown, re.MULTILINE)) == 3
            assert "rl-lab compare" in shown  # what to do with three seeds


def test_a_mistake_is_shown_as_it_is_printed(terminal):
    text = blocks("A tour of 60 seconds")[2]
    line, *expected = text.strip().splitlines()
    shown = terminal.type(line.removeprefix("$ "), code=2)
    assert shown.strip().splitlines() == expected


def test_python_as_it_is_shown(terminal):
    (code,) = blocks("A tour of 60 seconds", "python")
    script = terminal.folder / "tour.py"
    script.write_text(f"{code}\nprint(outcome, policy, len(rows))\n")
    assert terminal.type("python tour.py").strip()


def test_an_algorithm_of_ones_own(terminal):
    (terminal.folder / "examples").mkdir(exist_ok=True)
    source = (ROOT / "examples" / "my_algorithm.py").read_text()
    (terminal.folder / "examples" / "my_algorithm.py").write_text(source)
    for line in commands("\n".join(blocks("How an algorithm looks"))):
        shown = terminal.type(line)
        if line.startswith("rl-lab new "):  # the commands that it prints work, too
            printed = [each.strip() for each in shown.splitlines()]
            tried = [each for each in printed if each.startswith(("rl-lab ", "python "))]
            assert len(tried) >= 3, shown
            for each in tried:
                terminal.type(each)


@pytest.mark.parametrize(
    "command", ["--help", "--version", "envs CartPole", "algorithms", "check install"]
)
def test_what_is_there(terminal, command):
    assert terminal.type(f"rl-lab {command}").strip()
