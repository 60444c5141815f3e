"""Errors that are part of the interface: what a user can fix, and what stops a run on purpose."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class UserError(Exception):
    """Something the user can fix. Printed as one clear line; exit code 2."""


class ConfigError(UserError):
    """Every problem of a configuration at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class RunError(Exception):
    """A run had to stop. Printed as one clear line; exit code 1."""


class OutOfMemoryError(RunError):
    """The machine or the GPU has not enough memory; the message says what to reduce."""


class NonFiniteError(RunError):
    """A NaN or an infinity was met. Raised before any weight, statistic or buffer has changed."""

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        self.details = details or {}
        super().__init__(message)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint ` (did you mean 'x'?)`, or the known names when they are few, or nothing."""
    options = sorted(known)
    close = get_close_matches(name, options, n=1, cutoff=0.6)
    if close:
        return f" (did you mean '{close[0]}'?)"
    if 0 < len(options) <= 12:
        return f" (known: {', '.join(options)})"
    return ""
