"""What a run costs: measured without changing it, and kept away from metrics.jsonl."""

import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from rl_lab.collect.collector import SAMPLE_EVERY, Stopwatch
from rl_lab.core.clock import Counters
from rl_lab.core.flops import FlopCount
from rl_lab.records.metrics import read_metrics
from rl_lab.run.efficiency import Efficiency, count_parameters, rates, resident_bytes
from rl_lab.run.session import resume
from tiny_runs import tiny_run


@dataclass
class Environment:
    faults: int


def test_rates_by_hand():
    counts = {"steps": 600, "updates": 4, "decisions": 10}
    seconds = {"collect": 1.0, "update": 2.0, "decide": 0.05}
    assert rates({**counts, **seconds}) == {
        "time/sps": 200.0,  # 600 / (1 + 2)
        "time/update_ms": 500.0,  # 2 / 4
        "time/inference_ms": 5.0,  # 0.05 / 10
    }
    assert rates({**dict.fromkeys(counts, 0), **seconds}) == {}


def test_a_row_measures_its_own_stretch_and_the_summary_all_of_them():
    watch = Stopwatch()
    efficiency = Efficiency(Environment(faults=3), watch)
    watch.seconds, watch.measured = 0.004, 2
    first = efficiency.row(Counters(100, 1), Counters(300, 3), {"collect": 0.5, "update": 0.5})
    assert first["time/sps"] == 200 and first["time/update_ms"] == 250
    assert first["time/inference_ms"] == 2 and first["sys/env_faults"] == 3
    assert first["time/collect"] == 0.5
    second = efficiency.row(Counters(300, 3), Counters(400, 3), {"collect": 1.0})
    assert second["time/sps"] == 100
    assert "time/inference_ms" not in second and "time/update_ms" not in second
    summary = efficiency.summary()
    assert summary["time/sps"] == 150  # 300 steps in 2 s
    assert summary["time/inference_ms"] == 2 and summary["sys/ram_gb"] >= first["sys/ram_gb"]


def test_an_environment_without_faults_has_no_such_metric():
    row = Efficiency(object(), Stopwatch()).row(Counters(), Counters(), {})
    assert "sys/env_faults" not in row


def test_the_stopwatch_measures_one_of_sixteen_decisions_and_changes_none():
    watch, seen = Stopwatch(), []

    def act(obs, state, *, deterministic):
        seen.append((obs, state, deterministic))
        time.sleep(0.002)
        return obs + 1

    answers = [watch.decide(act, number, "state") for number in range(3 * SAMPLE_EVERY)]
    assert answers == list(range(1, 3 * SAMPLE_EVERY + 1))
    assert seen == [(number, "state", False) for number in range(3 * SAMPLE_EVERY)]
    assert watch.measured == 3 and watch.seconds >= 3 * 0.002


def test_operations_are_counted_at_few_decisions_until_there_are_some():
    watch, counted = Stopwatch(), []

    def act(obs, state, *, deterministic):
        if _get_current_dispatch_mode() is not None:
            counted.append(obs)
        return obs if obs < 5 else torch.ones(1, 2) @ torch.ones(2, 3)  # at first without a network

    for number in range(1, 40):
        watch.decide(act, number, None)
    assert counted == [1, 3, 7] and watch.flops == 2 * 1 * 2 * 3


def test_memory_includes_the_children():
    before = resident_bytes()
    if before is None:
        pytest.skip("this system has no /proc")
    code = (
        "x = bytearray(60_000_000); x[::4096] = b'x' * len(x[::4096]); print(flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        child.stdout.readline()
        assert resident_bytes() - before > 50_000_000
        assert 60_000_000 < resident_bytes(child.pid) < 200_000_000
    finally:
        child.communicate(b"\n")
    assert resident_bytes(child.pid) is None


def test_parameters_are_counted_once_and_frozen_ones_apart():
    shared = nn.Linear(3, 2)  # 3 * 2 + 2 = 8
    frozen = nn.Linear(4, 1)  # 5
    frozen.requires_grad_(False)
    parts = [nn.Sequential(shared, frozen), shared, object(), torch.zeros(100)]
    assert count_parameters(parts) == {"total": 13, "trainable": 8}


def test_a_run_has_its_costs_in_timing_and_summary_and_not_in_metrics(tmp_path):
    outcome = tiny_run(tmp_path)
    rows = read_metrics(outcome.run.timing_file)
    for name in ("time/sps", "time/inference_ms", "time/update_ms", "sys/ram_gb"):
        assert all(row[name] > 0 for row in rows), name
        assert outcome.summary["efficiency"][name] > 0
    metrics = read_metrics(outcome.run.metrics_file)
    assert not [name for row in metrics for name in row if name.startswith(("time/", "sys/"))]
    parameters = outcome.summary["parameters"]
    # 4 inputs, 8 hidden, two torsos: 2 * (4 * 8 + 8); heads: 8 * 2 + 2 and 8 + 1
    assert parameters["total"] >= parameters["trainable"] == 2 * 40 + 18 + 9


def test_the_first_row_after_a_resume_counts_from_there(tmp_path):
    outcome = tiny_run(tmp_path)
    before = len(read_metrics(outcome.run.timing_file))
    resume(f"{outcome.run.path}:768", root=tmp_path)
    first = read_metrics(outcome.run.timing_file)[before]
    # one cycle of 4 * 16 steps and one update since the checkpoint
    assert first["step"] == 768 + 64
    assert first["time/update_ms"] == pytest.approx(1e3 * first["time/update"])
    trained = first["time/collect"] + first["time/update"]
    assert first["time/sps"] == pytest.approx(64 / trained)


def test_operations_and_state_of_a_recurrent_policy_by_hand(tmp_path):
    words = ["CartPole-v1:ppo_gru_defaults", "network.shared_torso=true", "compute.compile=off"]
    run = tiny_run(tmp_path, *words, "network.memory.hidden_dim=8").run
    found = run.read_summary()["efficiency"]
    assert found["sys/state_bytes"] == 8 * 4
    # two per weight: encoder 4 x 8, GRU 8 x 24 of the input and of the state, actor 8 x 2
    decision = 2 * (4 * 8 + 2 * 8 * 24 + 8 * 2)
    assert found["sys/decision_mflops"] == pytest.approx(decision / 1e6)
    # 16 rows in a minibatch; backward costs once or twice as much again
    assert 2 * 16 * decision < found["sys/gradient_mflops"] * 1e6 < 4 * 16 * decision


def test_operations_are_counted_and_change_nothing():
    x, layer = torch.randn(5, 3), nn.Linear(3, 7)
    expected = layer(x).sum()
    with FlopCount() as count:
        found = layer(x).sum()
        (gradient,) = torch.autograd.grad(found, layer.weight)
    # forward [5, 3] x [3, 7]; backward [7, 5] x [5, 3]: 2 * 5 * 3 * 7 each
    assert count.total == 2 * 2 * 5 * 3 * 7
    assert torch.equal(found, expected) and gradient.shape == (7, 3)
