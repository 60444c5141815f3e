"""Whole sweeps, with processes that are killed: every pair once, and the same results."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from rl_lab.cli.main import main
from rl_lab.records.metrics import read_metrics
from rl_lab.records.run_directory import list_runs
from rl_lab.tuning.driver import own_words, run_sweep, words
from rl_lab.tuning.jobs import Pair, command, find, run_name, together, value
from rl_lab.tuning.report import best_preset, write_report
from rl_lab.tuning.sweep_file import Sweep, read_sweep
from rl_lab.tuning.tuner import Tuner

pytestmark = pytest.mark.needs("optuna")

# An environment that takes no time: what is left is the start of the processes.
SMALL = {
    "base_config": "FrozenLake-v1:q_learning",
    "fixed": {
        "training.total_timesteps": 3_000,
        "training.phases": None,
        "evaluation.every_steps": 1_000,
        "evaluation.episodes": 5,
        "evaluation.test_episodes": 0,
        "checkpoint.every_steps": 500,
        "logging.tensorboard": False,
    },
}


BASE = """
version: 1
experiment: {tags: [mine], name: base}
environment: {id: FrozenLake-v1}
algorithm: {name: q_learning}
"""


def written(folder: Path, **changes) -> Path:
    """A sweep file."""
    tree = {**SMALL, "sweep": {"algorithm.gamma": [0.9, 0.99]}, "seeds": 2, **changes}
    tree["fixed"] = {key: value for key, value in tree["fixed"].items() if value is not None}
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def metrics(root: Path) -> dict[str, list]:
    """What every run of a folder measured, by its name without time and id."""
    found: dict[str, list] = {}
    for run in list_runs(root):
        name = run.path.name.rsplit("-", 3)[0]
        assert name not in found, f"{name} was run twice"
        found[name] = read_metrics(run.metrics_file)
    return found


def test_a_small_grid_from_file_to_preset(tmp_path: Path):
    (tmp_path / "base.yaml").write_text(BASE)
    sweep = read_sweep(written(tmp_path, parallel_jobs=2, base_config="base.yaml"))
    said: list[str] = []
    driver, complete = run_sweep(sweep, tmp_path / "runs", said.append)
    assert complete and len(said) == 6  # a line for each run, and for each trial
    assert sum(" seed " in line for line in said) == 4
    assert sorted(metrics(tmp_path / "runs")) == [
        f"small-t{trial:04d}-s{seed}" for trial in (0, 1) for seed in (1, 2)
    ]
    folder = sweep.folder(tmp_path / "runs")
    facts = write_report(sweep, driver.tuner, folder)
    values = [row["value"] for row in facts["trials"]]
    assert values == sorted(values, reverse=True) and facts["best"]["value"] == values[0]
    last = [
        rows[-1]["eval/return_mean"]
        for name, rows in metrics(tmp_path / "runs").items()
        if f"t{facts['best']['trial']:04d}" in name
    ]
    assert facts["best"]["value"] == pytest.approx(sum(last) / 2)
    assert (folder / "report.md").read_text().count("\n| ") == 3
    for run in list_runs(tmp_path / "runs"):
        config = yaml.safe_load(run.config_file.read_text())
        assert config["experiment"]["tags"] == ["mine", "sweep:small"]
        assert not (run.path / "report.md").exists()  # the sweep has its own
    preset = yaml.safe_load(best_preset(sweep, facts["trials"][0]["settings"]))
    assert preset["experiment"] == {"tags": ["mine"]}
    assert preset["algorithm"]["gamma"] == facts["trials"][0]["settings"]["algorithm.gamma"]

    # The same again does nothing, and says the same.
    driver, complete = run_sweep(sweep, tmp_path / "runs", said.append)
    assert complete and len(said) == 6 and len(metrics(tmp_path / "runs")) == 4
    assert write_report(sweep, driver.tuner, folder) == facts


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path: Path):
    def broken(driver):
        raise ValueError("no screen")

    file = written(tmp_path, sweep={"algorithm.gamma": [0.9, 7.0]}, seeds=1)
    said: list[str] = []
    driver, complete = run_sweep(read_sweep(file), tmp_path / "runs", said.append, broken)
    assert complete
    assert said[0] == "WARNING: the live table is off: ValueError: no screen"
    assert any("trial 1 seed 1 failed" in line and "gamma" in line for line in said)
    assert [state for _, state, _ in driver.tuner.results()] == ["complete", "fail"]


def test_another_sweep_of_the_same_name_is_refused(tmp_path: Path, capsys, monkeypatch):
    file = written(tmp_path, seeds=1)
    words = ["sweep", str(file), "--runs-dir", str(tmp_path / "runs")]
    assert main([*words, "--dry-run", "--json"]) == 0
    preview = json.loads(capsys.readouterr().out)
    assert (preview["trials"], preview["runs"]) == (2, 2)
    assert not (tmp_path / "runs").exists()
    written(tmp_path, sweep={"algorithm.gamma": [0.9]}, seeds=1)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal: a table instead of lines
    monkeypatch.setenv("TERM", "xterm")
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "best: trial 0" in shown
    assert "0/1 trials" in shown and "seed 1:" not in shown
    monkeypatch.delenv("FORCE_COLOR")
    written(tmp_path, sweep={"algorithm.gamma": [0.8]}, seeds=1)
    assert main(words) == 2
    assert "was begun with other settings" in capsys.readouterr().err
    written(tmp_path, sweep={"algorithm.gama": [0.8]}, seeds=1)
    assert main(words) == 2
    assert "gama" in capsys.readouterr().err


# ------------------------------------------------------------------------------- chaos


def workers(driver: int) -> list[int]:
    """The processes that a driver has started."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[1]) == driver and fields[0] != "Z":
                found.append(int(file.parent.name))
    return found


