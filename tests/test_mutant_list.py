"""The list of mutants fits the code: checked at every test run, though `make mutants` runs them."""

import ast
from pathlib import Path

import pytest

from mutants import ROOT, load_mutants

MUTANTS = load_mutants()
TESTS = ROOT / "tests"
# Rows of the correctness list that have code here.
ROWS = {*range(1, 22), *range(23, 31), 31, 32, *range(33, 38), 39}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_it_can_be_applied_and_its_tests_exist(mutant):
    text = (ROOT / "src" / "rl_lab" / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    ast.parse(text.replace(mutant.old, mutant.new))  # it breaks a promise, not the syntax
    for selection in mutant.tests:
        file, _, name = selection.partition("::")
        assert not name or f"def {name.partition('[')[0]}(" in (TESTS / Path(file)).read_text()


def test_every_row_has_a_mutant_and_no_two_are_the_same():
    assert {int(mutant.row) for mutant in MUTANTS if mutant.row.isdecimal()} == ROWS
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS)
