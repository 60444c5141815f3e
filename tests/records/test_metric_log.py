import math
import resource
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from rl_lab.core.errors import RunError, UserError
from rl_lab.records.metrics import MetricLog, read_metrics


def test_rows_come_back_and_equal_rows_are_equal_bytes(tmp_path):
    for name, order in [("a", ["x", "b", "a"]), ("b", ["a", "x", "b"])]:
        log = MetricLog(tmp_path / "run" / name)
        values = {"a": 0.1 + 0.2, "b": 3, "x": 1e-300}
        log.append(7, {key: values[key] for key in order})
        log.close()
    data = (tmp_path / "run" / "a").read_bytes()
    assert data == b'{"step": 7, "a": 0.30000000000000004, "b": 3, "x": 1e-300}\n'
    assert data == (tmp_path / "run" / "b").read_bytes()
    assert read_metrics(tmp_path / "run" / "a") == [{"step": 7, **values}]


def test_what_is_not_finite_is_written_as_text_and_read_as_a_number(tmp_path):
    log = MetricLog(tmp_path / "m")
    log.append(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": np.float32(0.1)})
    log.append(2, {"a": torch.tensor(2.5), "n": np.int64(3)})
    log.close()
    assert b'"a": "nan", "b": "inf", "c": "-inf"' in (tmp_path / "m").read_bytes()
    first, second = read_metrics(tmp_path / "m")
    assert math.isnan(first["a"]) and first["b"] == math.inf and first["c"] == -math.inf
    assert first["d"] == float(np.float32(0.1))
    assert second == {"step": 2, "a": 2.5, "n": 3}


def test_rows_are_buffered_until_flush(tmp_path):
    log = MetricLog(tmp_path / "m")
    log.append(1, {"a": 1.0})
    assert (tmp_path / "m").read_bytes() == b""
    assert log.offset() == (tmp_path / "m").stat().st_size > 0
    log.close()
    log.close()


def test_a_resumed_log_equals_an_uninterrupted_one(tmp_path):
    straight, broken = MetricLog(tmp_path / "a"), MetricLog(tmp_path / "b")
    for log in (straight, broken):
        log.append(1, {"x": 1.0})
    offset = broken.offset()
    broken.append(2, {"x": -1.0})
    broken.flush()
    with (tmp_path / "b").open("ab") as file:
        file.write(b'{"step": 3, "x"')  # killed within a row
    resumed = MetricLog(tmp_path / "b")
    resumed.truncate(offset)
    for log in (straight, resumed):
        log.append(2, {"x": 2.0})
        log.close()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    broken.close()


def test_unflushed_rows_can_be_truncated_too(tmp_path):
    log = MetricLog(tmp_path / "m")
    log.append(1, {"x": 1.0})
    log.truncate(0)
    log.append(2, {"x": 2.0})
    log.close()
    assert read_metrics(tmp_path / "m") == [{"step": 2, "x": 2.0}]


def test_a_torn_last_line_is_not_a_row_and_is_not_glued_to_the_next(tmp_path):
    (tmp_path / "m").write_bytes(b'{"step": 1}\n{"step": 2, "x": 0.')
    assert read_metrics(tmp_path / "m") == [{"step": 1}]
    log = MetricLog(tmp_path / "m")
    log.append(3, {})
    log.close()
    assert read_metrics(tmp_path / "m") == [{"step": 1}, {"step": 3}]
    (tmp_path / "m").write_bytes(b'{"step"')
    assert read_metrics(tmp_path / "m") == []
    assert read_metrics(tmp_path / "absent") == []


def test_wrong_use_is_refused(tmp_path):
    log = MetricLog(tmp_path / "m")
    with pytest.raises(UserError, match="rows are missing"):
        log.truncate(10)
    with pytest.raises(ValueError, match="step"):
        log.append(1, {"step": 2})
    log.close()
    (tmp_path / "m").write_bytes(b'{"step": 0}\nnonsense\n{"step": 1}\n')
    with pytest.raises(UserError, match="m:2"):
        read_metrics(tmp_path / "m")


# A full disk -------------------------------------------------------------------------------------


@contextmanager
def room_for(size):
    """No file of this process may grow beyond `size` bytes; Python turns that into an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


ROW = {"x" * 1000: 0.5}


def test_rows_wait_for_a_full_disk_and_none_is_lost(tmp_path):
    log = MetricLog(tmp_path / "m")
    with room_for(5_000):  # in the middle of the fifth row
        for step in range(50):
            log.append(step, ROW)  # training goes on
        with pytest.raises(OSError, match="File too large"):
            log.offset()  # but there is no checkpoint without its rows
    log.append(50, ROW)
    assert log.offset() == (tmp_path / "m").stat().st_size
    log.close()
    assert [row["step"] for row in read_metrics(tmp_path / "m")] == list(range(51))


def test_when_too_many_rows_wait_the_run_ends_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("rl_lab.records.metrics.PATIENCE_BYTES", 30_000)
    log = MetricLog(tmp_path / "m")
    with room_for(5_000), pytest.raises(RunError) as caught:
        for step in range(100):
            log.append(step, ROW)
    assert step < 40
    assert str(caught.value) == (
        f"cannot write {tmp_path / 'm'}: File too large; make room, then resume the run: it "
        "goes on from its last checkpoint, if it has one"
    )
    log.close()
    assert [row["step"] for row in read_metrics(tmp_path / "m")] == [0, 1, 2, 3]  # whole rows only


def test_a_log_that_cannot_be_closed_says_so_and_lets_go(tmp_path):
    log = MetricLog(tmp_path / "m")
    log.append(1, ROW)
    with room_for(10), pytest.raises(RunError, match="cannot write"):
        log.close()
    log.close()


def test_rows_that_are_not_essential_never_end_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("rl_lab.records.metrics.PATIENCE_BYTES", 30_000)
    log = MetricLog(tmp_path / "m", essential=False)
    with room_for(5_000):
        for step in range(100):
            log.append(step, ROW)
        log.close()
    assert [row["step"] for row in read_metrics(tmp_path / "m")] == [0, 1, 2, 3]
