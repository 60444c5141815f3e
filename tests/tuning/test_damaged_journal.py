"""A damaged journal of a sweep is one clear line, or no damage at all; never a raw error."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_lab.core.errors import UserError
from rl_lab.tuning.driver import _check_trials
from rl_lab.tuning.tuner import Tuner

pytestmark = pytest.mark.needs("optuna")

SPACE = {
    "algorithm.gamma": {"min": 0.9, "max": 0.99},
    "algorithm.epochs": {"values": [1, 2, 4]},
}


def open_journal(file: Path) -> Tuner:
    return Tuner(SPACE, method="random", seed=1, journal=file)


@pytest.fixture(scope="module")
def journal(tmp_path_factory) -> bytes:
    """Five trials that were told, and one that is open."""
    file = tmp_path_factory.mktemp("journal") / "journal.log"
    tuner = open_journal(file)
    for _ in range(5):
        suggestion = tuner.suggest()
        tuner.tell(suggestion, suggestion.settings["algorithm.gamma"])
    tuner.suggest()
    return file.read_bytes()


def use(file: Path) -> str | None:
    """Go on with it; the error if there was one, which must be one line for a user."""
    try:
        tuner = open_journal(file)
        assert len(tuner.results()) <= 6
        suggestion = tuner.suggest()
        tuner.tell(suggestion, 0.5)
        open_journal(file)
    except UserError as error:
        assert "\n" not in str(error)
        return str(error)
    return None


def test_every_cut_is_a_shorter_journal(tmp_path, journal):
    """Also one within the lines by which a trial draws its settings."""
    file = tmp_path / "journal.log"
    for place in [0, 1, *range(5, len(journal), len(journal) // 25), len(journal) - 1]:
        file.write_bytes(journal[:place])
        assert use(file) is None, place


def test_flips_are_told_or_harmless(tmp_path, journal):
    file, chance = tmp_path / "journal.log", random.Random(0)
    told = 0
    for _ in range(60):
        place = chance.randrange(len(journal))
        damaged = bytearray(journal)
        damaged[place] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        told += use(file) is not None
    assert told > 20


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[10:],
        lambda data: data[:300] + bytes(100) + data[400:],
        lambda data: b"null\n" + data,
        lambda data: b"[" * 100_000 + b"\n" + data,
        lambda data: data.replace(b'"algorithm.gamma"', b'"algorithm.gammb"'),
        lambda data: b"\xff" * 50 + b"\n",
    ],
)
def test_larger_damage_is_one_line(tmp_path, journal, change):
    file = tmp_path / "journal.log"
    file.write_bytes(change(journal))
    said = use(file)
    assert said is not None
    assert "journal.log is damaged" in said and "give the sweep another name" in said


def test_a_folder_in_its_place(tmp_path):
    (tmp_path / "journal.log").mkdir()
    assert "cannot be read" in (use(tmp_path / "journal.log") or "")


def test_a_journal_without_the_trials_of_runs_that_are_there(tmp_path):
    sweep = SimpleNamespace(name="search", folder=lambda root: root / "search")
    tuner = open_journal(tmp_path / "journal.log")
    tuner.suggest()
    (tmp_path / "search-t0000-s1-20260101-000000-aaaaaa").mkdir()
    _check_trials(sweep, tmp_path, tuner)
    (tmp_path / "search-t0003-s1-20260101-000000-bbbbbb").mkdir()
    with pytest.raises(UserError, match=r"it has 1 trials, and there is a run of trial 3\)"):
        _check_trials(sweep, tmp_path, tuner)


def test_a_point_of_a_grid_that_was_half_drawn_comes_again(tmp_path):
    file = tmp_path / "journal.log"
    space = {"a": {"values": [1, 2]}, "b": {"values": [3, 4]}}
    Tuner(space, method="grid", journal=file).suggest()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))  # killed before the last setting was drawn
    tuner = Tuner(space, method="grid", journal=file)
    assert tuner.open() == [] and tuner.count == 0
    drawn = []
    while (trial := tuner.suggest()) is not None:
        drawn.append(tuple(trial.settings.values()))
    assert sorted(drawn) == [(1, 3), (1, 4), (2, 3), (2, 4)]
