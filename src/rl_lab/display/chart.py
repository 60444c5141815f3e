"""Line charts as data, and the same drawn as SVG: panels with axes, bands, markers and a legend."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
import numpy.typing as npt

from rl_lab.display import svg

Array = npt.NDArray[np.float64]

PANEL_WIDTH, PLOT_HEIGHT = 470.0, 210.0
ONE_PANEL_WIDTH, ONE_PLOT_HEIGHT = 640.0, 280.0
LEFT, RIGHT = 58.0, 18.0  # of the plot within its panel: room for the labels of the y axis
HEAD, FOOT = 52.0, 44.0  # above the plot: its title; below: the x axis
ROW = 17.0  # of a legend
MARGIN, SPACE = 16.0, 18.0
FEW = 20  # points of a line that is shown with markers
LARGEST = 1e300  # larger numbers are drawn as this: their differences stay finite
DASHES = ("", "6 3", "2 3")  # of the 1st, 2nd and 3rd eight colors


@dataclass(frozen=True, eq=False)
class Line:
    """One curve. `color` is a number: the same one is the same color in every panel."""

    label: str  # empty: not in the legend
    x: Array
    y: Array
    color: int = 0
    band: tuple[Array, Array] | None = None  # low and high, at every x
    thin: bool = False


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure: what it shows, how to read it, and its panels, at least one."""

    title: str
    panels: Sequence[Panel]
    note: str = ""
    columns: int = 2


def to_svg(chart: Chart) -> str:
    """The whole figure."""
    alone = len(chart.panels) == 1
    width, height = (ONE_PANEL_WIDTH, ONE_PLOT_HEIGHT) if alone else (PANEL_WIDTH, PLOT_HEIGHT)
    columns = min(len(chart.panels), chart.columns)
    whole = 2 * MARGIN + columns * width + (columns - 1) * SPACE
    parts, top = [], MARGIN
    for line in wrap(chart.title, int((whole - 2 * MARGIN) / svg.width_of("x", 15, bold=True))) or [
        ""
    ]:
        parts.append(svg.text(MARGIN, top + 14, line, size=15, bold=True))
        top += 20
    for line in wrap(chart.note, int((whole - 2 * MARGIN) / svg.width_of("x", 11.5))):
        parts.append(svg.text(MARGIN, top + 12, line, size=11.5, fill=svg.GREY))
        top += 16
    top += 8
    for start in range(0, len(chart.panels), columns):
        row = chart.panels[start : start + columns]
        legends = [_legend(panel, width) for panel in row]
        for index, (panel, legend) in enumerate(zip(row, legends, strict=True)):
            left = MARGIN + index * (width + SPACE)
            parts += _panel(panel, left, top, width, height)
            below = top + HEAD + height + FOOT
            parts += [part for items in legend for part in _swatches(items, left, below)]
        top += HEAD + height + FOOT + ROW * max(map(len, legends)) + SPACE
    return svg.document(whole, top, chart.title, parts)


# ------------------------------------------------------------------------ panels


def _panel(panel: Panel, left: float, top: float, width: float, height: float) -> list[str]:
    x0, x1 = left + LEFT, left + width - RIGHT
    y1, y0 = top + HEAD, top + HEAD + height
    xs, ys = _x_range(panel.lines), panel.y_range or _y_range(panel.lines)

    def across(values: Array) -> Array:
        return x0 + (x1 - x0) * (values - xs[0]) / (xs[1] - xs[0])

    def up(values: Array) -> Array:
        values = np.clip(values, *ys)
        return y0 - (y0 - y1) * (values - ys[0]) / (ys[1] - ys[0])

    parts = [
        svg.text(left, top + 14, panel.title, size=13, bold=True),
        svg.text(left, top + 34, panel.y_label, size=11, fill=svg.GREY),
        svg.text((x0 + x1) / 2, y0 + 36, panel.x_label, size=11, anchor="middle", fill=svg.GREY),
    ]
    marks = svg.ticks(*ys)
    for mark, label in zip(up(np.array(marks)), svg.tick_labels(marks), strict=True):
        y = float(mark)
        parts.append(svg.element("line", x1=x0, x2=x1, y1=y, y2=y, stroke=svg.RULE))
        parts.append(svg.text(x0 - 8, y + 4, label, size=11, anchor="end", fill=svg.GREY))
    marks = svg.ticks(*xs, 6)
    for mark, label in zip(
        across(np.array(marks)), svg.tick_labels(marks, short=True), strict=True
    ):
        x = float(mark)
        parts.append(svg.element("line", x1=x, x2=x, y1=y0, y2=y0 + 4, stroke=svg.GREY))
        parts.append(svg.text(x, y0 + 18, label, size=11, anchor="middle", fill=svg.GREY))
    parts.append(svg.element("line", x1=x0, x2=x1, y1=y0, y2=y0, stroke=svg.GREY))
    for line in panel.lines:
        if line.band is not None:
            low, high = (up(each) for each in line.band)
            there = across(line.x)
            outline = svg.points([*there, *there[::-1]], [*low, *high[::-1]])
            parts.append(svg.element("polygon", points=outline, fill=_color(line), opacity=0.16))
    for line in sorted(panel.lines, key=lambda each: not each.thin):  # thin ones below
        parts += _curve(line, across(line.x), up(line.y))
    return parts


