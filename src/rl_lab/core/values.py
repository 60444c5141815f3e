"""Single values of a config: what a number, a flag, a choice, a schedule may look like."""

import math
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from rl_lab.core.counts import read_count
from rl_lab.core.errors import did_you_mean
from rl_lab.core.schedule import Schedule, parse_schedule

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class BadValueError(Exception):
    """A value that does not fit; the message says what would."""


def takes_float(annotation: object) -> bool:
    """True for `float`, or null, or a word such as auto; not for a count that may be a share."""
    arms = set(get_args(annotation)) or {annotation}
    others = [arm for arm in arms - {float} if get_origin(arm) is not Literal]
    return float in arms and all(arm is type(None) for arm in others)


def schedule(value: object) -> Schedule | None:
    """A schedule, None, or `BadValueError` with the reason."""
    try:
        return parse_schedule(value)
    except (ValueError, TypeError) as error:
        raise BadValueError(f"not a schedule: {error}") from error


def free_value(value: object, schedules: bool) -> Any:
    """An undeclared value: a schedule or a number if it reads as one."""
    if schedules and (found := parse_schedule(value)) is not None:
        return found
    number = read_number(value) if isinstance(value, str) else None
    return value if number is None else number


def read_number(text: str) -> int | float | None:
    """`1_000_000`, `3e-4`, `-1`; None if the text is not a finite number."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def whole(value: object) -> int:
    """5, 5.0, "5e3", "10k": anything that is exactly an integer."""
    number = read_count(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise BadValueError(f"must be a whole number, got {quoted(value)}")
    if not math.isfinite(number) or number != int(number):
        raise BadValueError(f"must be a whole number, got {quoted(value)}")
    return int(number)


def real(value: object) -> float:
    """3, 3e-4, "3e-4"; not infinite, not NaN."""
    number = read_number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise BadValueError(f"must be a number, got {quoted(value)}")
    if not math.isfinite(number):
        raise BadValueError(f"must be a finite number, got {quoted(value)}")
    return float(number)


def truth(value: object) -> bool:
    """true and false, also as text."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool):
        return value
    raise BadValueError(f"must be true or false, got {quoted(value)}")


def text(value: object) -> str:
    """Text; a number is taken as it is written (`name: 42`)."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise BadValueError(f"must be text, got {quoted(value)}")


SCALARS: dict[Any, Callable[[Any], Any]] = {int: whole, float: real, bool: truth, str: text}


def literal(value: object, choices: tuple[Any, ...]) -> Any:
    """One of the choices; YAML's true and false also mean on and off, and text may be a number."""
    candidates = [value]
    if isinstance(value, bool):
        candidates.append("on" if value else "off")
    if isinstance(value, str):
        candidates += [read_number(value), {"true": True, "false": False}.get(value.lower())]
    for candidate in candidates:
        for choice in choices:
            if type(candidate) is type(choice) and candidate == choice:
                return choice
    hint = did_you_mean(value, [str(each) for each in choices]) if isinstance(value, str) else ""
    hint = hint if "did you mean" in hint else ""
    raise BadValueError(f"must be {expected((Literal[choices],))}, got {quoted(value)}{hint}")


def expected(arms: Sequence[Any]) -> str:
    """The arms of a union in words: `'auto', a whole number or null`."""
    words: list[str] = []
    for arm in arms:
        if get_origin(arm) is Literal:
            words += [quoted(each) for each in get_args(arm)]
        else:
            words.append(WORDS.get(arm) or type_name(arm))
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def quoted(value: object) -> str:
    """A value as YAML would show it, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def type_name(annotation: object) -> str:
    """An annotation as a reader wants it: `int`, `list[int]`, `'auto' | int`."""
    if get_origin(annotation) is Literal:
        return " | ".join(repr(each) for each in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(type_name(each) for each in get_args(annotation))
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is list:
        return f"list[{type_name(get_args(annotation)[0])}]"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")
