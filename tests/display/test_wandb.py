"""Weights & Biases: the real one offline, and three ways in which it can fail."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rl_lab.core.errors import UserError
from rl_lab.display.sinks import Sink
from rl_lab.display.wandb import WandbSink, choose_mode
from rl_lab.records.metrics import read_metrics
from rl_lab.run.session import resume, train
from tiny_runs import run_hash, tiny_config, tiny_run

TRACK = ("logging.wandb.enabled=true", "logging.wandb.mode=offline", "logging.wandb.tags=[fast]")
OPTIONS = {"mode": "offline", "project": "p", "id": "x1"}


class Recorder(Sink):
    def __init__(self):
        self.messages = []

    def say(self, message):
        self.messages.append(message)

    @property
    def warnings(self):
        return [each for each in self.messages if each.startswith("WARNING")]


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    """Whoever runs these tests, nothing leaves this machine."""
    for name in [each for each in os.environ if each.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setattr(WandbSink, "close_seconds", 60.0)  # for the busiest of machines


@pytest.fixture
def fake_wandb(tmp_path, monkeypatch):
    """`fake_wandb(init=…, log=…)`: the fault, in a module that the child process finds first."""

    def make(*, init="pass", log="pass"):
        folder = tmp_path / "fake"
        folder.mkdir()
        body = f"""
        import os, time
        class Settings:
            def __init__(self, **options): pass
        class Run:
            url, summary = None, {{}}
            def define_metric(self, *args, **options): pass
            def log(self, row): {log}
            def finish(self, exit_code): pass
            def alert(self, **words): pass
        def init(**options):
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            {init}
            return Run()
        """
        (folder / "wandb.py").write_text(textwrap.dedent(body))
        monkeypatch.syspath_prepend(folder)

    return make


def tracked(root, *overrides):
    """A tiny run to its end, with W&B; what was said meanwhile."""
    recorder = Recorder()
    config = tiny_config("CartPole-v1:ppo_defaults", *TRACK, *overrides)
    outcome = train(config, root=root, view=lambda *_: [recorder])
    return outcome, recorder


def alive(pid):
    """Is there such a process, other than as an entry that waits to be read?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def read_back(folder):
    """Run, rows and summary of every offline run below `folder`, as wandb wrote them."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    def values(items):
        return {
            each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in items
        }

    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        store, run, rows, summary = DataStore(), None, [], {}
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(bytes(data))
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = record.run
            elif kind == "history":
                rows.append(values(record.history.item))
            elif kind == "summary":
                summary |= values(record.summary.update)
        store._fp.close()  # its own `close` is for writers
        found.append((run, rows, summary))
    return found


# The real one ------------------------------------------------------------------------------------


@pytest.mark.needs("wandb")
def test_a_run_is_in_its_offline_folder_row_for_row(tmp_path):
    outcome, recorder = tracked(tmp_path / "runs", "experiment.tags=[a]")
    ((run, rows, summary),) = read_back(outcome.run.path)
    written = read_metrics(outcome.run.metrics_file)
    assert len(written) > 10 and [row["env_steps"] for row in rows] == [r["step"] for r in written]
    for name in ("collect/return_mean", "train/loss", "updates"):
        assert [row.get(name) for row in rows] == [row.get(name) for row in written]
    assert "time/sps" in rows[0]
    assert run.run_id == outcome.summary["wandb_id"] and run.run_id.endswith(outcome.run.id)
    assert list(run.tags) == ["a", "fast"] and run.project == "rl-lab"
    config = {each.key: json.loads(each.value_json) for each in run.config.update}
    assert config["environment"]["id"] == "CartPole-v1"
    assert summary["status"] == "finished" and summary["best"] == outcome.summary["best"]
    assert recorder.warnings == []
    assert any("W&B: offline (logging.wandb.mode)" in each for each in recorder.messages)
    assert run_hash(outcome.run) == run_hash(tiny_run(tmp_path / "plain").run)  # undisturbed


@pytest.mark.needs("wandb")
def test_a_resumed_run_goes_on_under_the_same_id_and_axis(tmp_path):
    outcome, _ = tracked(tmp_path)
    renamed = outcome.run.path.rename(tmp_path / "renamed")  # the id was written down
    resumed = resume(f"{renamed}:768", root=tmp_path)
    first, second = read_back(renamed)
    assert first[0].run_id == second[0].run_id == resumed.summary["wandb_id"]
    assert second[1][0]["env_steps"] == 768 + 64 and second[1][-1]["env_steps"] == 1024


@pytest.mark.needs("wandb")
def test_what_is_not_finite_arrives(tmp_path):
    sink = WandbSink({**OPTIONS, "dir": str(tmp_path)})
    sink.write(5, {"a": math.nan, "b": 2.0})
    sink.close()
    ((_, (row,), _),) = read_back(tmp_path)
    assert math.isnan(row["a"]) and row["b"] == 2.0 and row["env_steps"] == 5


# Failures ----------------------------------------------------------------------------------------


def check_undisturbed(outcome, recorder, reason, tmp_path):
    assert recorder.warnings == [f"WARNING: WandbSink is off from here: {reason}"]
    assert outcome.exit_code == 0 and outcome.summary["status"] == "finished"
    assert outcome.run.read_summary()["status"] == "finished"
    assert run_hash(outcome.run) == run_hash(tiny_run(tmp_path / "plain").run)
    pid = int((tmp_path / "pid").read_text())
    assert not alive(pid)
    assert reason in outcome.run.log_file.read_text()


def test_an_init_that_raises(tmp_path, fake_wandb):
    fake_wandb(init="raise RuntimeError('401: who are you?\\nmore')")
    outcome, recorder = tracked(tmp_path / "runs")
    check_undisturbed(outcome, recorder, "401: who are you?", tmp_path)


def test_an_init_that_hangs(tmp_path, fake_wandb, monkeypatch):
    fake_wandb(init="time.sleep(1e6)")
    monkeypatch.setattr(WandbSink, "close_seconds", 2.0)
    outcome, recorder = tracked(tmp_path / "runs")
    check_undisturbed(outcome, recorder, "wandb.init gave no answer", tmp_path)


def test_a_process_that_dies_in_the_middle(tmp_path, fake_wandb):
    fake_wandb(log="os._exit(7) if row['env_steps'] >= 512 else None")
    outcome, recorder = tracked(tmp_path / "runs")
    check_undisturbed(outcome, recorder, "the W&B process ended with exit code 7", tmp_path)


def test_a_hang_is_found_while_the_run_goes_on(tmp_path, fake_wandb, monkeypatch):
    fake_wandb(init="time.sleep(1e6)")
    monkeypatch.setattr(WandbSink, "init_seconds", 0.5)
    sink = WandbSink(OPTIONS)
    sink.write(1, {"a": 1.0})
    assert until((tmp_path / "pid").exists)
    time.sleep(0.5)
    with pytest.raises(UserError, match="no answer"):
        sink.write(2, {"a": 1.0})
    assert not alive(sink._process.pid)
    sink.close()  # nothing is left to wait for


def test_a_process_that_takes_no_rows_costs_no_time_and_the_rest_is_counted(
    tmp_path, fake_wandb, monkeypatch
):
    fake_wandb(log="time.sleep(1e6)")
    monkeypatch.setattr(WandbSink, "queue_rows", 50)
    monkeypatch.setattr(WandbSink, "close_seconds", 0.3)
    sink = WandbSink(OPTIONS)
    row = {f"metric/{index}": float(index) for index in range(100)}
    slowest = 0.0
    for step in range(300):
        started = time.perf_counter()
        sink.write(step, row)
        slowest = max(slowest, time.perf_counter() - started)
    assert slowest < 0.25  # seconds; a write that waited would never have come back
    assert 0 < sink.dropped < 250 and len(sink._queue) == 50
    with pytest.raises(UserError, match=r"not done 0\.3 s after|no answer"):
        sink.close()
    assert not alive(sink._process.pid)


def test_dropped_rows_are_told(tmp_path, fake_wandb, monkeypatch):
    fake_wandb(init="time.sleep(0.5)")
    monkeypatch.setattr(WandbSink, "queue_rows", 1)
    told = []
    sink = WandbSink(OPTIONS, tell=told.append)
    for step in range(20):
        sink.write(step, {"text": "x" * 20_000})  # a pipe holds three of them
    assert sink.dropped > 5
    sink.close()
    assert told == [
        f"WARNING: W&B: {sink.dropped} rows were dropped because it was slow; metrics.jsonl has all"
    ]


def test_without_the_package_there_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("rl_lab.display.wandb.find_spec", lambda name: None)
    outcome, recorder = tracked(tmp_path)
    (warning,) = recorder.warnings
    assert warning.endswith("wandb is not installed: pip install 'rl-lab[wandb]'")
    assert outcome.summary["status"] == "finished"


def test_the_process_does_not_outlive_a_trainer_that_was_killed(tmp_path, fake_wandb):
    fake_wandb(init="time.sleep(1e6)")
    trainer = (
        "import time; from rl_lab.display.wandb import WandbSink\n"
        "sink = WandbSink({'mode': 'offline'}); time.sleep(1e6)"
    )
    # Python runs this file at its start.
    (tmp_path / "fake" / "sitecustomize.py").write_text(
        "import rl_lab.display.wandb as sink\nsink.ORPHAN_SECONDS = 0.2\n"
    )
    path = os.pathsep.join(each for each in sys.path if each)
    process = subprocess.Popen(
        [sys.executable, "-c", trainer], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert until((tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        assert alive(pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert until(lambda: not alive(pid))


# Online or offline -------------------------------------------------------------------------------


def test_the_mode_is_decided_before_anything_is_asked(tmp_path):
    assert choose_mode("offline", {"WANDB_MODE": "online"}, tmp_path)[0] == "offline"
    assert choose_mode("auto", {"WANDB_MODE": "disabled"}, tmp_path)[0] == "disabled"
    assert choose_mode("auto", {"WANDB_API_KEY": "0" * 40}, tmp_path)[0] == "online"
    assert choose_mode("auto", {}, tmp_path) == ("offline", "no login was found")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password 0000\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert choose_mode("auto", {}, tmp_path) == ("online", "logged in to api.wandb.ai")
    other = {"WANDB_BASE_URL": "https://wandb.example.org"}
    assert choose_mode("auto", other, tmp_path)[0] == "offline"
    (tmp_path / ".netrc").write_text("machine\n")
    assert choose_mode("auto", {}, tmp_path)[0] == "offline"


def test_disabled_is_said_and_starts_nothing(tmp_path):
    outcome, recorder = tracked(tmp_path, "logging.wandb.mode=disabled")
    assert "W&B: disabled (logging.wandb.mode)" in recorder.messages
    assert not (outcome.run.path / "wandb").exists()
