"""Turns, quartiles and ratios, by hand."""

import pytest

from rl_lab.benchmarking.measure import Spread, interleave, ratio, spread
from rl_lab.benchmarking.profile import Stages
from rl_lab.core.errors import UserError


def test_everyone_runs_once_per_round_and_the_order_turns_around():
    order = []
    jobs = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    told = []
    samples = interleave(jobs, 3, told.append)
    assert "".join(order) == "abc" + "cba" + "abc"
    assert samples == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}
    assert told[0] == "[1/9] a" and told[-1] == "[9/9] c"


def test_no_rounds_are_refused():
    with pytest.raises(UserError, match="--repeats"):
        interleave({"a": lambda: 1.0}, 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], (3.0, 3.0, 3.0)),
        ([1.0, 3.0], (1.5, 2.0, 2.5)),  # a quarter, half and three quarters of the way
        ([5.0, 1.0, 4.0, 2.0, 3.0], (2.0, 3.0, 4.0)),  # the order does not matter
        ([0.0, 10.0, 20.0, 30.0], (7.5, 15.0, 22.5)),  # places 0.75, 1.5, 2.25
    ],
)
def test_quartiles_by_hand(values, expected):
    assert spread(values) == Spread(*expected)


def test_a_ratio_is_taken_within_each_round():
    # The machine was twice as slow in the second round, for both: the ratio does not notice.
    assert ratio([100.0, 50.0], [20.0, 10.0]) == Spread(5.0, 5.0, 5.0)
    # 1, 2 and 6: their quartiles are 1.5 and 4; the ratio of the medians would be 3.
    assert ratio([1.0, 4.0, 6.0], [1.0, 2.0, 1.0]) == Spread(1.5, 2.0, 4.0)


def test_stages_do_not_count_what_is_inside_them(monkeypatch):
    now = 0.0
    monkeypatch.setattr("rl_lab.benchmarking.profile.time.perf_counter", lambda: now)
    stages = Stages()
    with stages.inside("loop"):
        now += 1
        with stages.inside("storage"):
            now += 2
            with stages.inside("env"):
                now += 4
            now += 8
        with stages.inside("evaluate"):
            now += 16
            with stages.inside("env"):  # of the evaluation
                now += 32
    found = {name: each for name, each in stages.seconds.items() if each}
    assert found == {"loop": 1, "storage": 10, "env": 4, "evaluate": 48}
    stages.forget()
    assert not any(stages.seconds.values())
