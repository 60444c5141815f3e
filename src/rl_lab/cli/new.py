"""`rl-lab new`: a working start for something of your own, with its test and its preset."""

import keyword
import os
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from rl_lab.cli.printing import say, say_json
from rl_lab.cli.train import _program
from rl_lab.core.errors import UserError

SKELETONS = Path(__file__).resolve().parent.parent / "skeletons"
NAME, CLASS = "my_algorithm", "MyAlgorithm"  # what the skeletons are called until they are copied


def algorithm(name: str, *, directory: Path, as_json: bool) -> int:
    """Write NAME.py, test_NAME.py and NAME.yaml, which train, resume and pass as they are."""
    from rl_lab.records.commit import make_directory, write_atomically

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"'{name}' cannot be a name: write a small word such as {NAME}")
    files = {
        directory / f"{name}.py": "algorithm.py.txt",
        directory / f"test_{name}.py": "test_algorithm.py.txt",
        directory / f"{name}.yaml": "algorithm.yaml.txt",
    }
    for file in files:
        if file.exists():
            raise UserError(f"{file} exists: choose another name, or another --directory")
    _check_free(name)
    if directory.exists() and not directory.is_dir():
        raise UserError(f"--directory {directory}: is a file")
    try:
        make_directory(directory)
        for file, skeleton in files.items():
            write_atomically(file, _filled(skeleton, name).encode())
    except OSError as error:
        raise UserError(f"--directory {directory}: cannot be written: {error.strerror}") from error
    commands = _commands(name, directory)
    if as_json:
        say_json({"name": name, "files": [str(file) for file in files], "commands": commands})
        return 0
    for file in files:
        say(f"wrote {file}")
    say("\nTry next:")
    for command in commands:
        say(f"  {command}")
    return 0


def _check_free(name: str) -> None:
    """Neither an algorithm nor a module of Python has the name."""
    from rl_lab.core import registry
    from rl_lab.orchestration import catalog  # noqa: F401  declares the built-in names

    if name in registry.names("workflow"):
        raise UserError(f"an algorithm '{name}' exists already: choose another name")
    if name.startswith("test_") or find_spec(name) is not None:
        raise UserError(f"'{name}' is the name of a Python module: choose another name")


def _filled(skeleton: str, name: str) -> str:
    """A skeleton under its new name."""
    text = (SKELETONS / skeleton).read_text(encoding="utf-8")
    camel = "".join(word.capitalize() for word in name.split("_"))
    return text.replace(CLASS, camel).replace(NAME, name)


def _commands(name: str, directory: Path) -> list[str]:
    """Three commands that work as they are printed."""
    code, preset, test = (
        str(directory / file) for file in (f"{name}.py", f"{name}.yaml", f"test_{name}.py")
    )
    this = sys.executable
    python = "python" if shutil.which("python") == this else os.path.relpath(this)
    return [
        shlex.join([_program(), "train", "--config", preset]),
        shlex.join([_program(), "check", "algorithm", name, "--plugin", code]),
        shlex.join([python, "-m", "pytest", test]),
    ]
