from dataclasses import dataclass

import pytest

from rl_lab.core.schedule import Schedule, at, bind, extremes, parse_schedule


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1


@dataclass(frozen=True)
class Config:
    rate: float = 0.1
    inner: Inner = Inner()


def test_linear_falls_to_zero_over_the_run():
    schedule = bind(Config(rate=parse_schedule("lin_3e-4")), 1000).rate
    assert [schedule(step) for step in (0, 500, 1000, 2000)] == pytest.approx([3e-4, 1.5e-4, 0, 0])


@pytest.mark.parametrize(
    ("shape", "middle"), [("linear", 0.55), ("cosine", 0.55), ("exp", 0.1**0.5)]
)
def test_shapes_between_from_and_to(shape, middle):
    written = {"start": 1.0, "end": 0.1, "from": 0.2, "to": 600, "shape": shape}
    schedule = bind(Config(rate=parse_schedule(written)), 1000).rate
    assert schedule(100) == 1.0  # before `from` = .2 * 1000
    assert schedule(400) == pytest.approx(middle)  # half way between 200 and 600
    assert schedule(601) == pytest.approx(0.1)


def test_warmup_rises_from_zero():
    written = {"start": 1.0, "end": 1.0, "warmup": 0.1}
    schedule = bind(Config(rate=parse_schedule(written)), 1000).rate
    assert [schedule(step) for step in (0, 50, 100, 500)] == pytest.approx([0, 0.5, 1, 1])
    assert extremes(schedule) == (0.0, 1.0)


def test_at_gives_plain_numbers_also_in_nested_blocks():
    half = Schedule(start=2.0, end=0.0, total=10)
    now = at(Config(rate=half, inner=Inner(rate=half)), 5)
    assert (now.rate, now.inner.rate) == (1.0, 1.0)
    plain = Config()
    assert at(plain, 5) is plain


@pytest.mark.parametrize(
    "written",
    [
        "lin_abc",
        {"start": 1, "shape": "zigzag"},
        {"start": 1, "finish_at": 3},
        {"start": 1, "end": 0, "shape": "exp"},
        {"start": 1, "from": 0.9, "to": 0.1},
    ],
)
def test_malformed_schedules_are_refused(written):
    with pytest.raises(ValueError, match=r"."):
        parse_schedule(written)


@pytest.mark.parametrize("value", [3e-4, "3e-4", {"end": 1}, None])
def test_other_values_are_no_schedules(value):
    assert parse_schedule(value) is None


def test_written_form_round_trips():
    schedule = parse_schedule({"start": 1.0, "end": 0.5, "from": 0.1, "to": 0.9, "shape": "cosine"})
    assert parse_schedule(schedule.to_tree()) == schedule


def test_shares_and_steps_are_compared_in_one_unit():
    mixed = parse_schedule({"start": 1.0, "end": 0.0, "from": 500, "to": 0.9})
    assert bind(Config(rate=mixed), 1000).rate(700) == pytest.approx(0.5)
    late = parse_schedule({"start": 1.0, "end": 0.0, "from": 0.5, "to": 200})
    with pytest.raises(ValueError, match="from < to"):
        bind(Config(rate=late), 1000)
