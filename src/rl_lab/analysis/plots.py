"""What a run or a comparison looks like, as charts; as PNG by matplotlib (extra `plots`)."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from textwrap import fill
from typing import Any

import numpy as np

from rl_lab.analysis.compare import Cell, Comparison, Table, normalized
from rl_lab.analysis.curves import Curve, align, middle_and_band, thinned
from rl_lab.analysis.statistics import performance_profile, profile_band
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.display import svg
from rl_lab.display.chart import FEW, Chart, Line, Panel
from rl_lab.records.metrics import MAIN_METRICS

WIDTH, HEIGHT = 5.0, 3.6  # inches of one panel of a PNG
THRESHOLDS = 101  # of a profile
PROFILE_SAMPLES = 500
PARENTS = 2  # of forks, named in a legend
NAMED = 48  # characters of methods or tasks that are named in a title, not counted
LEGEND = 40  # characters in a line of a PNG's legend: it stays within its panel
STEPS = "environment steps"
PANELS = {"return": MAIN_METRICS["reward"], "loss": MAIN_METRICS["loss"]}


def main_chart(title: str, curves: Mapping[str, Curve]) -> Chart | None:
    """The main curves of a run; None if it has none of them yet."""
    panels = {
        name: {each: curves[each] for each in names if each in curves}
        for name, names in PANELS.items()
    }
    panels = {name: lines for name, lines in panels.items() if lines}
    return run_chart(title, panels) if panels else None


def run_chart(title: str, curves: Mapping[str, Mapping[str, Curve]]) -> Chart:
    """A panel for each title: the metrics of one run."""
    panels = []
    for name, lines in curves.items():
        few = {label: thinned(curve) for label, curve in lines.items()}
        drawn = [
            Line(label, curve.steps.astype(float), curve.values, color)
            for color, (label, curve) in enumerate(few.items())
        ]
        only = next(iter(lines)) if len(lines) == 1 else ""
        panels.append(Panel(name, STEPS, only, drawn))
    return Chart(title, panels)


def comparison_chart(comparison: Comparison) -> Chart:
    """A panel for each metric and task, and one with performance profiles if they can be compared.

    Profiles are over tasks: of one task they say nothing that its curves do not, and those of
    methods that have no task in common would compare the tasks.
    """
    methods = list(dict.fromkeys(cell.method for t in comparison.tables for cell in t.cells))
    colors = {method: index for index, method in enumerate(methods)}
    panels = [
        Panel(task, STEPS, table.metric, _lines_of_task(table, task, colors))
        for table in comparison.tables
        for task in dict.fromkeys(cell.task for cell in table.cells)
    ]
    note = "Line: interquartile mean over seeds. Band: its 95 % bootstrap interval."
    if any(line.thin for panel in panels for line in panel.lines):
        note += " Thin: single seeds where not all of them have values."
    if len(comparison.main.cells) == sum(len(cell.runs) for cell in comparison.main.cells):
        note = ""  # every line is one run
    scores = normalized(comparison.main, comparison.scales)
    tasks = [task for of_method in scores.values() for task in of_method]
    if len(set(tasks)) > 1 and (len(scores) == 1 or len(set(tasks)) < len(tasks)):
        panels.append(_profiles(scores, colors))
    return Chart(described(comparison), panels, note)


def described(comparison: Comparison) -> str:
    """What is compared: metrics, methods, tasks and how many runs."""
    cells = [cell for table in comparison.tables for cell in table.cells]
    metrics = list(dict.fromkeys(table.metric for table in comparison.tables))
    methods = list(dict.fromkeys(cell.method for cell in cells))
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    runs = len({run for cell in cells for run in cell.runs})
    return (
        f"{_listed(metrics, 'metrics')} of {_listed(methods, 'methods')} on "
        f"{_listed(tasks, 'tasks')} ({'1 run' if runs == 1 else f'{runs} runs'})"
    )


def _listed(names: Sequence[str], kind: str) -> str:
    words = ", ".join(names)
    return words if len(names) == 1 or len(words) <= NAMED else f"{len(names)} {kind}"


def _lines_of_task(table: Table, task: str, colors: Mapping[str, int]) -> list[Line]:
    return [
        line
        for cell in table.cells
        if cell.task == task
        for line in _lines(cell, colors[cell.method])
    ]


def _lines(cell: Cell, color: int) -> list[Line]:
    """The middle of all seeds where all have values; single seeds go on to their own ends."""
    steps, rows = align(cell.curves)
    lines = []
    if len(steps):
        middle, band = middle_and_band(rows)
        lines.append(Line(legend(cell), steps.astype(float), middle, color, band))
    for curve in cell.curves if len(cell.curves) > 1 else ():
        for part in _outside(curve, steps):
            name = "" if lines else legend(cell)
            few = thinned(part)
            lines.append(Line(name, few.steps.astype(float), few.values, color, thin=True))
    return lines


def _outside(curve: Curve, common: Array) -> list[Curve]:
    """What a curve has before and after the steps that all seeds have."""
    if not len(common):
        return [curve]
    before, after = curve.steps <= common[0], curve.steps >= common[-1]
    parts = [Curve(curve.steps[part], curve.values[part]) for part in (before, after)]
    return [part for part in parts if len(part.steps) > 1]


def legend(cell: Cell) -> str:
    """The method, how many runs, and whose children they are."""
    count = len(cell.runs)
    label = f"{cell.method} ({'1 run' if count == 1 else f'{count} runs'}"
    if cell.parents:
        more = ", …" if len(cell.parents) > PARENTS else ""
        label += f" from {', '.join(cell.parents[:PARENTS])}{more}"
    return f"{label})"


def _profiles(scores: Mapping[str, Mapping[str, Array]], colors: Mapping[str, int]) -> Panel:
    ends = [value for tasks in scores.values() for each in tasks.values() for value in each]
    thresholds = np.linspace(min(0.0, *ends), max(1.0, *ends), THRESHOLDS)
    lines = []
    for method, tasks in scores.items():
        own = list(tasks.values())
        shares = performance_profile(own, thresholds)
        band = profile_band(own, thresholds, samples=PROFILE_SAMPLES)
        x, y = _stairs(thresholds, shares)
        bands = band and (_stairs(thresholds, band[0])[1], _stairs(thresholds, band[1])[1])
        lines.append(Line(method, x, y, colors[method], bands))
    title, x_label = "performance profiles", "normalized final score τ"
    return Panel(title, x_label, "share of runs above τ", lines, y_range=(-0.03, 1.03))


def _stairs(x: Array, y: Array) -> tuple[Array, Array]:
    """Points of steps: a value holds until the next x."""
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]


# --------------------------------------------------------------------------- PNG


def to_png(chart: Chart) -> bytes:
    """The same figure, by matplotlib."""
    try:
        # Not pyplot: that keeps every figure alive, and may look for a screen.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:  # it is optional, and slow to import
        raise UserError(
            "no PNG without matplotlib: pip install 'rl-lab[plots]', or name a file that ends in "
            ".svg"
        ) from error
    columns = min(len(chart.panels), chart.columns)
    rows = -(-len(chart.panels) // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    figure.suptitle(fill(_plain(chart.title), 60 * columns), fontsize="medium")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, place in zip(chart.panels, axes, strict=False):
        _draw(panel, place)
    for spare in axes[len(chart.panels) :]:
        spare.set_axis_off()
    file = BytesIO()
    # Without the version in it, the same picture is the same bytes.
    FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})
    return file.getvalue()


def _draw(panel: Panel, place: Any) -> None:
    for line in panel.lines:
        color = svg.COLORS[line.color % len(svg.COLORS)]
        style = {"linewidth": 0.8, "alpha": 0.55} if line.thin else {"linewidth": 1.5}
        marker = "o" if len(line.x) <= FEW else ""
        label = fill(_plain(line.label), LEGEND)
        place.plot(
            line.x, line.y, color=color, marker=marker, markersize=3, label=label or None, **style
        )
        if line.band is not None:
            place.fill_between(line.x, *line.band, color=color, alpha=0.2, linewidth=0)
    place.set(title=_plain(panel.title), xlabel=panel.x_label, ylabel=_plain(panel.y_label))
    if panel.y_range is not None:
        place.set_ylim(panel.y_range)
    place.grid(alpha=0.3)
    place.margins(x=0.02)
    if place.get_legend_handles_labels()[1]:
        place.legend(fontsize="small")


def _plain(words: str) -> str:
    """Words that matplotlib does not take for mathematics."""
    return words.replace("$", r"\$")
