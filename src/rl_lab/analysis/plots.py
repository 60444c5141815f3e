"""Curves and profiles as PNG, drawn by matplotlib (extra `plots`) without a screen."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from textwrap import fill
from typing import Any

import numpy as np

from rl_lab.analysis.compare import Cell, Comparison, Table, normalised
from rl_lab.analysis.curves import Curve, Steps, align, middle_and_band
from rl_lab.analysis.statistics import performance_profile, profile_band
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError

WIDTH, HEIGHT = 5.0, 3.6  # inches of one panel
COLUMNS = 3
THRESHOLDS = 101  # of a profile
PROFILE_SAMPLES = 500
PARENTS = 2  # of forks, named in a legend
LEGEND = 40  # characters in a line of it: it stays within its panel


def draw_comparison(comparison: Comparison) -> bytes:
    """A panel for each metric and task, and one with performance profiles if they can be compared.

    Profiles of methods that have no task in common would compare the tasks.
    """
    methods = list(dict.fromkeys(cell.method for t in comparison.tables for cell in t.cells))
    colours = {method: f"C{index % 10}" for index, method in enumerate(methods)}
    panels = [
        (table, task)
        for table in comparison.tables
        for task in dict.fromkeys(cell.task for cell in table.cells)
    ]
    scores = normalised(comparison.main, comparison.scales)
    tasks = [task for of_method in scores.values() for task in of_method]
    has_profiles = len(scores) == 1 or len(set(tasks)) < len(tasks)
    figure, axes = _panels(len(panels) + has_profiles)
    for place, (table, task) in zip(axes, panels, strict=False):
        _draw_task(place, table, task, colours)
    if has_profiles:
        _draw_profiles(axes[len(panels)], scores, colours)
    return _png(figure)


def draw_curves(curves: Mapping[str, Mapping[str, Curve]]) -> bytes:
    """A panel for each title: the metrics of one run."""
    figure, axes = _panels(len(curves))
    for place, (title, lines) in zip(axes, curves.items(), strict=False):
        for name, curve in lines.items():
            place.plot(
                curve.steps, curve.values, label=name, linewidth=1.5, marker=_marker(curve.steps)
            )
        place.set(title=title, xlabel="environment steps")
        _finish(place)
    return _png(figure)


def _draw_task(place: Any, table: Table, task: str, colours: Mapping[str, str]) -> None:
    for cell in table.cells:
        if cell.task == task:
            _draw_cell(place, cell, colours[cell.method])
    place.set(title=task, xlabel="environment steps", ylabel=table.metric)
    _finish(place)


def _draw_cell(place: Any, cell: Cell, colour: str) -> None:
    steps, rows = align(cell.curves)
    middle, band = middle_and_band(rows)
    style = {"color": colour, "linewidth": 1.5, "marker": _marker(steps)}
    place.plot(steps, middle, label=fill(legend(cell), LEGEND), **style)
    if band is not None:
        place.fill_between(steps, *band, color=colour, alpha=0.2, linewidth=0)


def legend(cell: Cell) -> str:
    """The method, how many runs, and whose children they are."""
    count = len(cell.runs)
    label = f"{cell.method} ({'1 run' if count == 1 else f'{count} runs'}"
    if cell.parents:
        more = ", …" if len(cell.parents) > PARENTS else ""
        label += f" from {', '.join(cell.parents[:PARENTS])}{more}"
    return f"{label})"


def _draw_profiles(
    place: Any, scores: Mapping[str, Mapping[str, Array]], colours: Mapping[str, str]
) -> None:
    ends = [value for tasks in scores.values() for each in tasks.values() for value in each]
    thresholds = np.linspace(min(0.0, *ends), max(1.0, *ends), THRESHOLDS)
    for method, tasks in scores.items():
        own = list(tasks.values())
        shares = performance_profile(own, thresholds)
        place.step(
            thresholds, shares, where="post", color=colours[method], label=fill(method, LEGEND)
        )
        band = profile_band(own, thresholds, samples=PROFILE_SAMPLES)
        if band is not None:
            place.fill_between(
                thresholds, *band, step="post", color=colours[method], alpha=0.2, linewidth=0
            )
    place.set(title="performance profiles", xlabel="normalised final score τ")
    place.set(ylabel="share of runs above τ", ylim=(-0.03, 1.03))
    _finish(place)


def _marker(steps: Steps) -> str:
    return "o" if len(steps) == 1 else ""  # one value is no line


def _panels(count: int) -> tuple[Any, Sequence[Any]]:
    try:
        # Not pyplot: that keeps every figure alive, and may look for a screen.
        from matplotlib.figure import Figure
    except ImportError as error:  # it is optional, and slow to import
        raise UserError("no plots without matplotlib: pip install 'rl-lab[plots]'") from error
    columns = 2 if count == 4 else min(count, COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, list(axes)


def _finish(place: Any) -> None:
    place.grid(alpha=0.3)
    place.margins(x=0.02)
    if place.get_legend_handles_labels()[1]:
        place.legend(fontsize="small")


def _png(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = BytesIO()
    # Without the version in it, the same picture is the same bytes.
    FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})
    return file.getvalue()
