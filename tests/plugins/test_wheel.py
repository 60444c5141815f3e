"""Wheels: RL Lab's own trains in an empty folder; another package adds one part of each kind."""

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import gymnasium as gym
import pytest

from rl_lab.cli.main import main
from rl_lab.core import registry
from rl_lab.records.run_directory import list_runs
from tiny_runs import SMALL, run_hash

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).with_name("tiny_plugin")
ENTRY_POINTS = {
    "algorithm.tiny_gradient": "tiny_plugin.gradient:Gradient",
    "env.tiny/Line-v0": "tiny_plugin.parts:Line",
    "network.tiny_wide": "tiny_plugin.parts:Wide",
    "buffer.tiny_diary": "tiny_plugin.parts:Diary",
    "wrapper.TinyAddReward": "tiny_plugin.parts:AddReward",
}
BROKEN = {
    "workflow.broken": "broken_plugin:Nothing",
    "env.Broken-v0": "broken_plugin:Nothing",
    "workflow.ppo": "broken_plugin:Nothing",  # the name is taken
}
CONFIG = """\
version: 1
environment:
  id: tiny/Line-v0
  wrappers: [{id: TinyAddReward, amount: 0.5}]
algorithm: {name: tiny_gradient, learning_rate: 5e-3}
network: {encoder: {type: tiny_wide, width: 8}}
buffers: {rollout: {type: tiny_diary}}
"""
OVERRIDES = [word for word in SMALL if "hidden_dims" not in word]


def build_wheel(folder: Path, name: str, files: dict[str, str], points: dict[str, str]) -> Path:
    """A wheel is a zip with three files of its own: no build tool and no network is needed."""
    info = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[rl_lab]\n"
        + "".join(f"{a} = {b}\n" for a, b in points.items()),
    }
    record = f"{info}/RECORD"
    lines = [f"{path},{checksum(text)},{len(text.encode())}\n" for path, text in files.items()]
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, record: "".join([*lines, f"{record},,\n"])}.items():
            archive.writestr(path, text)
    return wheel


