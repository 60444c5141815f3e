"""A picture as pure data: what an algorithm wants to show, before it is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rl_lab.core.batch import Array


@dataclass(frozen=True, eq=False)
class Contour:
    """Lines of equal height of z [Y, X] over x [X] and y [Y]."""

    x: Array
    y: Array
    z: Array


@dataclass(frozen=True, eq=False)
class Lines:
    """Paths through the plane, [L, 2] each: alike, or each with a label and a color of its own."""

    paths: Sequence[Array]
    labels: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Points:
    """Places in the plane, [M, 2]."""

    places: Array


@dataclass(frozen=True, eq=False)
class Bars:
    """One bar for each label."""

    labels: Sequence[str]
    heights: Sequence[float]


@dataclass(frozen=True, eq=False)
class Film:
    """Strips of images [T, C, H, W] in [0, 1], one below the other, with a label each."""

    labels: Sequence[str]
    strips: Sequence[Array]


Layer = Contour | Lines | Points | Bars | Film


@dataclass(frozen=True, eq=False)
class Picture:
    """Layers over one pair of axes, the first one at the bottom."""

    title: str
    layers: Sequence[Layer]
    x_label: str = ""
    y_label: str = ""
    x_limits: tuple[float, float] | None = None  # None: as wide as what is shown
    y_limits: tuple[float, float] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)  # metrics of what is shown, by name
