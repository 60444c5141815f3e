"""Known bugs, put back one at a time: each must turn one of its tests red. Run by `make mutants`.

`mutants.toml` lists them: where, the exact text, what it becomes, the promise it breaks, and the
tests that must notice. Every mutation is made in a copy of `src/`; the working tree is never
touched. A mutant whose text is not found exactly once is a failure too, so the list cannot rot.

    python tests/mutants.py [--only TEXT] [--list]
"""

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("mutants.toml")
HEAVY = ("torch._inductor", "gymnasium", "hydra", "hypothesis", "pytest", "rich", "safetensors")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
SECONDS = 180  # a mutant that takes longer hangs
GREEN, RED = 0, 1  # what pytest answers; anything else is a broken mutant, not a caught one


@dataclass(frozen=True)
class Mutant:
    """One way to be wrong. `row` is a row of the correctness list, or the name of a promise."""

    row: str
    what: str
    file: str  # below src/rl_lab
    old: str
    new: str
    tests: tuple[str, ...]  # below tests/

    def apply(self, source: Path) -> None:
        """Make the change in a copy of `src/`; the text must be there exactly once."""
        path = source / "rl_lab" / self.file
        text = path.read_text()
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.file}: the text to change occurs {found} times, not once")
        path.write_text(text.replace(self.old, self.new))


def load_mutants(path: Path = LIST) -> list[Mutant]:
    """The committed list, in order."""
    entries = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def main(words: Sequence[str] | None = None) -> int:
    """Run the chosen mutants and print a table; 0 only if every one of them was caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants that mention TEXT")
    parser.add_argument("--list", action="store_true", help="show them and run nothing")
    options = parser.parse_args(words)
    wanted = options.only.lower()
    chosen = [m for m in load_mutants() if wanted in f"{m.row} {m.what} {m.file}".lower()]
    if not chosen:
        parser.error(f"no mutant mentions '{options.only}'")
    if options.list:
        for mutant in chosen:
            print(f"{mutant.row:<8} {mutant.file:<32} {mutant.what}")
        return 0
    return run(chosen)


def run(mutants: Sequence[Mutant]) -> int:
    """The unmutated baseline first, then each mutant in a process of its own."""
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
            say(f"0 passed, {len(mutants)} failed")
            return 1
        caught = 0
        for number, mutant in enumerate(mutants, start=1):
            verdict, detail = judge(mutant, place)
            caught += verdict == "killed"
            where = f"[{number:>{len(str(len(mutants)))}}/{len(mutants)}]"
            say(f"{where} {verdict:<8} {mutant.row:<8} {mutant.what:<62} {detail}")
    say(f"{time.monotonic() - began:.0f} seconds")
    say(f"{caught} passed, {len(mutants) - caught} failed")
    return 0 if caught == len(mutants) else 1


def judge(mutant: Mutant, place: Path) -> tuple[str, str]:
    """`killed` and by which test, or what went wrong."""
    source = fresh_copy(place)
    try:
        mutant.apply(source)
    except ValueError as error:
        return "STALE", str(error)
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
