"""Where an exception came from: one line with the last frame of the user's own code."""

import inspect
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path

from rl_lab.core.errors import RunError, UserError

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = ("site-packages", "dist-packages")
_PYTHON = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}


def located(error: BaseException) -> str:
    """`reach_env.py:45 in step: KeyError: 'late'`: the last frame of user code, and the error.

    Without user code in the traceback it is the last frame of all. An error of ours is a sentence
    already, and stays as it is.
    """
    if isinstance(error, UserError | RunError):
        return str(error)
    what = _described(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}: {what}"
    place = _place(error)
    return f"{place}: {what}" if place else what


def whole_traceback(error: BaseException) -> str:
    """Every frame, as Python prints it; with that of the worker process, if it failed there."""
    text = "".join(traceback.format_exception(error)).rstrip()
    remote: str = getattr(error, "remote_traceback", "")
    return f"{text}\nin a worker process:\n{remote.rstrip()}" if remote else text


def defined_at(function: Callable[..., object]) -> str:
    """`my_algorithm.py:60 act`: the place of a function or method, for errors about what it did."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    inner = getattr(inner, "__func__", inner)
    name = getattr(inner, "__qualname__", type(function).__name__)
    code = getattr(inner, "__code__", None)
    return name if code is None else f"{_short(code.co_filename)}:{code.co_firstlineno} {name}"


def _described(error: BaseException) -> str:
    lines = str(error.msg if isinstance(error, SyntaxError) else error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _place(error: BaseException) -> str:
    known = traceback.extract_tb(error.__traceback__)
    frames = [each for each in known if not each.filename.startswith("<")]
    if not frames:
        return ""
    last = ([each for each in frames if _is_users(each.filename)] or frames)[-1]
    return f"{_short(last.filename)}:{last.lineno} in {last.name}"


def _is_users(file: str) -> bool:
    """Neither ours, nor Python's, nor of an installed package."""
    path = Path(file).resolve()
    if any(part in _LIBRARIES for part in path.parts):
        return False
    return not any(path.is_relative_to(each) for each in (_PACKAGE, *_PYTHON))


def _short(file: str) -> str:
    """Relative to the current folder if it is below it, otherwise the name alone."""
    path = Path(file)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path.name
