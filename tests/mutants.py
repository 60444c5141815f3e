"""Known bugs, put back one at a time: each must turn one of its tests red. Run by `make mutants`.

`mutants.toml` lists them. A mutant is addressed by a file, the qualified name of a function or a
class in it, and a piece of code that occurs there once; line breaks, spaces, comments and trailing
commas do not matter. The list is checked first: a mutant that no longer matches is named and counts
as failed, and the others are run. Every mutation is made in a copy of `src/`.

    python tests/mutants.py [--only TEXT] [--list | --check]
"""

import argparse
import ast
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import tokenize
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("mutants.toml")
HEAVY = ("torch._inductor", "gymnasium", "hydra", "hypothesis", "pytest", "rich", "safetensors")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
SECONDS = 180  # a mutant that takes longer hangs
# Rows of the correctness list that have code here.
ROWS = {*range(1, 22), *range(23, 38), 39}
GREEN, RED = 0, 1  # what pytest answers; anything else is a broken mutant, not a caught one


@dataclass(frozen=True)
class Mutant:
    """One way to be wrong. `row` is a row of the correctness list, or the name of a promise."""

    row: str
    what: str
    where: str  # file below src/rl_lab, or file::function, file::Class.method
    old: str  # code that occurs once in there
    new: str
    tests: tuple[str, ...]  # below tests/

    @property
    def file(self) -> str:
        return self.where.partition("::")[0]

    def mutate(self, text: str) -> str:
        """The text of the file with the change; a `ValueError` if it does not apply or parse."""
        spans = scopes(text, self.where.partition("::")[2])
        found = [span for start, end in spans for span in matches(self.old, text, start, end)]
        if len(found) != 1:
            count = f"{len(found)} matches" if found else "no match"
            scope = "" if spans else " (there is no such function or class)"
            old = " ".join(self.old.split())
            raise ValueError(f"mutant '{self.what}': {count} for /{old}/ in {self.where}{scope}")
        start, end = found[0]
        line = text[text.rfind("\n", 0, start) + 1 : start]
        margin = line[: len(line) - len(line.lstrip())] if line.strip() else line
        changed = text[:start] + self.new.replace("\n", f"\n{margin}") + text[end:]
        try:
            ast.parse(changed)
        except SyntaxError as error:
            raise ValueError(
                f"mutant '{self.what}': not Python after the change in {self.where}: {error}"
            ) from error
        return changed

    def apply(self, source: Path) -> None:
        """Make the change in a copy of `src/`."""
        path = source / "rl_lab" / self.file
        path.write_text(self.mutate(path.read_text()))

    def problems(self) -> list[str]:
        """Why it cannot be run on the code and the tests as they are; empty if it can."""
        found = []
        path = ROOT / "src" / "rl_lab" / self.file
        if not path.is_file():
            found.append(f"mutant '{self.what}': there is no file {self.file}")
        else:
            try:
                self.mutate(path.read_text())
            except ValueError as error:
                found.append(str(error))
        found += [
            f"mutant '{self.what}': there is no test {selection}"
            for selection in self.tests
            if not exists(selection)
        ]
        return found


def exists(selection: str) -> bool:
    """Whether there is such a test: a folder or file below tests/, or `file::name`."""
    file, _, name = selection.partition("::")
    path = ROOT / "tests" / file
    return path.exists() and (not name or f"def {name.partition('[')[0]}(" in path.read_text())