def disturbed(file: Path, root: Path, *, worker_kills: int, driver_kills: int) -> None:
    """Run a sweep to its end while its processes are killed: at once, or when a run has saved."""
    dice, seen = random.Random(0), set()
    kills = ["worker"] * worker_kills + ["driver"] * driver_kills
    dice.shuffle(kills)
    late = True
    deadline = time.monotonic() + 3_600  # against a hang only
    typed = [sys.executable, "-m", "rl_lab", "sweep", str(file), "--runs-dir", str(root)]
    driver = None
    while time.monotonic() < deadline:
        if driver is None or driver.poll() is not None:
            code = -signal.SIGKILL if driver is None else driver.returncode
            if code == 0:
                assert not kills, "it was over before all were killed"
                return
            assert code == -signal.SIGKILL, "the driver gave up by itself"
            driver = subprocess.Popen(
                typed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        time.sleep(dice.uniform(0.1, 0.5))
        alive, saved = workers(driver.pid), set(root.glob("*/checkpoints/step_*"))
        if not kills or not alive or (late and saved <= seen):
            continue
        os.kill(driver.pid if kills.pop() == "driver" else dice.choice(alive), signal.SIGKILL)
        seen, late = saved, dice.random() < 0.7
    if driver is not None:
        driver.kill()
    raise AssertionError("the sweep never ended")


def undisturbed(sweep: Sweep, root: Path) -> list:
    """The very commands of a sweep one after another in this process, which starts none."""
    tuner = Tuner(sweep.space, method=sweep.method, seed=sweep.seed)
    for _ in range(sweep.trials):
        trial, values = tuner.suggest(), []
        for seed in sweep.seeds:
            pair, overrides = Pair(trial, seed), [*own_words(sweep), *words(sweep, trial.settings)]
            _, _, _, *typed = command(sweep, pair, root, overrides)
            assert main(typed) == 0
            values.append(value(find(root, run_name(sweep, pair)), sweep.objective))
        tuner.tell(trial, together(values, sweep.objective))
    return tuner.results()


@pytest.mark.parametrize(
    ("trials", "seeds", "steps", "worker_kills", "driver_kills"),
    [
        (2, 1, 12_000, 1, 1),
        pytest.param(12, 3, 12_000, 10, 3, marks=pytest.mark.slow),
    ],
)
def test_kills_change_nothing(
    tmp_path: Path, trials: int, seeds: int, steps: int, worker_kills: int, driver_kills: int
):
    changes = {
        "sweep": {"algorithm.gamma": {"min": 0.9, "max": 0.99}},
        "method": "random",
        "trials": trials,
        "seeds": seeds,
        "parallel_jobs": 2,
        "fixed": {
            **SMALL["fixed"],
            "training.total_timesteps": steps,
            "checkpoint.every_steps": 2_000,
        },
    }
    file = written(tmp_path, **changes)
    disturbed(file, tmp_path / "killed", worker_kills=worker_kills, driver_kills=driver_kills)
    sweep = read_sweep(file)
    results = undisturbed(sweep, tmp_path / "calm")
    assert len(metrics(tmp_path / "killed")) == trials * seeds
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "calm")
    again, _ = run_sweep(sweep, tmp_path / "killed", lambda line: None)
    assert again.tuner.results() == results
