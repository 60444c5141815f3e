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
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs" / "index.md").read_text()


def section(heading: str, page: str = README) -> str:
    return page.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def blocks(heading: str, language: str = "", page: str = README) -> list[str]:
    """The fenced blocks below a heading."""
    fence = rf"^```{language}\n(.*?)^```"
    return re.findall(fence, section(heading, page), re.MULTILINE | re.DOTALL)


def table_commands(text: str) -> list[str]:
    """The commands in the first column of a table; `bench envs\\|collect` are two."""
    found = []
    for row in re.findall(r"^\| (`rl-lab .*?) \| ", text.replace("\\|", "/"), re.MULTILINE):
        for command in re.findall(r"`rl-lab ([^`]+)`", row):
            first, *rest = command.split()
            choices = rest[0].split("/") if rest and "/" in rest[0] else []
            found += [f"{first} {each}" for each in choices] or [command]
    return found


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

SHORT = "--repeats 1 --seconds 0.05"
SWEEP = """\
base_config: CartPole-v1:random
sweep: {algorithm.collect_steps: [8, 16]}
fixed: {training.total_timesteps: 200}
"""
# For each command of the table what is typed, the exit code, and a part of what is then printed.
# Trainings and measurements are shortened; what changes the last run has a folder of its own.
TYPED: dict[str, list[tuple[str, int, str]]] = {
    "train": [
        ("train FrozenLake-v1:q_learning --total-timesteps 500 --runs-dir other", 0, "Try next:"),
        ("train --resume @last --runs-dir other", 0, "resumed from step"),
    ],
    "config": [("config CartPole-v1:ppo", 0, "# default")],
    "evaluate RUN": [("evaluate @best --episodes 5", 0, "(5 episodes")],
    "play RUN": [("play @last", 0, "video: ")],
    "imagine RUN": [
        ("imagine @last", 2, "ppo has no world model"),
        ("train CartPole-v1:dreamer_v3 --total-timesteps 300 --debug --runs-dir dreams", 0, ""),
        ("imagine @last --runs-dir dreams", 0, "15 steps predicted"),
    ],
    "list": [("list", 0, "finished")],
    "show RUN": [("show @last", 0, "bit for bit")],
    "tag RUN +NAME": [("tag @last +paper", 0, "paper"), ("list --filter tag=paper", 0, "paper")],
    "compare RUNS": [("compare 'CartPole-*'", 0, "only 2 seeds"), ("compare", 2, "name runs")],
    "export RUNS": [("export 'CartPole-*'", 0, "| CartPole-v1 |")],
    "report RUNS": [("report @last", 0, "report.html")],
    "verify RUN": [("verify @last", 0, "IDENTICAL")],
    "sweep FILE": [("sweep tune.yaml", 2, "pip install 'rl-lab[tune]'")],  # below with the extra
    "cleanup": [
        ("cleanup --dry-run", 0, "kept whole"),
        ("train FrozenLake-v1:q_learning --total-timesteps 500 --runs-dir old", 0, ""),
        ("cleanup --keep-best 0 --keep-recent 0 --yes --runs-dir old", 0, "freed "),
    ],
    "envs": [("envs CartPole", 0, "CartPole-v1")],
    "algorithms": [("algorithms", 0, "ppo")],
    "replay-crash RUN": [
        ("train CartPole-v1:ppo algorithm.learning_rate=1e30 --runs-dir bad", 1, "replay-crash"),
        ("replay-crash @last --runs-dir bad", 1, "reproduced: update"),
    ],
    "check env": [("check env CartPole-v1", 0, "OK: CartPole-v1")],
    "check algorithm": [("check algorithm ppo", 0, "bit for bit")],
    "check install": [("check install", 0, "writable")],
    "new algorithm": [("new algorithm my_rule", 0, "rl-lab train")],
    "new env": [("new env my_room", 0, "rl-lab train")],
    "smoke [TEXT]": [("smoke FrozenLake --timesteps 100 --limit 1", 0, "2 ok, 0 failed")],
    "bench envs": [(f"bench envs CartPole-v1 {SHORT}", 0, "ratio: to sync")],
    "bench collect": [(f"bench collect CartPole-v1:ppo {SHORT}", 0, "environment only")],
    # A table has nothing to compile, which would take a minute.
    "bench update": [(f"bench update FrozenLake-v1:q_learning {SHORT}", 0, "update, eager")],
    # It trains for minutes in other libraries, and only in a clone.
    "bench peers": [("bench peers", 2, "in a source checkout")],
    "bench profile": [
        ("bench profile CartPole-v1:ppo training.total_timesteps=2000 --repeats 1", 0, "checkpoint")
    ],
    "index rebuild": [("index rebuild", 0, "2 runs in runs/index.sqlite")],
}
WITHOUT_JSON = {"export RUNS", "new algorithm", "new env", "bench peers"}


@pytest.fixture(scope="module")
def trained(terminal):
    """A folder with two short runs."""
    there = terminal.elsewhere("index")
    there.type("rl-lab train CartPole-v1:ppo --total-timesteps 4e3 --seed 1,2")
    (there.folder / "tune.yaml").write_text(SWEEP)
    return there


def test_every_command_of_the_index_is_typed():
    assert table_commands(section("Commands", INDEX)) == list(TYPED)


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
    files |= set(re.findall(r"report\.svg", listing))
    (trained.folder / "runs" / "index.sqlite").unlink()  # "it can be deleted"
    trained.type("rl-lab tag @last +paper")
    run = max(trained.folder.glob("runs/CartPole-v1-ppo-*"))
    there = {f"{each.name}/" if each.is_dir() else each.name for each in run.iterdir()}
    assert there <= {*files, "logs/"}  # nothing that is not explained
    sometimes = {"pictures/", "videos/", "logs/run.log", "crash/"}
    assert files - sometimes <= there


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
