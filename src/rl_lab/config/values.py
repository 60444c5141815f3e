"""Python values in the grammar of the command line."""

import re
from collections.abc import Mapping


def as_override(path: str, value: object) -> str:
    """`key=value` in the grammar of the command line, from a Python value."""
    return f"{path}={_spelled(value)}"


def _spelled(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_spelled(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_spelled, value)) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    # In quotes, a backslash is only special in front of a quote.
    text = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), str(value))
    return f'"{text}"'