def load_mutants(path: Path = LIST) -> list[Mutant]:
    """The committed list, in order."""
    entries = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def list_problems(mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with the list as a whole."""
    missing = ROWS - {int(mutant.row) for mutant in mutants if mutant.row.isdecimal()}
    found = [f"row {row} of the correctness list has no mutant" for row in sorted(missing)]
    names = [mutant.what for mutant in mutants]
    found += [f"two mutants are called '{name}'" for name in set(names) if names.count(name) > 1]
    changes = [(mutant.where, mutant.old, mutant.new) for mutant in mutants]
    return found + [
        f"mutant '{mutant.what}' is in the list twice"
        for number, mutant in enumerate(mutants)
        if changes[number] in changes[:number]
    ]


# -- finding code ---------------------------------------------------------------------------------


def scopes(text: str, name: str) -> list[tuple[int, int]]:
    """Where functions and classes of this qualified name are; all of the text if it is empty."""
    if not name:
        return [(0, len(text))]
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for own, node in definitions(ast.parse(text)):
        if own == name:
            first = min(each.lineno for each in (node, *node.decorator_list))
            found.append((starts[first - 1], starts[node.end_lineno or first]))
    return found


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(node: ast.AST, above: str = "") -> Iterator[tuple[str, Definition]]:
    """Every function and class with its qualified name (`Class.method`, `function.inner`)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield f"{above}{child.name}", child
            yield from definitions(child, f"{above}{child.name}.")
        else:
            yield from definitions(child, above)


def matches(old: str, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where `old` is in `text[start:end]`, however either is laid out."""
    places = [place for place in significant(text) if start <= place < end]
    code = "".join(text[place] for place in places)
    wanted = "".join(old[place] for place in significant(old))
    at = code.find(wanted)
    while at >= 0:
        yield places[at], places[at + len(wanted) - 1] + 1
        at = code.find(wanted, at + 1)


@cache
def significant(text: str) -> list[int]:
    """Positions of the characters that matter: no white space, comment or trailing comma."""
    skipped = set()
    with suppress(tokenize.TokenError):  # a piece of code may end within brackets
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                line = sum(map(len, text.splitlines(keepends=True)[: token.start[0] - 1]))
                skipped |= set(range(line + token.start[1], line + token.end[1]))
    places = [
        place for place, each in enumerate(text) if place not in skipped and not each.isspace()
    ]
    following = [text[place] for place in places[1:]] + [""]
    return [
        place
        for place, after in zip(places, following, strict=True)
        if not (text[place] == "," and after and after in ")]}")
    ]


# -- running --------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Run the chosen mutants and print a table; 0 only if every one of them was caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants that mention TEXT")
    parser.add_argument("--list", action="store_true", help="show them and run nothing")
    parser.add_argument("--check", action="store_true", help="check the list and run nothing")
    options = parser.parse_args(words)
    wanted = options.only.lower()
    listed = load_mutants()
    chosen = [m for m in listed if wanted in f"{m.row} {m.what} {m.where}".lower()]
    if not chosen:
        parser.error(f"no mutant mentions '{options.only}'")
    if options.list:
        for mutant in chosen:
            print(f"{mutant.row:<8} {mutant.where:<48} {mutant.what}")
        return 0
    stale = {mutant: problems for mutant in chosen if (problems := mutant.problems())}
    lines = [*list_problems(listed), *(each for found in stale.values() for each in found)]
    for line in lines:
        say(line)
    if options.check:
        say(f"{len(chosen) - len(stale)} of {len(chosen)} mutants can be applied")
        return 1 if lines else 0
    failed = run([mutant for mutant in chosen if mutant not in stale], stale=len(stale))
    return 1 if lines else failed


def run(mutants: Sequence[Mutant], stale: int = 0) -> int:
    """The unmutated baseline first, then each mutant in a process of its own.

    `stale` is the number of mutants that could not be applied: they are counted as failed.
    """
    prepare()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        place = Path(name)
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(place / "hypothesis")
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        say(f"baseline: {len(tests)} test selections on the code as it is ...")
        shutil.copytree(ROOT / "src", place / "original", ignore=LEFT_OUT)
        code, output = outcome(fresh_copy(place), tests, place, seconds=20 * SECONDS)
        if code != GREEN:
            say(f"{output}\nthe baseline is not green: nothing can be said about mutants")
            say(f"0 passed, {len(mutants) + stale} failed")
            return 1
        caught = 0
        for number, mutant in enumerate(mutants, start=1):
            verdict, detail = judge(mutant, place)
            caught += verdict == "killed"
            where = f"[{number:>{len(str(len(mutants)))}}/{len(mutants)}]"
            say(f"{where} {verdict:<8} {mutant.row:<8} {mutant.what:<62} {detail}")
    say(f"{time.monotonic() - began:.0f} seconds")
    say(f"{caught} passed, {len(mutants) - caught + stale} failed")
    return 0 if caught == len(mutants) else 1


def judge(mutant: Mutant, place: Path) -> tuple[str, str]:
    """`killed` and by which test, or what went wrong."""
    source = fresh_copy(place)
    mutant.apply(source)
    code, output = outcome(source, mutant.tests, place)
    if code == RED:
        killer = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
        return "killed", f"by {killer[1]}" if killer else output.strip().splitlines()[-1]
    if code == GREEN:
        return "SURVIVED", f"all of {', '.join(mutant.tests)} passed"
    return "BROKEN", f"pytest ended with {code}: {' '.join(output.split())[-300:]}"


def outcome(
    source: Path, tests: Iterable[str], place: Path, seconds: int = SECONDS
) -> tuple[int, str]:
    """Exit code and output of the tests, with the package taken from `source`.

    In a fork of this process, which has the heavy libraries in memory and nothing of ours.
    """
    log = place / "output"
    child = os.fork()
    if child == 0:
        code = 70
        try:
            signal.alarm(seconds)
            with log.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            code = run_tests(source, tests, place)
        except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), log.read_text(errors="replace")


def run_tests(source: Path, tests: Iterable[str], place: Path) -> int:
    """Run pytest in this process on the package in `source`, and on no other."""
    import pytest

    os.chdir(ROOT)
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = str(source)  # for tests that start processes
    import rl_lab

    assert Path(rl_lab.__file__) == source / "rl_lab" / "__init__.py", rl_lab.__file__
    quiet = ["-x", "-q", "-rfE", "--tb=no", "--no-header", "--hypothesis-seed=0"]
    quiet += ["--assert=plain"]  # no time is spent on how two long texts differ
    nothing_here = ["-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={place / 'runs'}"]
    return int(pytest.main([*quiet, *nothing_here, *(f"tests/{test}" for test in tests)]))


def fresh_copy(place: Path) -> Path:
    """`src/` as it was at the start, whatever has been edited since."""
    copy = place / "src"
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(place / "original", copy))


def prepare() -> None:
    """Import once what every mutant needs, and nothing of ours."""
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True  # or a mutant could meet the bytecode of another one
    os.environ.pop("RL_LAB_FAULT", None)
    for name in HEAVY:
        with suppress(ImportError):  # only saves time
            import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] == "rl_lab"]
    assert not ours, f"{ours} would be tested instead of the mutants"


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
