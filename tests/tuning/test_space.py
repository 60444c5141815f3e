"""What a sweep tries: choices, ranges, values that depend on them, constraints."""

import pytest

from rl_lab.core.errors import ConfigError, UserError
from rl_lab.tuning.expressions import evaluate
from rl_lab.tuning.space import (
    Choice,
    Range,
    Space,
    parse_dimension,
    parse_space,
    short_names,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${a.b} * 2", 6),
        ("1 - 0.01 * ${a.b}", 0.97),
        ("${a.b} // 2 + -${c}", -3),
        ("min(${a.b}, ${c}) ** 2", 9),
        ("${a.b} < ${c} <= 4", True),
        ("${a.b} > 2 and not ${c} == 4", False),
        ("[${c}, ${c}]", [4, 4]),
    ],
)
def test_arithmetic_on_other_values(text, expected):
    assert evaluate(text, {"a.b": 3, "c": 4}) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${a.c} * 2", r"looks at \$\{a.c\} \(did you mean 'a.b'\?\)"),
        ("${a.b} *", "cannot be computed"),
        ("${a.b} / 0", "cannot be computed: division by zero"),
        ("__import__('os').system('true')", "is not arithmetic"),
        ("${a.b}.real", "is not arithmetic"),
    ],
)
def test_anything_else_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        evaluate(text, {"a.b": 3})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["1e-4", 3e-4], Choice((1e-4, 3e-4))),
        ([[64, 64], [128]], Choice(([64, 64], [128]))),
        ("relu", Choice(("relu",))),
        ({"values": [1, 2]}, Choice((1, 2))),
        ({"value": 5}, Choice((5,))),
        ({"min": "1e-5", "max": 1e-2, "log": True}, Range(1e-5, 1e-2, log=True)),
        ({"min": 1, "max": 9, "step": 2}, Range(1, 9, step=2)),
        ({"min": 1e-5, "max": 1, "distribution": "log_uniform_values"}, Range(1e-5, 1, log=True)),
        ({"min": 1.0, "max": 8, "distribution": "int_uniform"}, Range(1, 8)),
    ],
)
def test_what_a_key_may_be(written, expected):
    assert parse_dimension(written) == expected


def test_whole_numbers_stay_whole():
    assert Range(1, 8).is_whole and not Range(1.0, 8).is_whole
    assert Range(2, 9, step=3).grid == (2, 5, 8)
    assert Range(0.0, 0.3, step=0.1).grid == pytest.approx((0.0, 0.1, 0.2, 0.3))
    assert Range(1, 8).grid is None


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ([], "an empty list"),
        ({"min": 1}, "a range needs min and max"),
        ({"min": 2, "max": 1}, "min 2 is above max 1"),
        ({"min": 0, "max": 1, "log": True}, "a logarithmic range must be positive"),
        ({"minn": 0, "max": 1}, "there is no 'minn' here"),
        ({"min": "a", "max": 1}, "must be numbers"),
    ],
)
def test_what_a_key_may_not_be(written, message):
    with pytest.raises(ConfigError, match=message):
        parse_space({"a": written})


def test_a_grid_is_every_allowed_combination_in_order():
    tree = {"a": [1, 2], "b": {"min": 1, "max": 3, "step": 1}, "c": "${a} * ${b}"}
    space = parse_space(tree, ("${c} <= 3",))
    points = list(space.points())
    assert points == [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 2, "b": 1}]
    assert space.complete(points[2]) == {"a": 1, "b": 3, "c": 3}


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ({"a": 1, "b": 2, "d": 3}, "first: there is no d in sweep"),
        ({"a": 1}, "first: give b a value too"),
        ({"a": 3, "b": 2}, "first: a cannot be 3"),
        ({"a": 1, "b": 5}, "first: b cannot be 5"),
        ({"a": 1, "b": 1.5}, "first: b cannot be 1.5"),
        ({"a": 2, "b": 4}, "does not keep the constraints"),
    ],
)
def test_what_is_tried_first_must_be_in_the_space(first, message):
    tree, constraints = {"a": [1, 2], "b": {"min": 1, "max": 4}, "c": "${a} * ${b}"}, ("${c} < 8",)
    assert parse_space(tree, constraints, [{"a": 2, "b": 3}]).first == ({"a": 2, "b": 3},)
    with pytest.raises(UserError, match=message):
        parse_space(tree, constraints, [first])


def test_keys_are_shown_by_the_shortest_name_that_is_theirs():
    assert short_names(["a.x.lr", "a.y.lr", "b.gamma", "c"]) == {
        "a.x.lr": "a.x.lr",
        "a.y.lr": "a.y.lr",
        "b.gamma": "gamma",
        "c": "c",
    }


def test_expressions_look_at_what_the_sweep_sets():
    with pytest.raises(UserError, match=r"sweep.c: \$\{d\} is not set by this sweep"):
        parse_space({"a": [1], "c": "${d}"})
    with pytest.raises(UserError, match="constraints"):
        Space({"a": Choice((1,))}, {}, ("${b} > 1",))
    with pytest.raises(UserError, match="has no end of values: give it a step"):
        list(parse_space({"a": {"min": 0.0, "max": 1.0}}).points())
