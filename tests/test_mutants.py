"""How a mutant finds its place, on a made-up file; `make mutants` checks and runs the list."""

import pytest

from mutants import Mutant, list_problems

TEXT = '''"""A module."""
LIMIT = 3


class Account:
    """Money."""

    def pay(self, amount, *, reason):
        """Take some."""
        if amount > self.rest:  # never below nothing
            raise ValueError("too much")
        self.rest = round(
            self.rest - amount,
            2,
        )
        self.log(amount, reason)

    def add(self, amount):
        self.rest = self.rest + amount


def total(accounts):
    def one(account):
        return account.rest

    return sum(one(each) for each in accounts)
'''


def mutant(where, old, new, tests=()):
    return Mutant(row="1", what="a name", where=where, old=old, new=new, tests=tests)


def changed(where, old, new):
    """The lines that are in only one of the texts."""
    lines = mutant(f"bank.py{where}", old, new).mutate(TEXT).splitlines()
    return [line for line in lines if line not in TEXT.splitlines()]


@pytest.mark.parametrize(
    ("where", "old", "new", "expected"),
    [
        ("", "LIMIT = 3", "LIMIT = 4", ["LIMIT = 4"]),
        (
            "::Account.pay",
            "amount > self.rest",
            "False",
            ["        if False:  # never below nothing"],
        ),
        ("::total.one", "account.rest", "0", ["        return 0"]),
        ("::total", "account.rest", "0", ["        return 0"]),
        # other line breaks, spaces and trailing commas than in the file
        (
            "::Account.pay",
            "self.rest = round(self.rest-amount, 2)",
            "self.rest -= amount",
            ["        self.rest -= amount"],
        ),
        # a comment within what is matched
        (
            "::Account.pay",
            'if amount > self.rest: raise ValueError("too much")',
            "pass",
            [],  # `pass` alone would be new
        ),
        # later lines are indented like the first
        (
            "::Account.pay",
            "self.log(amount, reason)",
            "if amount:\n    self.log(amount, None)",
            ["        if amount:", "            self.log(amount, None)"],
        ),
    ],
)
def test_code_is_found_however_it_is_laid_out(where, old, new, expected):
    assert changed(where, old, new) == (expected or ["        pass"])


@pytest.mark.parametrize(
    ("where", "old", "new", "message"),
    [
        ("::Account.pay", "self.debt", "0", "no match for /self.debt/ in bank.py::Account.pay"),
        ("::Account.add", "self.rest", "0", "2 matches for /self.rest/ in bank.py::Account.add"),
        ("::pay", "amount", "0", "no match for /amount/ in bank.py::pay (there is no such"),
        ("::Account.add", "self.rest + amount", "(", "not Python after the change in bank.py"),
    ],
)
def test_what_does_not_apply_is_named(where, old, new, message):
    with pytest.raises(ValueError) as caught:
        mutant(f"bank.py{where}", old, new).mutate(TEXT)
    assert str(caught.value).startswith(f"mutant 'a name': {message}")


def test_files_and_tests_that_are_gone_are_named():
    gone = mutant(
        "core/gone.py::f", "a", "b", tests=("core/test_gone.py", "test_mutants.py::test_x")
    )
    file, *tests = gone.problems()
    assert "there is no file core/gone.py" in file
    assert [line.rpartition(" ")[2] for line in tests] == list(gone.tests)


def test_a_list_has_every_row_once_and_no_name_twice():
    problems = list_problems([mutant("bank.py", "a", "b")] * 2)
    assert "row 2 of the correctness list has no mutant" in problems
    assert "two mutants are called 'a name'" in problems
    assert "mutant 'a name' is in the list twice" in problems
