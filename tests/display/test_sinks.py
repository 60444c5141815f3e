import json
import math
import re
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_lab.display import sinks as sinks_module
from rl_lab.display.sinks import Sink, Sinks, TensorBoardSink


class Recorder(Sink):
    def __init__(self):
        self.rows, self.messages, self.closed = [], [], 0

    def write(self, step, row):
        self.rows.append((step, dict(row)))

    def say(self, message):
        self.messages.append(message)

    def close(self):
        self.closed += 1


class Broken(Recorder):
    def __init__(self, *methods):
        super().__init__()
        for name in methods:
            setattr(self, name, self.fail)

    def fail(self, *args):
        raise ConnectionError("no route to host\na long story")


def read_back(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(each.step, each.value) for each in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_rows_and_messages_reach_every_sink_and_the_log_file(tmp_path):
    first, second = Recorder(), Recorder()
    sinks = Sinks([first, second], tmp_path / "logs" / "run.log")
    sinks.write(10, {"a": 1.0})
    sinks.say("hello")
    sinks.say("two\nlines")
    for sink in (first, second):
        assert sink.rows == [(10, {"a": 1.0})] and sink.messages == ["hello", "two\nlines"]
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d"
    log = (tmp_path / "logs" / "run.log").read_text(encoding="utf-8")
    assert re.fullmatch(rf"{time} hello\n{time} two\n  lines\n", log)


def test_a_sink_shows_nothing_by_itself():
    sink = Sink()
    sink.write(1, {})
    sink.say("")
    sink.close()


@pytest.mark.parametrize("method", ["write", "say", "close"])
def test_a_failing_sink_is_dropped_with_one_warning_and_the_others_go_on(method):
    broken, good = Broken(method), Recorder()
    sinks = Sinks([broken, good])
    for step in (1, 2):
        sinks.write(step, {"a": 1.0})
        sinks.say(f"at {step}")
    sinks.close()
    warnings = [each for each in good.messages if each.startswith("WARNING")]
    assert warnings == ["WARNING: Broken is off from here: no route to host"]
    assert [step for step, _ in good.rows] == [1, 2]
    assert {"at 1", "at 2"} <= set(good.messages)
    assert good.closed == 1
    if method != "close":
        assert broken.closed == 1  # its threads and files are let go


def test_every_sink_may_fail_at_once():
    sinks = Sinks([Broken("write", "say", "close"), Broken("write", "say", "close")])
    sinks.write(1, {})
    sinks.say("anybody?")
    sinks.close()
    assert sinks.sinks == []


def test_ctrl_c_is_not_a_failure_of_a_sink():
    class Interrupted(Sink):
        def write(self, step, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sinks([Interrupted()]).write(1, {})


def test_a_log_file_that_cannot_be_written_is_said_once(tmp_path):
    (tmp_path / "logs").write_text("a file where a folder should be")
    sink = Recorder()
    sinks = Sinks([sink], tmp_path / "logs" / "run.log")
    sinks.say("one")
    sinks.say("two")
    warning, *rest = sink.messages
    assert warning.startswith("WARNING: the log file is off from here: ") and rest == ["one", "two"]


def test_what_was_said_before_anybody_listened_is_said_again_once(tmp_path):
    sinks = Sinks([])
    sinks.say("skipped a torn checkpoint")
    sink = Recorder()
    sinks.attach(tmp_path / "run.log", [sink])
    sinks.attach(tmp_path / "run.log", [])
    assert sink.messages == ["skipped a torn checkpoint"]
    assert (tmp_path / "run.log").read_text().count("skipped a torn checkpoint") == 1


def test_an_early_message_is_logged_once_if_there_was_a_log_file(tmp_path):
    sinks = Sinks([], tmp_path / "run.log")
    sinks.say("early")
    sink = Recorder()
    sinks.attach(tmp_path / "run.log", [sink])
    assert sink.messages == ["early"]
    assert (tmp_path / "run.log").read_text().count("early") == 1


def test_a_sink_that_cannot_be_made_is_a_warning():
    def make():
        raise OSError("no space left")

    good = Recorder()
    sinks = Sinks([good])
    sinks.add(make)
    sinks.add(Recorder)
    assert good.messages == ["WARNING: a sink could not be started: no space left"]
    assert len(sinks.sinks) == 2


def test_tensorboard_reads_back_what_was_written(tmp_path, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(sinks_module.time, "monotonic", lambda: next(clock))  # a second a look
    sink = TensorBoardSink(tmp_path)
    sink.write(10, {"collect/return_mean": 1.5, "updates": 3})
    sink.write(20, {"collect/return_mean": math.inf})
    before = read_back(tmp_path)  # flushed: a killed run keeps these rows
    sink.close()
    assert before == read_back(tmp_path)
    assert before == {"collect/return_mean": [(10, 1.5), (20, math.inf)], "updates": [(10, 3.0)]}


def metrics_of(path, rows):
    path.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step, row in rows))
    return path


def test_a_resumed_run_replaces_the_lost_future_and_keeps_the_row_of_the_checkpoint(tmp_path):
    first = TensorBoardSink(tmp_path, purge_step=0)
    for step in (10, 20, 30, 40):
        first.write(step, {"a": step, "lost": 1.0} if step > 20 else {"a": step})
    first.close()
    metrics = metrics_of(tmp_path / "metrics.jsonl", [(10, {"a": 10}), (20, {"a": 20})])
    resumed = TensorBoardSink(tmp_path, 20, metrics)
    for step in (30, 40, 50):
        resumed.write(step, {"a": step + 0.5})
    resumed.close()
    rows = read_back(tmp_path)
    assert rows["a"] == [(10, 10), (20, 20), (30, 30.5), (40, 40.5), (50, 50.5)]
    assert rows.get("lost", []) == []


def test_rows_of_one_step_are_not_shown_twice_after_a_resume(tmp_path):
    """In an offline phase the step stands still; the checkpoint lies between two of its rows."""
    first = TensorBoardSink(tmp_path, purge_step=0)
    for loss in (5.0, 4.0, 3.0, 2.0):
        first.write(64, {"loss": loss})
    first.close()
    metrics = metrics_of(
        tmp_path / "metrics.jsonl", [(32, {"a": 0.0}), (64, {"loss": 5.0}), (64, {"loss": 4.0})]
    )
    resumed = TensorBoardSink(tmp_path, 64, metrics)
    for loss in (3.0, 2.0, 1.0):
        resumed.write(64, {"loss": loss})
    resumed.close()
    assert read_back(tmp_path) == {"loss": [(64, loss) for loss in (5.0, 4.0, 3.0, 2.0, 1.0)]}


def test_files_are_read_in_the_order_they_were_made_whatever_the_clock_says(tmp_path, monkeypatch):
    """Fault matrix, row 32: the clock may stand still or go backwards between two resumes."""
    for moment, start in [(1_000.0, 0), (1_000.0, 20), (990.0, 30), (400.0, 40)]:
        monkeypatch.setattr(sinks_module.time, "time", lambda moment=moment: moment)
        sink = TensorBoardSink(tmp_path, purge_step=start)
        for step in (start + 10, start + 20):
            sink.write(step, {"a": start})
        sink.close()
    assert read_back(tmp_path)["a"] == [(10, 0), (50, 40), (60, 40)]


def test_without_tensorboard_there_is_one_line_and_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)  # as if missing
    good = Recorder()
    sinks = Sinks([TensorBoardSink(tmp_path), good])
    sinks.write(1, {"a": 1.0})
    sinks.write(2, {"a": 1.0})
    assert good.messages == [
        "WARNING: TensorBoardSink is off from here: "
        "tensorboard is not installed: pip install tensorboard"
    ]
    assert len(good.rows) == 2


def test_slow_packages_are_not_imported_before_they_are_needed():
    code = (
        "import sys, rl_lab.display.terminal as t; "
        "sys.exit(any(m.split('.')[0] in {'rich', 'torch', 'tensorboard'} for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
