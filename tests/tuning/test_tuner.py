"""The search: suggestions, what is told, and a journal that survives."""

from pathlib import Path

import pytest

from rl_lab.core.errors import UserError
from rl_lab.tuning.jobs import together
from rl_lab.tuning.processes import cores
from rl_lab.tuning.space import parse_space
from rl_lab.tuning.sweep_file import Objective
from rl_lab.tuning.tuner import Suggestion, Tuner, best

pytestmark = pytest.mark.needs("optuna")

SPACE = {"x": {"min": -4.0, "max": 4.0}, "kind": ["a", [1, 2]], "n": {"min": 1, "max": 4}}


def test_it_finds_the_top_of_a_hill():
    tuner = Tuner(SPACE, method="tpe", seed=1)
    for _ in range(40):
        suggestion = tuner.suggest()
        assert isinstance(suggestion.settings["n"], int)
        assert suggestion.settings["kind"] in ("a", [1, 2])
        worth = -((suggestion.settings["x"] - 1) ** 2) + (suggestion.settings["kind"] == [1, 2])
        tuner.tell(suggestion, worth)
    top = best(tuner.results(), "max")
    assert top[0].settings["kind"] == [1, 2] and abs(top[0].settings["x"] - 1) < 0.5


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_a_new_process_goes_on_as_the_old_one_would_have(tmp_path: Path, method: str):
    def told(tuner: Tuner, count: int) -> list[Suggestion]:
        made = [tuner.suggest() for _ in range(count)]
        for each in made:
            tuner.tell(each, each.settings["x"])
        return made

    straight = Tuner(SPACE, method=method, seed=3, journal=tmp_path / "a")
    expected = [told(straight, 1)[0] for _ in range(14)]
    found = told(Tuner(SPACE, method=method, seed=3, journal=tmp_path / "b"), 1)
    for _ in range(13):
        found += told(Tuner(SPACE, method=method, seed=3, journal=tmp_path / "b"), 1)
    assert found == expected
    assert len({each.settings["x"] for each in found}) == 14


def test_open_trials_are_there_again_with_the_same_settings(tmp_path: Path):
    space = parse_space({**SPACE, "double": "${n} * 2"}, ("${n} <= 2",))
    tuner = Tuner(space, method="random", journal=tmp_path / "journal")
    first, second = tuner.suggest(), tuner.suggest()
    assert first.settings["n"] <= 2 and first.settings["double"] == 2 * first.settings["n"]
    tuner.tell(first, 1.0, [0.5, 1.5])
    again = Tuner(space, method="random", journal=tmp_path / "journal")
    assert again.open() == [second]
    assert (again.seeds(first), again.seeds(second)) == ([0.5, 1.5], [])
    assert again.count == 2  # what the constraint refused does not count
    again.tell(second, None)
    assert [(state, value) for _, state, value in again.results()] == [
        ("complete", 1.0),
        ("fail", None),
    ]


def test_a_grid_ends_and_is_enqueued_once(tmp_path: Path):
    space = {"a": [1, 2], "b": ["x", "y"]}
    for _ in range(3):
        tuner = Tuner(space, method="grid", journal=tmp_path / "journal")
    made = []
    while (suggestion := tuner.suggest()) is not None:
        made.append(suggestion.settings)
    assert made == [{"a": a, "b": b} for a in (1, 2) for b in ("x", "y")]


def test_what_is_known_is_tried_first_and_once(tmp_path: Path):
    space = parse_space(
        SPACE, (), [{"x": 3, "kind": [1, 2], "n": 4}, {"x": -1.0, "kind": "a", "n": 1}]
    )
    first = Tuner(space, method="tpe", journal=tmp_path / "journal").suggest()
    assert first == Suggestion(0, {"x": 3, "kind": [1, 2], "n": 4})
    again = Tuner(space, method="tpe", journal=tmp_path / "journal")
    assert again.suggest().settings == {"x": -1.0, "kind": "a", "n": 1}
    assert again.suggest().settings not in [dict(each) for each in space.first]
    assert again.count == 3


def test_constraints_that_cannot_hold_are_an_error():
    with pytest.raises(UserError, match="keeps the constraints"):
        Tuner(parse_space({"n": {"min": 1, "max": 4}}, ("${n} > 9",)), method="random").suggest()


def test_a_pruner_stops_what_is_worse_than_the_median():
    tuner = Tuner({"n": [1]}, method="random", pruner="median")
    for worth in (10.0, 11.0, 12.0, 13.0, 14.0):
        good = tuner.suggest()
        assert not tuner.hopeless(good, {100: worth, 200: worth})
        tuner.tell(good, worth)
    assert not tuner.hopeless(tuner.suggest(), {100: 13.0})
    assert tuner.hopeless(tuner.suggest(), {100: 1.0})


def test_what_seeds_are_worth_together():
    values = [1.0, 100.0, 2.0, 3.0]
    assert together(values, Objective()) == 26.5
    assert together(values, Objective(across="iqm")) == 2.5  # without the lowest and the highest


def test_slots_have_cores_of_their_own():
    assert [cores(slot, 1, [0, 1]) for slot in range(3)] == [[0], [1], [0]]
    assert [cores(slot, 2, [0, 1, 4, 5]) for slot in range(2)] == [[0, 1], [4, 5]]
