"""Networks of equal size: the width at which a memory has a given number of parameters."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rl_lab.core.errors import UserError

TOLERANCE = 0.05  # how far the number of parameters may be from what was asked for


class Match(NamedTuple):
    """A width, and the parameters of the network that has it."""

    width: int
    parameters: int


def match_width(
    count: Callable[[int], int], target: int, widths: Sequence[int], tolerance: float = TOLERANCE
) -> Match:
    """Of rising `widths`, the one whose network comes closest to `target` parameters.

    `count` rises with the width, so only a few networks are built. `UserError` if the closest is
    off by more than the `tolerance`.
    """
    place = bisect_left(widths, target, key=count)
    near = [Match(each, count(each)) for each in widths[max(place - 1, 0) : place + 1]]
    best = min(near, key=lambda each: abs(each.parameters - target))
    if abs(best.parameters - target) > tolerance * target:
        found = " or ".join(f"{each.parameters:,}" for each in near)
        raise UserError(
            f"no width gives {target:,} parameters within {tolerance:.0%}, only {found}: "
            "choose another number with --parameters"
        )
    return best
