"""How a sweep is shown while it runs."""

import io
import json
import math
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from rl_lab.display.live_table import LiveTable, Picture
from rl_lab.tuning.driver import Driver
from rl_lab.tuning.jobs import Job, Pair, run_name
from rl_lab.tuning.progress import Row, Watcher, overview, picture
from rl_lab.tuning.sweep_file import parse_sweep
from rl_lab.tuning.tuner import Tuner

pytestmark = pytest.mark.needs("optuna")

SWEEP = parse_sweep(
    {
        "name": "s",
        "base_config": "CartPole-v1:ppo",
        "sweep": {"a.gamma": {"min": 0.0, "max": 1.0}, "b.n": [1, 2], "b.same": [7]},
        "method": "random",
        "trials": 4,
        "seeds": 3,
    }
)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """Trial 0 is told, 1 has a seed done and one at work, 2 is pruned, 3 has not begun."""
    tuner = Tuner(SWEEP.space, method="random")
    told, at_work, pruned = (tuner.suggest() for _ in range(3))
    tuner.tell(told, 10.0)
    tuner.prune(pruned)
    run = tmp_path / f"{run_name(SWEEP, Pair(at_work, 2))}-20260101-000000-abcdef"
    run.mkdir()
    (run / "config.yaml").write_text("")
    rows = [{"step": 100, "eval/return_mean": 30.0}, {"step": 200, "train/loss": 1.0}]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with subprocess.Popen(["true"]) as process:
        jobs = [Job(Pair(at_work, 2), process, 0, tmp_path / "log")]
    return Driver(SWEEP, tmp_path, print, tuner, active=jobs, values={1: {1: 20.0}})


def test_what_the_journal_and_the_folders_say(driver):
    seen = overview(driver)
    settings = [trial.settings for trial, _, _ in driver.tuner.results()]
    assert list(seen.rows) == [
        Row(1, settings[1], 1, (200,), 25.0, "running"),  # (20 + 30) / 2, so far
        Row(0, settings[0], 3, (), 10.0, "done"),
        Row(2, settings[2], 0, (), None, "pruned"),
    ]
    assert (seen.trials_done, seen.trials, seen.best) == (2, 4, (0, 10.0))
    assert seen.runs_left == 5  # two of trial 1, three of trial 3
    driver.active.clear()
    assert overview(driver).rows[0].state == "waiting"


def test_the_table_and_the_line_below_it(driver):
    shown = picture(SWEEP, overview(driver), 100.0)
    assert shown.columns == ["trial", "gamma", "n", "seeds", "step", "eval/return_mean", "state"]
    gamma = driver.tuner.results()[1][0].settings["a.gamma"]
    assert shown.rows[0][1] == f"{gamma:.4g}"
    assert shown.rows[0][3:] == ["1/3", "200", "25", "running"]
    assert shown.foot == "2/4 trials  best 10 (trial 0)  ETA 1:40"


def test_the_time_left_is_told_by_the_pace_so_far():
    watcher = Watcher(LiveTable(Console(file=io.StringIO())))
    assert math.isnan(watcher.eta(100.0, 7))
    assert watcher.eta(140.0, 5) == 40.0 * 5 / 2  # two runs took 40 seconds, five are left
    assert watcher.eta(240.0, 0) == 0.0


def test_it_looks_once_a_second(driver):
    class Counting(LiveTable):
        drawn = 0

        def draw(self, picture: Picture) -> None:
            self.drawn += 1

    moments = iter([0.0, 0.5, 0.9, 1.0, 1.9, 2.1])
    table = Counting(Console(file=io.StringIO()))
    watcher = Watcher(table, now=lambda: next(moments))
    for _ in range(6):
        watcher(driver)
    assert table.drawn == 3  # at 0, 1 and 2.1


def test_a_terminal_shows_what_it_has_room_for():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, height=9, color_system=None)
    rows = [[str(index), "x", "done"] for index in range(5)]
    with LiveTable(console) as table:
        table.draw(Picture(["trial", "n", "state"], rows, ["green"] * 5, "below"))
        table.say("[above]")
    text = screen.getvalue()
    assert "… and 3 more" in text and "below" in text and "[above]" in text
    assert text.rstrip().endswith("[2K")  # the table is gone when all is over


@pytest.mark.parametrize(
    ("options", "draws"),
    [
        ({"force_terminal": True}, True),
        ({"force_terminal": False}, False),
        ({"force_terminal": True, "_environ": {"TERM": "dumb"}}, False),
    ],
)
def test_only_a_terminal_is_drawn_on(options, draws):
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), **options)
    assert LiveTable(console).can_draw is draws
