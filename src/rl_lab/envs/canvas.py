"""A small canvas for worlds that are a plane: discs on a light square, drawn by numpy alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE = 256  # pixels
PAPER = (245, 245, 240)


class Disc(NamedTuple):
    """A colored disc, in the units of the world."""

    center: NDArray[np.floating]  # (x, y)
    radius: float
    color: tuple[int, int, int]


def draw(discs: Sequence[Disc], limit: float) -> NDArray[np.uint8]:
    """The square from -limit to limit, [256, 256, 3]: y points up, later discs lie on top.

    A margin of a twentieth is around it, so that what is at a wall is seen whole.
    """
    reach = 1.05 * limit
    axis = ((np.arange(SIZE) + 0.5) / SIZE * 2 - 1) * reach
    pixel = 2 * reach / SIZE
    picture = np.full((SIZE, SIZE, 3), PAPER, np.float64)
    for disc in discs:
        distance = np.hypot(axis - disc.center[0], -axis[:, None] - disc.center[1])
        cover = np.clip((disc.radius - distance) / pixel + 0.5, 0.0, 1.0)[..., None]
        picture += (np.array(disc.color) - picture) * cover
    return np.rint(picture).astype(np.uint8)
