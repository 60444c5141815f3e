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

from rl_lab.records.metrics import read_metrics
from rl_lab.records.run_directory import list_runs
from rl_lab.tuning.driver import run_sweep, sweep_folder
from rl_lab.tuning.report import best_preset, write_report
from rl_lab.tuning.sweep_file import read_sweep

pytest.importorskip("optuna")

# An environment that takes no time: what is left is the start of the processes.
SMALL = {
    "base_config": "FrozenLake-v1:q_learning",
    "fixed": {
        "training.total_timesteps": 3_000,
        "training.phases": None,
        "evaluation.every_steps": 1_000,
        "evaluation.episodes": 5,
        "checkpoint.every_steps": 500,
        "logging.tensorboard": False,
    },
}


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
    sweep = read_sweep(written(tmp_path, parallel_jobs=2))
    said: list[str] = []
    driver, complete = run_sweep(sweep, tmp_path / "runs", said.append)
    assert complete and len(said) == 2
    assert sorted(metrics(tmp_path / "runs")) == [
        f"small-t{trial:04d}-s{seed}" for trial in (0, 1) for seed in (1, 2)
    ]
    folder = sweep_folder(sweep, tmp_path / "runs")
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
    preset = yaml.safe_load(best_preset(sweep, facts["trials"][0]["settings"]))
    assert preset["algorithm"]["gamma"] == facts["trials"][0]["settings"]["algorithm.gamma"]

    # The same again does nothing, and says the same.
    driver, complete = run_sweep(sweep, tmp_path / "runs", said.append)
    assert complete and len(said) == 2 and len(metrics(tmp_path / "runs")) == 4
    assert write_report(sweep, driver.tuner, folder) == facts


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path: Path):
    file = written(tmp_path, sweep={"algorithm.gamma": [0.9, 7.0]}, seeds=1)
    said: list[str] = []
    driver, complete = run_sweep(read_sweep(file), tmp_path / "runs", said.append)
    assert complete
    assert any("trial 1 seed 1 failed" in line and "gamma" in line for line in said)
    assert [state for _, state, _ in driver.tuner.results()] == ["complete", "fail"]


def test_another_sweep_of_the_same_name_is_refused(tmp_path: Path, capsys):
    from rl_lab.cli.main import main

    file = written(tmp_path, seeds=1)
    words = ["sweep", str(file), "--runs-dir", str(tmp_path / "runs")]
    assert main([*words, "--dry-run", "--json"]) == 0
    preview = json.loads(capsys.readouterr().out)
    assert (preview["trials"], preview["runs"]) == (2, 2)
    assert not (tmp_path / "runs").exists()
    written(tmp_path, sweep={"algorithm.gamma": [0.9]}, seeds=1)
    assert main(words) == 0
    assert "best: trial 0" in capsys.readouterr().out
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
    """Run a sweep to its end while its processes are killed."""
    dice = random.Random(0)
    command = [sys.executable, "-m", "rl_lab", "sweep", str(file), "--runs-dir", str(root)]
    for _ in range(200):
        driver = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        deadline = time.monotonic() + 600
        while driver.poll() is None and time.monotonic() < deadline:
            time.sleep(dice.uniform(0.5, 2.5))
            alive = workers(driver.pid)
            if worker_kills and alive:
                os.kill(dice.choice(alive), signal.SIGKILL)
                worker_kills -= 1
            elif driver_kills and alive:
                driver.kill()
                driver_kills -= 1
        if driver.wait() == 0:
            assert not worker_kills and not driver_kills, "it was over before all were killed"
            return
    raise AssertionError("the sweep never ended")


@pytest.mark.parametrize(
    ("trials", "seeds", "steps", "worker_kills", "driver_kills"),
    [
        (2, 2, 20_000, 2, 1),
        pytest.param(12, 3, 20_000, 10, 3, marks=pytest.mark.slow),
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
        "fixed": {**SMALL["fixed"], "training.total_timesteps": steps},
    }
    file = written(tmp_path, **changes)
    disturbed(file, tmp_path / "killed", worker_kills=worker_kills, driver_kills=driver_kills)
    sweep = read_sweep(file)
    driver, _ = run_sweep(sweep, tmp_path / "calm", lambda line: None)
    assert len(metrics(tmp_path / "killed")) == trials * seeds
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "calm")
    again, _ = run_sweep(sweep, tmp_path / "killed", lambda line: None)
    assert again.tuner.results() == driver.tuner.results()
