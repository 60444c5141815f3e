"""A new user's first hour: the commands of README and docs/index.md, with the core install.

Slow: it makes a virtual environment, builds and installs the wheel with the pinned core alone, and
trains for real in empty folders. Every command of a README block is run in its order, every command
of the index's table at least once, and each must do what the page says.
"""

import copy
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from first_hour import INDEX, ROOT, SWEEP, TYPED, WITHOUT_JSON, blocks, section

pytestmark = pytest.mark.slow


def commands(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("rl-lab ")]


class Terminal:
    """An empty folder and an install that has nothing but the core."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.bin = folder / "venv" / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.install()
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            **{name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ},
        }

    def install(self, extra: str = "") -> None:
        pip = [self.bin / "python", "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "-c", ROOT / "constraints.txt", f"{ROOT}{extra}"], check=True)

    def elsewhere(self, name: str) -> "Terminal":
        """The same install in another empty folder."""
        other = copy.copy(self)
        other.folder = self.folder.with_name(name)
        other.folder.mkdir()
        return other

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
    seen = {}
    for line in rest:
        # A line whose comment names an extra is typed without it here, and says how to get it.
        extra = re.search(r"# .*\((pip install 'rl-lab\[\w+\]')\)", line)
        seen[line.split()[1]] = terminal.type(line, 2 if extra else 0)
        assert extra is None or extra[1] in seen[line.split()[1]]
    assert re.search(r"resumed from step [\d,]+ of 100,000", seen["train"])
    assert "test return: last" in seen["train"] and "Try next:" in seen["train"]
    (run,) = terminal.folder.glob("runs/CartPole-v1-ppo-*")
    assert "<svg" in (run / "report.html").read_text()  # curves without matplotlib
    assert "(100 episodes" in seen["evaluate"] and "video: " in seen["play"]
    assert "finished" in seen["list"] and "bit for bit" in seen["show"]
    assert "# default" in seen["config"] and "ppo.yaml:" in seen["config"]
    assert "IDENTICAL" in seen["demo"] and "report.html" in seen["demo"]


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
    script.write_text(f"{code}\nprint(len(rows), 'rows of', run)\n")
    shown = terminal.type("python tour.py")
    assert "return_mean=" in shown and re.search(r"^[1-9]\d* rows of ", shown, re.MULTILINE)


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


# -- docs/index.md --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(terminal):
    """A folder with two short runs."""
    there = terminal.elsewhere("index")
    there.type("rl-lab train CartPole-v1:ppo --total-timesteps 4e3 --seed 1,2")
    (there.folder / "tune.yaml").write_text(SWEEP)
    return there


@pytest.mark.parametrize("command", TYPED)
def test_a_command_of_the_index(trained, command):
    for words, code, expected in TYPED[command]:
        shown = trained.type(f"rl-lab {words}", code)
        assert expected in shown, f"{words}\n{shown}"
    name = " ".join(re.findall(r"^[a-z-]+|(?<= )[a-z]+(?= |$)", command))
    if command not in WITHOUT_JSON:  # "every command that prints data"
        assert "--json" in trained.type(f"rl-lab {name} --help")


def test_how_the_index_names_a_run(trained):
    run = max(trained.folder.glob("runs/CartPole-v1-ppo-*"))
    first = min(run.glob("checkpoints/step_*"))
    number = run.name.rpartition("-")[2]
    whole = ["@last", number, number[:4], run.name, f"runs/{run.name}", str(run)]
    for reference in whole:
        assert run.name in trained.type(f"rl-lab show {reference}"), reference
    step = int(first.name.removeprefix("step_"))
    for reference in (f"{number}:{step}", f"runs/{run.name}/checkpoints/{first.name}/"):
        shown = trained.type(f"rl-lab evaluate {reference} --episodes 2")
        assert f"run {number} at step {step:,}" in shown, reference
    for reference in ("@best", "@best:CartPole-v1", f"{number}:best", f"{number}:last"):
        assert "(2 episodes" in trained.type(f"rl-lab evaluate {reference} --episodes 2")
    trained.environment = {**trained.environment, "RL_LAB_RUNS": "nowhere"}
    assert "no runs in nowhere" in trained.type("rl-lab list")
    assert number in trained.type("rl-lab list --runs-dir runs")
    del trained.environment["RL_LAB_RUNS"]


def test_a_run_on_disk_is_what_the_index_lists(trained):
    (listing,) = blocks("A run on disk", page=INDEX)
    named = [re.split(r" {2,}", line[2:])[0] for line in listing.splitlines() if line[:2] == "  "]
    assert len(named) > 10
    files = {each for line in named for each in line.replace(", .", ", report.").split(", ")}
    files |= set(re.findall(r"report\.svg|timing_alerts\.jsonl", listing))
    (trained.folder / "runs" / "index.sqlite").unlink()  # "it can be deleted"
    trained.type("rl-lab tag @last +paper")
    run = max(trained.folder.glob("runs/CartPole-v1-ppo-*"))
    there = {f"{each.name}/" if each.is_dir() else each.name for each in run.iterdir()}
    assert there <= {*files, "logs/"}  # nothing that is not explained
    sometimes = {"pictures/", "videos/", "recordings/", "logs/run.log", "crash/"}
    sometimes |= {"alerts.jsonl", "timing_alerts.jsonl"}
    assert files - sometimes <= there


def test_the_page_with_its_extra(trained):
    trained.install("[ui]")
    words = [trained.bin / "rl-lab", "ui", "--no-browser", "--port", "0"]
    where = {"cwd": trained.folder, "env": trained.environment, "text": True}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **where)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        browser = build_opener(HTTPCookieProcessor())
        assert "<title>RL Lab" in browser.open(address).read().decode()
        table = browser.open(address.partition("/?")[0] + "/api/runs").read().decode()
        for run in trained.folder.glob("runs/CartPole-v1-ppo-*"):
            assert run.name in table
    finally:
        process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in shown, shown


def test_a_sweep_with_its_extra(trained):
    trained.install("[tune]")
    shown = trained.type("rl-lab sweep tune.yaml --runs-dir swept")
    assert "best" in shown and list(trained.folder.glob("swept/sweeps/*/best.yaml"))
    trained.type("rl-lab sweep tune.yaml --runs-dir swept")  # again: nothing is left to run


def test_make_train_in_a_fresh_clone(terminal):
    """`make test`, the other one of the two commands, is the suite itself: not typed here."""
    clone = terminal.elsewhere("clone")
    network = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    clone.environment = {**network, **clone.environment}  # it installs: proxies, mirrors
    for folder in ("src", "docs"):
        skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / folder, clone.folder / folder, ignore=skipped)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone.folder)
    assert "make train" in section("Two commands") and "`make train`" in INDEX
    assert "train " in clone.type("make help")
    shown = clone.type("make train")
    assert "test return: last" in shown and "Try next:" in shown
    assert "finished" in clone.type(".venv/bin/rl-lab list")
