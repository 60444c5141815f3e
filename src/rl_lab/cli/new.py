"""`rl-lab new`: a working start for something of your own, with its test and its preset."""

import keyword
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rl_lab.cli.arguments import SETTINGS, Json
from rl_lab.cli.printing import program, say, say_json
from rl_lab.core.errors import UserError

SKELETONS = Path(__file__).resolve().parent.parent / "skeletons"
# kind -> what the skeletons are called until they are copied
NAMES = {"algorithm": "my_algorithm", "env": "my_env"}

app = typer.Typer(
    help="A working start for something of your own.",
    rich_markup_mode=None,
    context_settings=SETTINGS,
)


@app.callback()
def new() -> None:
    """A working start for something of your own."""


@app.command(context_settings=SETTINGS)
def algorithm(
    name: Annotated[str, typer.Argument(help="a small word such as my_algorithm")],
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="where to write it")
    ] = Path(),
    as_json: Json = False,
) -> int:
    """Write an algorithm that already trains and resumes, with its test and its preset."""
    from rl_lab.config import catalog  # noqa: F401  declares the built-in names
    from rl_lab.core import registry

    def check() -> None:
        if name in registry.names("workflow"):
            raise UserError(f"an algorithm '{name}' exists already: choose another name")

    return _write("algorithm", name, name, directory, check, as_json=as_json)


@app.command(name="env", context_settings=SETTINGS)
def environment(
    name: Annotated[str, typer.Argument(help="a small word such as my_env")],
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="where to write it")
    ] = Path(),
    as_json: Json = False,
) -> int:
    """Write an environment that can be trained on at once, with its test and its preset."""
    from rl_lab.envs.make import list_environments

    id = f"{_camel(name)}-v0"

    def check() -> None:
        if id in list_environments(id):
            raise UserError(f"an environment '{id}' exists already: choose another name")

    return _write("env", name, id, directory, check, as_json=as_json)


def _write(
    kind: str,
    name: str,
    registered: str,
    directory: Path,
    check: Callable[[], None],
    *,
    as_json: bool,
) -> int:
    """Copy the skeletons of a kind under a new name; commands call it `registered`."""
    from rl_lab.records.commit import make_directory, write_atomically

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"'{name}' cannot be a name: write a small word such as {NAMES[kind]}")
    files = {
        directory / f"{name}.py": f"{kind}.py.txt",
        directory / f"test_{name}.py": f"test_{kind}.py.txt",
        directory / f"{name}.yaml": f"{kind}.yaml.txt",
    }
    for file in files:
        if file.exists():
            raise UserError(f"{file} exists: choose another name, or another --directory")
    check()
    if name.startswith("test_") or find_spec(name) is not None:
        raise UserError(f"'{name}' is the name of a Python module: choose another name")
    if directory.exists() and not directory.is_dir():
        raise UserError(f"--directory {directory}: is a file")
    try:
        make_directory(directory)
        for file, skeleton in files.items():
            write_atomically(file, _filled(skeleton, NAMES[kind], name).encode())
    except OSError as error:
        raise UserError(f"--directory {directory}: cannot be written: {error.strerror}") from error
    commands = _commands(kind, name, registered, directory)
    if as_json:
        say_json({"name": name, "files": [str(file) for file in files], "commands": commands})
        return 0
    for file in files:
        say(f"wrote {file}")
    say("\nTry next:")
    for command in commands:
        say(f"  {command}")
    return 0


def _filled(skeleton: str, before: str, name: str) -> str:
    """A skeleton under its new name."""
    text = (SKELETONS / skeleton).read_text(encoding="utf-8")
    return text.replace(_camel(before), _camel(name)).replace(before, name)


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _commands(kind: str, name: str, registered: str, directory: Path) -> list[str]:
    """Three commands that work as they are printed, with nothing but the core installed."""
    code, preset, test = (
        str(directory / file) for file in (f"{name}.py", f"{name}.yaml", f"test_{name}.py")
    )
    this = sys.executable
    python = "python" if shutil.which("python") == this else os.path.relpath(this)
    return [
        shlex.join([program(), "train", "--config", preset]),
        shlex.join([program(), "check", kind, registered, "--plugin", code]),
        shlex.join([python, test]),
    ]
