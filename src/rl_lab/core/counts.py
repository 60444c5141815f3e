"""Counts as people type them: 10000, 10_000, 1e4, 10k, 1.5M."""

import math
import re

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
_COUNT = re.compile(r"([+-]?[\d_.]+(?:e[+-]?\d+)?)([kmbg]?)", re.IGNORECASE)


def read_count(text: str) -> int | None:
    """The whole number that a text means, or None."""
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        return None
    digits, factor = found[1], _FACTORS[found[2].lower()]
    try:
        return int(digits) * factor
    except ValueError:
        pass
    try:
        number = float(digits) * factor
    except ValueError:
        return None
    whole = round(number) if math.isfinite(number) else 0
    return whole if math.isclose(number, whole, rel_tol=1e-12, abs_tol=0.0) else None
