"""Ranges of options: checked when a config is made, with one message wherever it is made."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest

from rl_lab.config.tree import describe
from rl_lab.core.checker import check
from rl_lab.core.errors import ConfigError
from rl_lab.core.options import Options, allowed, option, with_defaults
from rl_lab.core.schedule import Schedule, at, bind


@dataclass(frozen=True, kw_only=True)
class Walker(Options):
    """One option of every kind."""

    gamma: float = option(0.99, "discount factor", low=0, high=1)
    rate: float = option(3e-4, "step size", above=0)
    kappa: float = option(0.5, "", above=0, below=1)
    share: float | None = option(None, "", above=0, high=1)
    noise: float | None = option(1.0, "", low=0)
    steps: Literal["auto"] | int = option("auto", "", low=1)
    debt: float = option(-1.0, "", below=0)
    ceiling: float = option(1.0, "", high=2.5)
    widths: list[int] = option([64, 64], "", low=1, not_empty=True)
    rates: dict[str, float] = option({}, "", above=0)
    mode: Literal["fast", "slow"] = option("fast", "")
    modes: list[Literal["fast", "slow"]] = option(["fast"], "")
    folder: str = option("here", "", not_empty=True)
    free: float = option(0.0, "")


@dataclass(frozen=True, kw_only=True)
class Joined(Walker):
    """A rule that joins two fields, after the ranges."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma < self.kappa:
            raise ValueError("gamma must not be below kappa")


@dataclass
class Plain:
    """A config of a plug-in that derives from nothing."""

    gamma: float = option(0.99, "discount factor", low=0, high=1)


ALLOWED = [
    {"gamma": 0},
    {"gamma": 1.0},
    {"share": 1},
    {"share": None},
    {"noise": None},
    {"steps": "auto"},
    {"steps": 1},
    {"widths": [1]},
    {"rates": {"actor*": 1e-9}},
    {"ceiling": 2.5},
    {"free": -1e9},
]
REFUSED = [
    ({"gamma": 1.2}, "gamma must be in [0, 1], got 1.2"),
    ({"gamma": -1e-9}, "gamma must be in [0, 1], got -1e-09"),
    ({"gamma": float("nan")}, "gamma must be in [0, 1], got nan"),
    ({"gamma": None}, "gamma must be in [0, 1], got None"),
    ({"gamma": "much"}, "gamma must be in [0, 1], got 'much'"),
    ({"rate": 0}, "rate must be positive, got 0"),
    ({"kappa": 0.0}, "kappa must be in (0, 1), got 0"),
    ({"kappa": 1}, "kappa must be in (0, 1), got 1"),
    ({"share": 0}, "share must be in (0, 1], got 0"),
    ({"noise": -0.5}, "noise must be at least 0, got -0.5"),
    ({"steps": 0}, "steps must be at least 1, got 0"),
    ({"debt": 0}, "debt must be negative, got 0"),
    ({"ceiling": 3}, "ceiling must be at most 2.5, got 3"),
    ({"widths": [64, 0, 32]}, "widths[1] must be at least 1, got 0"),
    ({"widths": []}, "widths must not be empty"),
    ({"rates": {"actor*": 0.0}}, "rates.actor* must be positive, got 0"),
    ({"mode": "slwo"}, "mode must be 'fast' or 'slow', got 'slwo'"),
    ({"folder": ""}, "folder must not be empty"),
]


@pytest.mark.parametrize("values", ALLOWED, ids=str)
def test_what_lies_in_the_range_is_taken(values) -> None:
    for name, value in values.items():
        assert getattr(Walker(**values), name) == value


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=str)
def test_what_lies_outside_is_refused_in_python_with_its_name(values, message) -> None:
    with pytest.raises(ValueError) as caught:
        Walker(**values)
    assert str(caught.value) == message
    with pytest.raises(ValueError):
        replace(Walker(), **values)


def test_all_problems_come_at_once_and_rules_of_several_fields_after_them() -> None:
    with pytest.raises(ValueError) as caught:
        Joined(gamma=2.0, rate=-1.0)
    assert str(caught.value).splitlines() == [
        "gamma must be in [0, 1], got 2",
        "rate must be positive, got -1",
    ]
    with pytest.raises(ValueError, match="gamma must not be below kappa"):
        Joined(gamma=0.1)


def test_a_schedule_is_checked_at_its_extremes_and_may_touch_an_open_end() -> None:
    falling = Walker(rate=Schedule(start=3e-4))  # type: ignore[arg-type]
    assert at(bind(falling, 100), 100).rate == 0.0  # where it leads was checked as a whole
    Walker(gamma=Schedule(start=0.9, end=1.0))  # type: ignore[arg-type]
    for name, schedule, got in (
        ("gamma", Schedule(start=0.9, end=1.5), "1.5"),
        ("gamma", Schedule(start=-0.5, end=0.5), "-0.5"),
        ("rate", Schedule(start=1e-3, end=-1e-3), "-0.001"),
        ("rate", Schedule(start=0.0, end=0.0), "0"),
        ("kappa", Schedule(start=0.5, end=1.5), "1.5"),
        ("ceiling", Schedule(start=3.0, end=1.0), "3"),
    ):
        with pytest.raises(ValueError, match=rf"^{name} must be .*, got {got}$"):
            Walker(**{name: schedule})


def test_the_validator_says_the_same_with_the_path_for_any_dataclass() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Tree(Options):
        algorithm: Walker = option(Walker(), "")
        other: Plain = option(None, "")

    tree = {
        "algorithm": {"gamma": 1.2, "widths": [0], "rates": {"a": -1}, "mode": "fast"},
        "other": {"gamma": -1},
    }
    with pytest.raises(ConfigError) as caught:
        check(Tree, tree)
    assert [*caught.value.problems] == [
        "algorithm.gamma: must be in [0, 1], got 1.2",
        "algorithm.widths[0]: must be at least 1, got 0",
        "algorithm.rates.a: must be positive, got -1",
        "other.gamma: must be in [0, 1], got -1",
    ]


def test_the_range_is_described_and_kept_by_other_defaults() -> None:
    other = with_defaults(Walker, "Other", "Another.", gamma=0.5)
    assert other().gamma == 0.5
    with pytest.raises(ValueError, match="gamma must be in"):
        other(gamma=2)
    ranges = {row.path: row.allowed for row in describe(other, "algorithm.")}
    assert ranges["algorithm.gamma"] == "in [0, 1]"
    assert ranges["algorithm.rate"] == "positive"
    assert ranges["algorithm.folder"] == "not empty"
    assert ranges["algorithm.free"] == ""
    assert allowed({"above": 1}) == "greater than 1"
    assert allowed({"below": 1}) == "less than 1"


def test_an_option_that_is_declared_again_keeps_its_range() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Again(Walker):
        gamma: float = option(0.5, "another default")
        rate: float = option(1.0, "another range", low=0)

    assert Again(rate=0).gamma == 0.5
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], got 2"):
        Again(gamma=2)
    ranges = {row.path: row.allowed for row in describe(Again)}
    assert (ranges["gamma"], ranges["rate"]) == ("in [0, 1]", "at least 0")


def test_a_range_has_one_end_on_each_side() -> None:
    with pytest.raises(TypeError):
        option(1.0, "", low=0, above=0)
    with pytest.raises(TypeError):
        option(1.0, "", high=0, below=0)
