"""The rules of a sweep, one at a time, without running anything."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rl_lab.core.errors import UserError
from rl_lab.records.run_directory import RunDirectory
from rl_lab.tuning import driver as driver_module
from rl_lab.tuning.driver import Driver, _remember, alone, own_words
from rl_lab.tuning.jobs import Job, Pair, command, find, run_name, value
from rl_lab.tuning.sweep_file import Objective, parse_sweep, read_sweep
from rl_lab.tuning.tuner import Tuner

pytestmark = pytest.mark.needs("optuna")

TREE = {
    "name": "s",
    "base_config": "CartPole-v1:ppo",
    "sweep": {"algorithm.gamma": {"min": 0.9, "max": 0.99}},
    "method": "random",
    "trials": 9,
    "seeds": 3,
    "pruner": "median",
    "grace_steps": 150,
}
SWEEP = parse_sweep(TREE)


def made_driver(root: Path) -> Driver:
    tuner = Tuner(SWEEP.space, method="random", pruner="median")
    return Driver(SWEEP, root, lambda line: None, tuner)


def made_run(root: Path, name: str, curve: dict, *, status: str = "running", made: str = "abcdef"):
    """A folder that looks like a run."""
    path = root / f"{name}-20260101-000000-{made}"
    path.mkdir()
    (path / "config.yaml").write_text("")
    (path / "summary.json").write_text(json.dumps({"status": status}))
    rows = [{"step": step, "eval/return_mean": each} for step, each in curve.items()]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return RunDirectory(path)


def test_a_trial_is_worth_something_when_all_of_its_seeds_are(tmp_path: Path):
    driver = made_driver(tmp_path)
    good, bad = driver.tuner.suggest(), driver.tuner.suggest()
    driver._plan(good)
    driver._plan(bad)
    for seed, worth in ((1, 10.0), (2, 20.0)):
        driver._worth(Pair(good, seed), worth)
        driver._worth(Pair(bad, seed), worth)
    assert [state for _, state, _ in driver.tuner.results()] == ["running", "running"]
    driver._worth(Pair(good, 3), 60.0)
    driver._worth(Pair(bad, 3), None)
    assert [(state, worth) for _, state, worth in driver.tuner.results()] == [
        ("complete", 30.0),
        ("fail", None),
    ]
    assert driver.tuner.seeds(good) == [10.0, 20.0, 60.0]


def test_a_hopeless_trial_is_stopped_after_the_grace_with_all_of_its_seeds(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(driver_module, "LOOK_SECONDS", 0.0)
    driver = made_driver(tmp_path)
    for _ in range(5):  # the median pruner wants to have seen five
        other = driver.tuner.suggest()
        driver.tuner.hopeless(other, {100: 50.0, 200: 50.0})
        driver.tuner.tell(other, 50.0)
    trial, next_one = driver.tuner.suggest(), driver.tuner.suggest()
    driver._plan(trial)
    driver._plan(next_one)
    pair = driver.waiting.popleft()
    run = made_run(tmp_path, run_name(SWEEP, pair), {100: 1.0})
    process = subprocess.Popen(["sleep", "60"])
    driver.active.append(Job(pair, process, 0, tmp_path / "log"))
    driver._prune()
    assert process.poll() is None and len(driver.waiting) == 5  # 100 is within the grace
    with run.metrics_file.open("a") as file:
        file.write('{"step": 200, "eval/return_mean": 1.0}\n')
    driver._prune()
    assert process.poll() is not None
    assert [each.trial for each in driver.waiting] == [next_one] * 3
    assert driver.tuner.results()[5][1] == "pruned"


def test_a_killed_run_is_continued_and_a_failed_one_is_not(tmp_path: Path):
    driver = made_driver(tmp_path)
    trial = driver.tuner.suggest()
    driver._plan(trial)
    for pair, code in ((driver.waiting.popleft(), 1), (driver.waiting.popleft(), -9)):
        with subprocess.Popen(
            ["sh", "-c", f"exit {code}" if code > 0 else "kill -9 $$"]
        ) as process:
            process.wait()
        assert process.returncode == code
        (tmp_path / "log").write_text("what was wrong\n")
        driver._ended(Job(pair, process, 0, tmp_path / "log"))
    assert [pair.seed for pair in driver.waiting] == [2, 3]  # the killed one is next
    assert driver.values == {0: {1: None}}


def test_what_an_earlier_driver_left_is_only_read(tmp_path: Path):
    driver = made_driver(tmp_path)
    left = [driver.tuner.suggest() for _ in range(9)]  # as many as there are
    for trial in left:
        for seed in SWEEP.seeds:
            name = run_name(SWEEP, Pair(trial, seed))
            made_run(tmp_path, name, {1: trial.number + seed / 10}, status="finished")
    assert driver.run() and not driver.active
    assert [worth for _, _, worth in driver.tuner.results()] == pytest.approx(
        [trial.number + 0.2 for trial in left]
    )


def test_a_name_means_one_sweep(tmp_path: Path):
    _remember(SWEEP, tmp_path)
    _remember(replace(SWEEP, trials=20, parallel_jobs=4), tmp_path)  # these may change on the way
    with pytest.raises(UserError, match="was begun with other settings"):
        _remember(replace(SWEEP, seeds=(1, 2)), tmp_path)


def test_one_driver_at_a_time(tmp_path: Path):
    with (
        alone(tmp_path),
        pytest.raises(UserError, match="is being run by another process"),
        alone(tmp_path),
    ):
        pass
    with alone(tmp_path):  # it is free again
        pass


def test_runs_keep_the_tags_of_the_experiment(tmp_path: Path):
    base = "version: 1\nexperiment: {tags: [mine]}\nenvironment: {id: CartPole-v1}\n"
    (tmp_path / "base.yaml").write_text(base)
    file = tmp_path / "s.yaml"
    file.write_text("base_config: base.yaml\nsweep: {algorithm.gamma: [0.9]}\n")
    assert own_words(read_sweep(file))[0] == 'experiment.tags=["mine", "sweep:s"]'
    assert own_words(SWEEP)[0] == 'experiment.tags=["sweep:s"]'


def test_what_a_run_is_worth(tmp_path: Path):
    run = made_run(tmp_path, "a", {1: 2.0, 2: 5.0, 3: 3.0})
    assert value(run, Objective()) == 3.0
    assert value(run, Objective(of="best")) == 5.0
    assert value(run, Objective(of="best", direction="min")) == 2.0
    assert value(run, Objective(metric="train/loss")) is None


def test_a_run_is_found_by_its_name_and_continued(tmp_path: Path):
    pair = Pair(Tuner(SWEEP.space, method="random").suggest(), 1)
    name = run_name(SWEEP, pair)
    assert name == "s-t0000-s1"
    made_run(tmp_path, "s-t0000-s11", {}, status="finished")
    (tmp_path / f"{name}-20260101-000000-aaaaaa").mkdir()  # it never had a configuration
    assert find(tmp_path, name) is None
    begun = ["train", "CartPole-v1:ppo", f"experiment.name={name}", "a=1", "--seed", "1"]
    assert command(SWEEP, pair, tmp_path, ["a=1"])[3:-3] == begun
    done = made_run(tmp_path, name, {}, status="finished", made="bbbbbb")
    made_run(tmp_path, name, {}, made="cccccc")
    assert find(tmp_path, name).path == done.path
    assert command(SWEEP, pair, tmp_path, ["a=1"])[3:6] == ["train", "--resume", str(done.path)]
