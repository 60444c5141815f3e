"""What a sweep found: the table, the best as a preset, the pictures."""

from pathlib import Path

import pytest
import yaml

from rl_lab.tuning.jobs import interval
from rl_lab.tuning.report import importances, write_report
from rl_lab.tuning.sweep_file import Objective, parse_sweep
from rl_lab.tuning.tuner import Tuner

pytestmark = pytest.mark.needs("optuna")

TREE = {
    "name": "s",
    "base_config": "CartPole-v1:ppo",
    "sweep": {
        "algorithm.epochs": [1, 2, 4, 8, 16],
        "algorithm.gamma": [0.9],
        "algorithm.rollout_steps": "${algorithm.epochs} * 16",
    },
    "seeds": 2,
    "objective": {"metric": "train/loss", "direction": "min"},
}


def searched(sweep, worths: list) -> Tuner:
    """A search whose trials were told these values, of two seeds each."""
    tuner = Tuner(sweep.space, method=sweep.method, direction=sweep.objective.direction)
    for worth in worths:
        trial = tuner.suggest()
        tuner.tell(trial, worth, [] if worth is None else [worth - 1, worth + 1])
    tuner.prune(tuner.suggest())
    return tuner


def test_the_table_the_preset_and_the_pictures(tmp_path: Path):
    sweep = parse_sweep(TREE)
    facts = write_report(sweep, searched(sweep, [3.0, 1.5, None, 7.0]), tmp_path)
    assert [row["trial"] for row in facts["trials"]] == [1, 0, 3, 2, 4]  # the smallest is best
    assert facts["best"]["value"] == 1.5 and facts["best"]["trial"] == 1
    text = (tmp_path / "report.md").read_text()
    assert "| trial | value | 95 % interval | epochs | gamma | rollout_steps |" in text
    assert "| 1 | 1.5 | 0.5 to 2.5 | 2 | 0.9 | 32 |" in text
    assert "| 2 | fail |  | 4 | 0.9 | 64 |" in text
    assert "| 4 | pruned |  | 16 | 0.9 | 256 |" in text
    assert "![parallel](parallel.svg)" in text and "importance" not in text  # too few to say
    picture = (tmp_path / "parallel.svg").read_text()
    assert picture.count("<polyline") == 5 and picture.count('"#d0d7de"') == 2  # two have no value
    # The best line is the darkest one and on top of the others.
    assert picture.rindex("#0b3d91") > picture.rindex("#a5d8ff") > picture.rindex("#d0d7de")
    preset = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert (preset["algorithm"]["epochs"], preset["algorithm"]["rollout_steps"]) == (2, 32)
    assert preset["environment"]["id"] == "CartPole-v1"


def test_without_a_value_there_is_no_best(tmp_path: Path):
    sweep = parse_sweep(TREE)
    facts = write_report(sweep, searched(sweep, [None, None]), tmp_path)
    assert facts["best"] is None and not (tmp_path / "best.yaml").exists()
    assert "train --config" not in (tmp_path / "report.md").read_text()


def test_what_mattered_is_found(tmp_path: Path):
    tree = {
        **TREE,
        "sweep": {"algorithm.epochs": [1, 2, 3, 4], "algorithm.gamma": [0.9, 0.95, 0.99]},
    }
    sweep = parse_sweep(tree)
    tuner = Tuner(sweep.space, method="grid", direction="min")
    while (trial := tuner.suggest()) is not None:
        tuner.tell(
            trial, 10.0 * trial.settings["algorithm.epochs"] + trial.settings["algorithm.gamma"]
        )
    shares = importances(tuner)
    assert shares["algorithm.epochs"] > 0.9 and sum(shares.values()) == pytest.approx(1.0)
    write_report(sweep, tuner, tmp_path)
    assert "the better half of 12 trials" in (tmp_path / "report.md").read_text()
    bars = (tmp_path / "importance.svg").read_text()
    assert bars.count("<rect") == 1 + 2 and f">{shares['algorithm.epochs']:.0%}<" in bars


def test_the_interval_over_seeds():
    # Two seeds drawn twice: a mean of 0, 5 or 10 with a chance of 1/4, 1/2, 1/4.
    assert interval([0.0, 10.0], Objective()) == (0.0, 10.0)
    assert interval([4.0, 4.0, 4.0], Objective()) == (4.0, 4.0)
    assert interval([4.0], Objective()) is None
