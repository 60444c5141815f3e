"""The scripts in benchmarks/ measure what they say, as small as they can be. No speed is judged."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from rl_lab.benchmarking.measure import silent
from rl_lab.benchmarking.report import save
from rl_lab.cli.bench import as_text
from rl_lab.core.errors import RunError

FOLDER = Path(__file__).parents[2] / "benchmarks"


def script(name):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def overhead():
    return script("overhead")


@pytest.fixture(scope="module")
def growth():
    return script("growth")


def test_the_steady_state_by_hand(overhead):
    # The first three marks are warm-up: from 5 s to 9 s, 4,096 steps.
    marks = [(1.0, 1024), (4.0, 2048), (5.0, 3072), (6.0, 5120), (9.0, 7168)]
    assert overhead.steady(marks) == 4e6 / 4096
    assert overhead.steady([(1.0, 1024), (3.0, 2048)]) == 2e6 / 1024


def test_the_loop_is_compared_with_the_same_calls(overhead, monkeypatch):
    from rl_lab.algorithms.ppo import PPO

    seen, update = [], PPO.update

    def watched(self, batch, *, phase):
        seen.append((phase["step"], {name: tuple(each.shape[:2]) for name, each in batch.items()
                                     if hasattr(each, "shape")}))  # fmt: skip
        return update(self, batch, phase=phase)

    monkeypatch.setattr(PPO, "update", watched)
    report = overhead.loop(1, 2_500, silent)
    bare, real = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert bare == real and len(bare) == 10  # 10 x 256 steps
    assert [row["name"] for row in report.rows] == ["bare loop", "run"]
    assert "to the bare loop" in as_text(report, {})


def test_the_parts_of_a_default_run_are_shares_of_its_calls(overhead):
    words = ["training.total_timesteps=3000", "compute.compile=off", "evaluation.every_steps=1000"]
    found = overhead.spent(overhead.resolve(overhead.configure(overhead.SPEC, words)[0]))
    assert list(found)[:2] == [overhead.WHOLE, overhead.CALLS]
    parts = sum(found.values()) - found[overhead.WHOLE]
    assert min(found.values()) > 0 and 0.8 * found[overhead.WHOLE] < parts <= found[overhead.WHOLE]


def test_the_first_rollout_is_waited_for(overhead, monkeypatch):
    began, ended = overhead.first_rollout()
    assert 0.3 < began < ended < 120
    monkeypatch.setattr(overhead, "SPEC", "CartPole-v1:poo")
    with pytest.raises(overhead.RunError, match=r"nothing was collected: error: .*'ppo'"):
        overhead.first_rollout()


def test_a_start_is_compared_with_importing_torch(overhead, monkeypatch):
    seconds = {"import torch": (2.0,), "pass": (0.5,)}
    monkeypatch.setattr(overhead, "first_rollout", lambda: (3.0, 4.0))
    monkeypatch.setattr(overhead, "lasting", seconds.__getitem__)
    rows = overhead.start(2, silent).rows
    assert [row["value"]["median"] for row in rows] == [3.0, 4.0, 2.0, 0.5]
    assert [row["ratio"]["median"] for row in rows] == [1.5, 2.0, 1.0, 0.25]


def test_checkpoints_are_a_share_of_a_minute(overhead, monkeypatch):
    monkeypatch.setattr(overhead, "MILLION", "network.encoder.hidden_dims=[128, 128]")
    report = overhead.checkpoint(2, silent)
    small, large = report.rows
    counts = [int(row["name"].split()[1].replace(",", "")) for row in (small, large)]
    assert 8_000 < counts[0] < 10_000 and 34_000 < counts[1] < 37_000
    for row in report.rows:
        assert row["ratio"]["median"] == pytest.approx(row["value"]["median"] / 60)


def test_a_million_parameters_are_a_million(overhead):
    config = overhead.configured(overhead.MILLION)
    first, second = config.network.encoder.hidden_dims
    one = 4 * first + first + first * second + second
    assert 2 * one + 3 * second == pytest.approx(1e6, rel=0.01)


def test_points_of_growth(growth):
    found = growth.envs(2, 0.0)
    assert set(found["costs"]) == {"collect", "update"}
    assert found["per_second"] == pytest.approx(1e6 / sum(found["costs"].values()))
    assert growth.width(8, 0.0)["parameters"] < growth.width(16, 0.0)["parameters"]


def test_a_long_run_tells_its_memory(growth):
    found = growth.length(40_000, 0.0)
    assert 3 <= len(found["memory_mb"]) <= growth.SAMPLES
    assert found["grown_mb"] == found["memory_mb"][-1] - found["memory_mb"][0]
    assert min(found["memory_mb"]) > 50 and growth.peak_mb() > 50


def test_rows_are_written_shown_and_indexed(growth, monkeypatch):
    from rl_lab.cli import show

    read = []

    def watched(path):
        read.append(list(real(path)))
        return iter(read[-1])

    real = show.iterate_metrics
    monkeypatch.setattr(show, "iterate_metrics", watched)
    found = growth.rows(30, 0.0)
    assert set(found["costs"]) == {"append", "show", "index"}
    assert sum("train/metric_0" in row for row in read[0]) == 30


def test_growth_compares_with_the_first_point(growth, monkeypatch, tmp_path):
    costs = {8: {"collect": 4.0, "update": 2.0}, 16: {"collect": 2.0, "update": 3.0}}
    monkeypatch.setattr(
        growth, "fresh", lambda kind, value, seconds: {"costs": costs[value], "peak_mb": 100.0}
    )
    report = growth.bench({"envs": [8, 16]}, 2, 0.0)
    ratios = {row["name"]: row["ratio"]["median"] for row in report.rows}
    assert ratios == {
        "envs 8: collect": 1.0,
        "envs 8: update": 1.0,
        "envs 16: collect": 0.5,
        "envs 16: update": 1.5,
    }
    assert "envs 16: update" in as_text(report, growth.COLUMNS)
    written = save(report, tmp_path / "growth.json", growth.panels)
    assert json.loads(written[0].read_text())["rows"][0]["peak_mb"] == 100.0
    assert len(written) == 1 + (importlib.util.find_spec("matplotlib") is not None)


def test_a_point_has_a_process_of_its_own(growth):
    found = growth.fresh("length", 2_000, 0.0)
    assert found["peak_mb"] > 50 and found["costs"]["run"] > 0
    with pytest.raises(growth.RunError, match="length 0"):
        growth.fresh("length", 0, 0.0)


def test_checkpoints_of_a_buffer_write_what_is_new(monkeypatch):
    buffers = script("buffer_checkpoints")
    found = buffers.point(4, checkpoints=3, new=1)
    assert 1 < found["written_to_new"] < 1.1
    assert 0 < found["seconds"] <= found["slowest"] and found["restore_seconds"] > 0
    monkeypatch.setattr(buffers, "fresh", lambda size: found | {"seconds": size / 100})
    report = buffers.bench([100, 400], 2)
    assert [row["ratio"]["median"] for row in report.rows] == [1.0, 4.0]
    assert "buffer of 400 MB" in as_text(report, buffers.COLUMNS)


def test_both_ways_of_planning_of_tdmpc2_give_the_same_plan():
    planning = script("planning_tdmpc")
    small = "algorithm.planner={horizon: 2, candidates: 6, policy_candidates: 2, elites: 2}"
    report = planning.compare("Pendulum-v1:tdmpc2", 2, 1, silent, small)
    assert len(report.rows) == 2
    assert report.rows[0]["ratio"]["median"] > 0 and report.rows[1]["ratio"]["median"] == 1.0


def test_both_ways_of_planning_give_the_same_plan():
    planning = script("planning")
    small = ["algorithm.planner={horizon: 2, candidates: 4, elites: 2, iterations: 2}"]
    report = planning.compare("Pendulum-v1:planet", 2, 1, silent, *small)
    assert [row["name"] for row in report.rows] == [
        "all candidates at once",
        "one candidate at a time",
    ]
    assert report.rows[0]["ratio"]["median"] > 0 and report.rows[1]["ratio"]["median"] == 1.0
    assert "the same plan" in as_text(report, {})


@pytest.fixture(scope="module")
def memories():
    return script("memories")


def test_every_form_of_every_memory_is_timed_and_computes_the_same(memories, tmp_path, monkeypatch):
    report = memories.forms(6, 2, 64, 1, silent)
    looped = {"gru", "lstm", "mamba"}  # whose sequence is a loop of their own
    for name in memories.MEMORIES:
        forms = [row["name"].split()[1] for row in report.rows if row["name"].split()[0] == name]
        assert forms == ["sequence", *(["cells"] if name in looped else []), "steps"]
    save(report, tmp_path / "forms.json")
    report = memories.scans(6, 2, 64, 1, silent)
    assert [row["ratio"]["median"] == 1 for row in report.rows] == [True, False, True, False]
    monkeypatch.setattr(memories, "looped_heads", lambda *args: torch.zeros(6, 2, 1, 64))
    with pytest.raises(RunError, match="mamba2: its forms do not compute the same"):
        memories.scans(6, 2, 64, 1, silent)


def test_whole_updates_with_and_without_sequences_learn_the_same(memories, monkeypatch):
    monkeypatch.setattr(memories, "STEPWISE", ("gru", "mamba2"))
    monkeypatch.setattr(memories, "WORDS", (*memories.WORDS, "algorithm.epochs=1"))
    report = memories.updates(1, silent)
    names = [f"{name} {form}" for name in ("gru", "mamba2") for form in ("sequence", "steps")]
    assert [row["name"] for row in report.rows] == names
    assert report.rows[-1]["ratio"]["median"] > 1  # 128 steps one by one
    monkeypatch.setattr(memories, "step_by_step", lambda memory, x, state, resets: (
        memory.step(x[0], state)[0].expand(len(x), -1, -1), state))  # fmt: skip
    with pytest.raises(RunError, match="gru: its forms do not learn the same"):
        memories.updates(1, silent)
