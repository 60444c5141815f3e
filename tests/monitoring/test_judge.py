"""Each condition by hand, on short series."""

import math

import pytest

from rl_lab.core.schema import MonitorConfig
from rl_lab.monitoring.judge import Seen, reason


def fired(values, *, share=lambda index: 0.5, largest=None, **conditions):
    """The indices of the rows at which a monitor has a reason."""
    monitor = MonitorConfig(**{"metric": "train/x", "rows": 1, **conditions})
    seen, found = Seen(), []
    for index, value in enumerate(values):
        seen.add(value, monitor)
        if reason(monitor, seen, largest=largest, share=share(index)) is not None:
            found.append(index)
        seen.settle(monitor)
    return found


def test_bounds_are_open_and_judge_the_mean_of_the_last_rows():
    assert fired([1, 2, 3], above=2) == [2]
    assert fired([3, 2, 1], below=2) == [2]
    # means of two: -, 1.5, 2.5; the first row has no mean yet
    assert fired([1, 2, 3], above=1.4, rows=2) == [1, 2]
    assert fired([-3, -1], above=2, absolute=True) == [0]
    assert fired([1, 2, 3], above=1, below=3) == [1]  # all conditions must hold


def test_few_episodes_are_not_enough_to_say_that_nothing_is_learned():
    """A fast run has many rows between two long episodes: all of them say the same."""
    monitor = MonitorConfig(metric="train/x", rows=1, stalls=0.5)
    seen = Seen()
    for _ in range(80):
        seen.add(-1400.0, monitor)
        seen.settle(monitor)
    judged = [reason(monitor, seen, largest=None, share=0.6, episodes=n) for n in (10, 49, 50)]
    assert judged[:2] == [None, None] and judged[2] is not None


def test_a_slow_gain_is_a_gain():
    """A return of 0.01 that has become 0.09 half-way while its rows differ by 0.03 is no stall."""
    values = [0.01 + 0.16 * index / 99 + (0.015 if index % 2 else -0.015) for index in range(100)]
    # It gains 0.08 by then: more than twice the usual change of 0.03, less than four times.
    assert fired(values, stalls=0.5, rows=5) == []


def test_a_median_is_deaf_to_a_few_wild_rows():
    values = [1.0, 1.0, -90.0, 1.0, -90.0, -90.0]
    # medians of three: -, -, 1, 1, -90, -90; means: -, -, -29.3, -29.3, -59.7, -59.7
    assert fired(values, below=-0.5, rows=3, median=True) == [4, 5]
    assert fired(values, below=-0.5, rows=3) == [2, 3, 4, 5]
    assert fired([1.0, math.nan, 9.0], above=2, rows=3, median=True) == []


def test_bounds_as_multiples_of_another_metric():
    assert fired([150, 250], above=20, of="collect/return_mean", largest=10) == [1]  # limit 200
    assert fired([15, 25], above=20, of="collect/return_mean", largest=0.1) == [1]  # 1 at least
    assert fired([1e9], above=20, of="collect/return_mean", largest=None) == []  # not known yet


def test_a_share_of_the_run_is_silent():
    share = lambda index: index / 4  # noqa: E731
    assert fired([9] * 5, above=1, after=0.5, share=share) == [2, 3, 4]
    assert fired([9] * 5, above=1, until=0.5, share=share) == [0, 1, 2]


def test_a_jump_is_against_what_is_usual():
    assert fired([1.0] * 20 + [9.0, 11.0], jumps=10) == []  # 11 against 1 + 0.05 * 8 = 1.4
    assert fired([1.0] * 20 + [11.0], jumps=10) == [20]
    assert fired([1.0] * 5 + [11.0], jumps=10) == []  # too few rows to call anything usual
    assert fired([-1.0] * 20 + [-11.0], jumps=10) == [20]  # of the size
    assert fired([100.0] * 20 + [20.0], drops=4) == [20]
    assert fired([100.0] * 20 + [26.0], drops=4) == []


def test_a_collapse_is_a_loss_of_what_was_gained():
    climb = [float(step) for step in range(0, 101, 2)]  # 0 … 100, by 2: the noise is 2
    # From 100 a loss of 60 % of the gain is below 40.
    assert fired([*climb, 41.0], collapses=0.6) == []
    assert fired([*climb, 39.0], collapses=0.6) == [51]
    falling = [-value for value in climb]
    assert fired([*falling, -39.0], collapses=0.6, better="lower") == [51]
    noise = [1.0, 2.0] * 20  # the gain of 1 is less than 4 times the usual change of 1
    assert fired([*noise, 0.0], collapses=0.5) == []


def test_a_stall_is_no_gain_since_the_start():
    share = lambda index: index / 100  # noqa: E731
    assert fired([5.0] * 100, stalls=0.5, share=share) == list(range(50, 100))
    assert fired([float(i) for i in range(100)], stalls=0.5, share=share) == []
    assert fired([19.0, 21.0] * 50, stalls=0.5, share=share) == list(range(50, 100))  # noise
    early = [float(min(10 + i, 12)) for i in range(100)]  # 20 % more than at the start
    assert fired(early, stalls=0.5, share=share) == list(range(50, 100))
    # What has gained and then stands still, such as a solved task, is no stall.
    assert fired([float(min(i, 40)) for i in range(100)], stalls=0.5, share=share) == []


def test_bad_numbers_do_not_poison_what_is_remembered():
    assert fired([1.0] * 20 + [math.nan, math.inf] + [1.0] * 3, above=2) == [21]
    assert fired([math.nan] * 30, above=0, below=0) == []
    seen, monitor = Seen(), MonitorConfig(metric="x", above=1, rows=1)
    for value in (1.0, math.inf, math.nan, 2.0):
        seen.add(value, monitor)
        seen.settle(monitor)
    assert all(map(math.isfinite, (seen.usual, seen.noise, seen.best, seen.start)))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({}, "it never fires: give it one of above, below"),
        ({"of": "train/y", "jumps": 2}, "of needs above or below"),
        ({"above": 1, "rows": 0}, "rows must be at least 1"),
        ({"jumps": 1.0}, "jumps must be greater than 1"),
    ],
)
def test_what_no_monitor_can_be(block, message):
    with pytest.raises(ValueError, match=message):
        MonitorConfig(metric="train/x", **block)