def checksum(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with both packages installed by pip."""
    folder = tmp_path_factory.mktemp("wheels")
    files = {f"tiny_plugin/{file.name}": file.read_text() for file in PACKAGE.glob("*.py")}
    wheels = [
        build_wheel(folder, "tiny_plugin", files, ENTRY_POINTS),
        build_wheel(folder, "broken_plugin", {"broken_plugin.py": "1 / 0\n"}, BROKEN),
    ]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--disable-pip-version-check", "--no-compile", "--target", str(folder / "site")]
    subprocess.run([*command, *map(str, wheels)], check=True, timeout=120)
    return folder / "site"


@pytest.fixture
def installed(site, tmp_path, monkeypatch):
    """As if this process had been started with the packages installed."""
    (tmp_path / "all_five.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(registry, "_plugins", None)
    monkeypatch.setattr(registry, "_entries", {k: dict(v) for k, v in registry._entries.items()})
    yield tmp_path
    for id in [id for id in gym.registry if id in ("tiny/Line-v0", "Broken-v0")]:
        del gym.registry[id]


def run(site: Path, *words: str, code: int = 0, fault: str = "") -> None:
    """The real command in its own process."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    if fault:
        environment["RL_LAB_FAULT"] = fault
    command = [sys.executable, "-m", "rl_lab", "train", *words, "-q"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr


def only_run(root: Path):
    (run,) = list_runs(root)
    return run


def test_all_five_train_are_killed_and_resume_exactly(site, tmp_path):
    (tmp_path / "all_five.yaml").write_text(CONFIG)
    words = ["--config", str(tmp_path / "all_five.yaml"), *OVERRIDES]
    run(site, *words, "--runs-dir", str(tmp_path / "straight"))
    killed = ["--runs-dir", str(tmp_path / "killed")]
    run(site, *words, *killed, code=-signal.SIGKILL, fault="hook.after:kill@21")
    run(site, "--resume", "@last", *killed)
    straight, resumed = only_run(tmp_path / "straight"), only_run(tmp_path / "killed")
    assert resumed.read_summary()["resumes"] == 1
    assert run_hash(straight) == run_hash(resumed)
    rows = [json.loads(line) for line in resumed.metrics_file.read_text().splitlines()]
    assert rows[-1]["train/diary"] == 1024 / (4 * 8)  # the buffer's own count, through the kill
    assert rows[-1]["train/reward"] >= 0.5  # the wrapper adds it to every reward
    config = resumed.config_file.read_text()
    assert all(each.partition(".")[2] in config for each in ENTRY_POINTS)
    assert "plugins: []" in config  # found by name alone


def test_a_plug_in_environment_runs_in_worker_processes(installed):
    words = ["environment.vectorization=process", "environment.workers=1", "-q"]
    words += ["evaluation.every_steps=0", "evaluation.test_episodes=0"]  # each starts workers anew
    assert main(["train", "--config", "all_five.yaml", *OVERRIDES, *words]) == 0
    assert only_run(installed / "runs").read_summary()["status"] == "finished"


def test_plug_ins_are_listed_and_checked(installed, capsys):
    def call(*words):
        assert main([*words]) == 0
        return capsys.readouterr().out

    assert "tiny/Line-v0" in call("envs", "line")
    assert re.search(r"tiny_gradient +both +Make rewarded actions likelier\.", call("algorithms"))
    assert "algorithm.learning_rate" in call("algorithms", "tiny_gradient")
    assert "bit for bit" in call("check", "algorithm", "tiny_gradient")
    shown = call("check", "install")
    assert "plug-in encoder.tiny_wide" in shown and "from tiny_plugin" in shown
    assert "ZeroDivisionError" in shown


def test_a_broken_plug_in_is_a_warning_until_it_is_used(installed, capsys, caplog):
    assert main(["algorithms"]) == 0
    listed = capsys.readouterr()
    assert "ppo" in listed.out and "\nbroken " not in listed.out
    assert "warning: workflow 'broken' of the package broken_plugin does not load" in listed.err
    assert "'ppo' of the package broken_plugin is ignored: RL Lab itself" in caplog.text
    assert main(["envs", "broken"]) == 0
    reason = "of the package broken_plugin does not load: ZeroDivisionError: division by zero"
    for spec, named in (
        ("CartPole-v1:broken", "algorithm.name: workflow 'broken'"),
        ("Broken-v0:random", "env 'Broken-v0'"),
    ):
        capsys.readouterr()
        assert main(["train", spec, *OVERRIDES]) == 2
        lines = capsys.readouterr().err.splitlines()
        (error,) = [line for line in lines if line.startswith("error:")]
        assert named in error and reason in error


# ------------------------------------------------------------------- our own wheel

TRAIN = """\
import gymnasium as gym
from importlib.metadata import version
import rl_lab

small = {"evaluation.episodes": 2, "evaluation.test_episodes": 2, "logging.tensorboard": False}
run = rl_lab.train(gym.make("CartPole-v1"), "ppo", total_timesteps=2048, **small)
assert run.exit_code == 0 and run.evaluate(episodes=2).episodes == 2
assert version("rl-lab") == rl_lab.__version__
print(rl_lab.__file__)
"""


@pytest.fixture(scope="module")
def own_venv(tmp_path_factory):
    """A new virtual environment with RL Lab's wheel, and this one's packages as its dependencies.

    A path in a .pth file is searched after the new environment's own folder, and the .pth files in
    it are not read: an editable install of RL Lab is not found there.
    """
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("own")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build, str(source)], check=True, timeout=300)
    (wheel,) = folder.glob("rl_lab-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python, "-c", asked], text=True).strip())
    install = ["install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=300)
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


def test_our_wheel_trains_from_an_empty_folder(own_venv, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RL_LAB_RUNS")}
    command = {"cwd": tmp_path, "env": {**environment, "OMP_NUM_THREADS": "1"}, "text": True}
    shown = subprocess.check_output([own_venv, "-c", TRAIN], timeout=300, **command)
    assert Path(shown.strip()).is_relative_to(own_venv.parents[1])
    words = ["train", "CartPole-v1:ppo", "--total-timesteps", "1024", "-q"]
    subprocess.run([own_venv, "-m", "rl_lab", *words], check=True, timeout=300, **command)
    runs = list_runs(tmp_path / "runs")
    assert [run.read_summary()["status"] for run in runs] == ["finished"] * 2
    assert not any("no preset" in run.log_file.read_text() for run in runs)  # it is in the wheel
