"""Takes secrets out of what is written down, and places and names out of what is published."""

import getpass
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_lab.core.schema import HIDDEN

# `num_tokens`, `monkey`, `key_dim` are no secrets; `hf_token`, `WANDB_API_KEY`, `db.password` are.
_WORD = (
    r"(?:token|secret|webhook|password|passwd|passphrase|credentials?"
    r"|(?:api|access|private|secret|auth)[_-]?key|(?<![a-z0-9])key)"
)
_SECRET_NAME = re.compile(rf"[\w.+-]*{_WORD}", re.IGNORECASE)
_ASSIGNMENT = re.compile(rf"([\w.+-]*{_WORD}[=:]).+", re.IGNORECASE | re.DOTALL)
_INSIDE = re.compile(rf"({_WORD}[\"']?\s*[=:]\s*)[^\s,}}\]]+", re.IGNORECASE)
# In prose and code, only what is quoted, or long and with a digit, is a value and not a variable.
# Every repetition is bounded: a diff may be a megabyte of anything and must not take minutes.
_QUOTED = re.compile(
    rf"({_WORD}[\"']?\s{{0,8}}[=:]\s{{0,8}})"
    r"(?:([\"'])[^\"'\n]{6,500}\2|(?=\S{0,40}\d)[\w+/.=-]{16,500})",
    re.IGNORECASE,
)
_SHAPES = [
    re.compile(r"\b(?:gh[pousr]|github_pat|glpat|hf|sk|pk|xox[abprs])[-_][A-Za-z0-9_-]{16,255}"),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"),  # JSON web token
    re.compile(r"(?s)(?<=PRIVATE KEY-----)(?:(?!-----).)+(?=-----END)"),
    re.compile(r"(?<=://)[^/\s:@]{1,200}:[^/\s@]{1,200}(?=@)"),  # user:password@host
    re.compile(r"(?i)(?<=webhook: )https?://[^\s'\",}]{1,500}"),  # not quoted, as YAML has it
]

PLACE, PERSON, MACHINE = "<path>", "<user>", "<host>"
SHORTEST_NAME = 3  # a user or a host of fewer letters would take ordinary words out of the text
_ABSOLUTE = re.compile(
    r"(?<![\w.:/~-])(?:~[\w.-]*/|/(?=[^\s/]))[^\s'\",;:()<>]*|\b[A-Za-z]:\\[^\s'\",;]*"
)


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without anything that looks like a secret or is the value of a secret variable."""
    for value in _secret_values(os.environ if environment is None else environment):
        text = text.replace(value, HIDDEN)
    for shape in _SHAPES:
        text = shape.sub(HIDDEN, text)
    return _QUOTED.sub(lambda match: f"{match[1]}{HIDDEN}", text)


def redact_arguments(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> list[str]:
    """A command line without the values of `--token X`, `api_key=X` and the like."""
    safe: list[str] = []
    expects_value = False
    for argument in arguments:
        match = _ASSIGNMENT.fullmatch(argument)
        if expects_value and not argument.startswith("-"):
            safe.append(HIDDEN)
        elif match is not None:
            safe.append(f"{match[1]}{HIDDEN}")
        else:
            safe.append(_INSIDE.sub(rf"\1{HIDDEN}", redact(argument, environment)))
        expects_value = argument.startswith("-") and _SECRET_NAME.fullmatch(argument) is not None
    return safe


def redact_variables(variables: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The named variables that are set, without secrets."""
    return {
        name: HIDDEN if _SECRET_NAME.fullmatch(name) else redact(variables[name], variables)
        for name in names
        if name in variables
    }


def anonymous(tree: object) -> Any:
    """Plain data without secrets, absolute paths, this user's name and this machine's name."""
    return _replaced(tree, lambda text: _without_names(_without_places(redact(text))))


def without_places(tree: object) -> Any:
    """Plain data without secrets and absolute paths; names stay: a user may be called adam."""
    return _replaced(tree, lambda text: _without_places(redact(text)))


def _replaced(tree: object, change: Callable[[str], str]) -> Any:
    if isinstance(tree, Mapping):
        return {str(key): _replaced(each, change) for key, each in tree.items()}
    if isinstance(tree, list | tuple):
        return [_replaced(each, change) for each in tree]
    return change(tree) if isinstance(tree, str) else tree


def _without_places(text: str) -> str:
    home = str(Path("~").expanduser())
    text = _ABSOLUTE.sub(PLACE, text.replace(home, PLACE) if len(home) > 1 else text)
    return re.sub(rf"{re.escape(PLACE)}[^\s'\",;:()<>]*", PLACE, text)


def _without_names(text: str) -> str:
    for name, shown in ((_user(), PERSON), (platform.node(), MACHINE)):
        if len(name) >= SHORTEST_NAME:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", shown, text)
    return text


def _user() -> str:
    with suppress(OSError, KeyError):  # a user id without a name
        return getpass.getuser()
    return ""


def _secret_values(environment: Mapping[str, str]) -> list[str]:
    # Short values would take ordinary words out of the text.
    return [
        value
        for name, value in environment.items()
        if len(value) >= 8 and _SECRET_NAME.fullmatch(name)
    ]