def _curve(line: Line, x: Array, y: Array) -> list[str]:
    thin = {"stroke_width": 1, "opacity": 0.55} if line.thin else {"stroke_width": 2}
    dash = _dash(line)
    parts = [
        svg.element(
            "polyline",
            points=svg.points(x, y),
            fill="none",
            stroke=_color(line),
            stroke_linejoin="round",
            **thin,
            **dash,
        )
    ]
    if len(x) <= FEW:
        radius = 1.8 if line.thin else 3
        for where, value, cx, cy in zip(line.x, line.y, x, y, strict=True):
            title = svg.element("title", svg.escaped(f"{where:,.6g}: {value:,.6g}"))
            parts.append(
                svg.element(
                    "circle", title, cx=float(cx), cy=float(cy), r=radius, fill=_color(line)
                )
            )
    return parts


def _x_range(lines: Sequence[Line]) -> tuple[float, float]:
    low, high = _ends([line.x for line in lines])
    if 0 < low <= 0.25 * high:  # a run begins at step 0, though its first row is later
        low = 0.0
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _y_range(lines: Sequence[Line]) -> tuple[float, float]:
    low, high = _ends([each for line in lines for each in (line.y, *(line.band or ()))])
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return low - room, high + room


def _ends(arrays: Sequence[Array]) -> tuple[float, float]:
    values = np.concatenate(arrays)
    values = np.clip(values[np.isfinite(values)], -LARGEST, LARGEST)
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


# ------------------------------------------------------------------------ legend

Item = tuple[float, float, Line | None, str]  # where in the legend, whose swatch, one row of text


def _legend(panel: Panel, width: float) -> list[list[Item]]:
    """Rows of labels, as many beside each other as fit; a long label goes over several rows."""
    named = [line for line in panel.lines if line.label]
    if len(named) == 1 and named[0].label == panel.y_label:
        return []
    letters = max(int((width - LEFT - RIGHT - 26) / svg.width_of("x", 11.5)), 10)
    rows: list[list[Item]] = []
    x = width  # full: the first label opens a row
    for line in named:
        words = wrap(line.label, letters) or [""]
        size = 26 + svg.width_of(max(words, key=len), 11.5) + 16
        if x + size > width - RIGHT or len(words) > 1:
            rows.append([])
            x = LEFT
        for index, part in enumerate(words):
            if index:
                rows.append([])
            rows[-1].append((x, ROW * (len(rows) - 1), None if index else line, part))
        x = width if len(words) > 1 else x + size
    return rows


def _swatches(items: Sequence[Item], left: float, top: float) -> list[str]:
    parts = []
    for x, offset, line, words in items:
        y = top + offset + 10
        if line is not None:
            parts.append(
                svg.element(
                    "line",
                    x1=left + x,
                    x2=left + x + 18,
                    y1=y - 4,
                    y2=y - 4,
                    stroke=_color(line),
                    stroke_width=3,
                    **_dash(line),
                )
            )
        parts.append(svg.text(left + x + 26, y, words, size=11.5))
    return parts


def _color(line: Line) -> str:
    return svg.COLORS[line.color % len(svg.COLORS)]


def _dash(line: Line) -> dict[str, str]:
    dash = DASHES[line.color // len(svg.COLORS) % len(DASHES)]
    return {"stroke_dasharray": dash} if dash else {}
