"""Curves of a file of any length: read once, sampled where they are not read yet, peaks kept."""

import json

import numpy as np
import pytest

from rl_lab.ui import series as module
from rl_lab.ui.series import Series


def write(path, count, first=0, **metrics):
    with path.open("ab") as file:
        for step in range(first, first + count):
            row = {"step": step, **{name: values(step) for name, values in metrics.items()}}
            file.write(json.dumps(row).encode() + b"\n")


def curve(series, name="a", **options):
    series.update(60)
    return series.curves([name], **{"count": 10_000, **options}).get(name)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_a_short_file_is_shown_as_it_is(path):
    write(path, 3, a=lambda step: step * 0.5)
    found = curve(Series(path))
    assert found.steps.tolist() == [0, 1, 2] and found.values.tolist() == [0.0, 0.5, 1.0]


def test_what_is_new_is_added(path):
    series = Series(path)
    assert curve(series) is None and series.known == 1  # there is no file yet
    for first in range(0, 5000, 500):
        write(path, 500, first, a=float)
        assert curve(series).steps.tolist() == list(range(first + 500))
    assert len(series.blocks) == 5  # blocks are filled up


def test_half_a_row_waits_for_its_end(path):
    write(path, 2, a=float)
    series = Series(path)
    with path.open("ab") as file:
        file.write(b'{"step": 2, "a":')
    assert curve(series).steps.tolist() == [0, 1]
    with path.open("ab") as file:
        file.write(b" 7}\n")
    assert curve(series).values.tolist() == [0, 1, 7]


def test_a_file_that_was_cut_back_is_read_again(path):
    write(path, 3000, a=float)
    series = Series(path)
    curve(series)
    size = len(path.read_bytes())
    path.write_bytes(path.read_bytes()[: size // 2].rpartition(b"\n")[0] + b"\n")
    kept = curve(series).steps[-1]
    assert kept < 2999
    write(path, 3000, int(kept) + 1, a=lambda step: -1.0)  # and it has grown past where it was
    assert curve(series).values[-1] == -1


def test_peaks_of_a_long_file_are_kept(path, monkeypatch):
    monkeypatch.setattr(module, "KEPT_ROWS", 4096)
    write(path, 10_000, a=lambda step: 100.0 if step == 5555 else -50.0 if step == 777 else 0.0)
    series = Series(path)
    found = curve(series, count=100)
    assert len(found.steps) <= 102 and found.values.max() == 100 and found.values.min() == -50
    assert all(block.points is None for block in series.blocks)
    near = curve(series, low=5500, high=5600)  # every row, read again
    assert near.steps.tolist() == list(range(5500, 5601)) and near.values.max() == 100


def test_what_is_not_read_yet_is_sampled(path):
    write(path, 50_000, a=float)
    series = Series(path)
    series.update(0)  # a block at least, then the time is up
    assert 0 < series.known < 1
    found = series.curves(["a"], count=10_000)["a"]
    assert len(found.steps) > 1000 and found.steps[-1] > 49_000
    assert np.array_equal(found.steps, found.values)
    while series.known < 1:
        series.update(0)
    assert series.names() == ["a"]


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\xff", b"[1]", b"{}", b"null", b'{"step": "x", "a": 1}', b'{"step": true, "a": 1}',
        b'{"step": 1e400, "a": 1}', b'{"step": ' + b"9" * 30 + b', "a": 1}', b"[" * 5000,
        b'{"step": 5, "a": {"b": 1}}', b'{"step": 5, "a": "nan"}', b'{"step": 5, "a": null}',
        b'{"step": 5, "c": 1' + b"0" * 400 + b"}",
    ],
)  # fmt: skip
def test_a_row_that_is_none_hides_no_other(path, line):
    path.write_bytes(b'{"step": 0, "a": 1.0}\n' + line + b'\n{"step": 9, "a": "inf", "b": 2}\n')
    series = Series(path)
    assert curve(series).values.tolist() == [1.0] and curve(series, "b").steps.tolist() == [9]


def test_of_equal_steps_the_last_one_counts(path):
    path.write_bytes(b'{"step": 3, "a": 1}\n{"step": 3, "a": 2}\n')
    assert curve(Series(path)).values.tolist() == [2]
