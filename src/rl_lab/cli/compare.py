"""`rl-lab compare`: groups of runs against each other, and what makes that doubtful."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.arguments import RUNS, Json, RunsDir
from rl_lab.cli.printing import cell, say, say_json, table, warn
from rl_lab.core.counts import read_count
from rl_lab.core.errors import UserError

if TYPE_CHECKING:
    from rl_lab.analysis.compare import Comparison, Table
    from rl_lab.analysis.document import Grid
    from rl_lab.display.metric_style import Display

WIDTH = 100  # columns of a terminal that every line fits
LONGEST_NAME = 24  # of a method; longer ones have letters
PICTURES = (".svg", ".html", ".png")

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN...", help="runs: @last, ids, folders, or 'CartPole-*'"),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="KEY=VALUE",
        help="only such runs, as in `list`: algorithm=ppo, 'reward>400', tag=paper",
    ),
]
Group = Annotated[
    str,
    typer.Option(
        metavar="KEYS",
        help="what makes a group: environment,algorithm or any config keys; else all but the seed",
    ),
]
Metrics = Annotated[str, typer.Option(metavar="NAMES", help="reward, loss or metrics; main first")]
At = Annotated[str, typer.Option(metavar="STEPS", help="compare at these environment steps too")]
Scale = Annotated[
    list[str] | None,
    typer.Option("--scale", metavar="TASK=LOW:HIGH", help="which results count as 0 and as 1"),
]


def compare(
    runs: Runs = None,
    filters: Filters = None,
    group: Group = "",
    metrics: Metrics = "reward",
    at: At = "",
    scale: Scale = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", "--html", metavar="FILE", help="draw curves and profiles: .svg, .html or .png"
        ),
    ] = None,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Compare groups of runs: intervals, who is better, and what makes that doubtful."""
    from rl_lab.display.metric_style import load_display

    if plot is not None and plot.suffix not in PICTURES:
        raise UserError(f"--plot {plot}: name a file that ends in .svg, .html or .png")
    display = load_display()
    found = compare_groups(runs, filters, group, metrics, at, scale, runs_dir, display)
    if plot is not None:
        _draw(found, plot, display)
    if as_json:
        say_json(found.to_tree())
        return 0
    _print(found, display)
    if plot is not None:
        say(f"\nplot: {plot}")
    for line in found.warnings:
        for method, letter in _names(found).items():
            line = line.replace(f" {method}:", f" {letter}:")
        warn(_wrapped(f"warning: {line}"))
    return 0


def compare_groups(
    runs: Sequence[str] | None,
    filters: Sequence[str] | None,
    group: str,
    metrics: str,
    at: str,
    scales: Sequence[str] | None,
    runs_dir: Path,
    display: "Display",
) -> "Comparison":
    """Read the runs that the options of `compare` and `export` select, and compare them."""
    from rl_lab.analysis.compare import compare
    from rl_lab.analysis.groups import select_runs
    from rl_lab.analysis.query import parse_filter

    if not runs and not group and not filters:
        raise UserError(
            "name runs (ids, folders, 'CartPole-*'), choose them with --filter, or take all of "
            "them with --group"
        )
    if not listed(metrics):
        raise UserError("--metrics needs at least one name, such as reward")
    conditions = [parse_filter(word) for word in filters or []]
    return compare(
        select_runs(runs or [], runs_dir, conditions, warn=lambda line: warn(f"warning: {line}")),
        keys=listed(group),
        metrics=listed(metrics),
        at=[_step(text) for text in listed(at)],
        scales=dict(map(_scale, scales or [])),
        display=display,
    )


def listed(text: str) -> list[str]:
    """`a,b` as a list."""
    return [each.strip() for each in text.split(",") if each.strip()]


def _step(text: str) -> int:
    step = read_count(text)
    if step is None or step < 0:
        raise UserError(f"--at {text}: must be a number of environment steps, such as 50k or 5e4")
    return step


def _scale(text: str) -> tuple[str, tuple[float, float]]:
    """`CartPole-v1=0:500`."""
    task, _, ends = text.rpartition("=")
    low, _, high = ends.partition(":")
    try:
        scale = float(low), float(high)
    except ValueError:
        scale = (0.0, 0.0)
    if not task or scale[0] == scale[1]:
        raise UserError(f"--scale {text}: write TASK=LOW:HIGH, such as CartPole-v1=0:500")
    return task, scale


def _draw(found: "Comparison", plot: Path, display: "Display") -> None:
    from rl_lab.analysis.document import Drawing, to_html
    from rl_lab.analysis.export import blocks_of, save
    from rl_lab.analysis.plots import comparison_chart, described, to_png
    from rl_lab.display.chart import to_svg

    chart = comparison_chart(found)
    if plot.suffix == ".png":
        save(to_png(chart), plot)
    elif plot.suffix == ".svg":
        save(to_svg(chart), plot)
    else:
        blocks = [Drawing("curves", "curves.svg", chart), *blocks_of(found, display)]
        save(to_html(described(found), blocks), plot)


def _print(found: "Comparison", display: "Display") -> None:
    """The tables; where they would be too wide, methods have letters that are explained first."""
    from rl_lab.analysis.export import aggregate_grid, pair_grid, pairs_note, scale_note

    names = _names(found)
    if names:
        say("methods")
        for method, letter in names.items():
            say(_wrapped(f"{letter}  {method}"))
        say()
    for each in found.tables:
        say(f"{each.metric}\n{_metric_table(each, display, names)}\n")
    if found.aggregates:
        say("over all tasks" if names else "methods")
        say(f"{_wrapped(scale_note(found))}\n{_grid(aggregate_grid(found), names)}\n")
    if found.pairs:
        note = _wrapped(pairs_note(found))
        say(f"pairs\n{note}\n{_grid(pair_grid(found), names)}")


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent="   ", break_on_hyphens=False, break_long_words=False
    )


def _names(found: "Comparison") -> dict[str, str]:
    """A letter for each method if their own names would make lines too wide, otherwise none."""
    methods: dict[str, None] = {}
    for each in found.tables:
        methods |= dict.fromkeys(one.method for one in each.cells)
        methods |= dict.fromkeys(group.method for group in each.missing)
    if max(map(len, methods), default=0) <= LONGEST_NAME:
        return {}
    letters = [
        *ascii_uppercase,
        *(f"{one}{two}" for one in ascii_uppercase for two in range(1, 100)),
    ]
    return dict(zip(methods, letters, strict=False))


def _metric_table(each: "Table", display: "Display", names: Mapping[str, str]) -> str:
    from rl_lab.analysis.export import with_interval
    from rl_lab.records.formatting import format_duration

    def duration(seconds: float | None) -> str:
        return "-" if seconds is None else format_duration(seconds)

    style = display[each.metric]
    rows = []
    for one in each.cells:
        method = names.get(one.method, one.method)
        row: dict[str, Any] = {"task": one.task, "method": method, "runs": len(one.runs)}
        row["final"] = with_interval(one.final, one.final_interval, style)
        row["IQM"] = with_interval(one.iqm, one.iqm_interval, style)
        row |= {"best": _text(one.best, style), "test": _text(one.test, style)}
        row |= {f"at {reached.label}": _text(reached.value, style) for reached in one.at}
        row["wall time"] = duration(one.wall_time)
        rows.append(row)
    for group in each.missing:  # a dash for every number of the metric
        method = names.get(group.method, group.method)
        row = {"task": group.task, "method": method, "runs": len(group.runs)}
        row |= {"test": _text(group.test, style), "wall time": duration(group.wall_time)}
        rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns = [name for name in columns if any(row.get(name) not in (None, "-") for row in rows)]
    return fitted(rows, columns, keys=2)


def fitted(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], keys: int) -> str:
    """A table of at most `WIDTH` columns; what does not fit follows below, its keys repeated."""
    parts: list[list[str]] = [list(columns[:keys])]
    for name in columns[keys:]:
        wider = table(rows, [*parts[-1], name])
        if len(parts[-1]) > keys and max(map(len, wider.splitlines())) > WIDTH:
            parts.append(list(columns[:keys]))
        parts[-1].append(name)
    return "\n\n".join(table(rows, part) for part in parts)


def _text(value: float | None, style: Any) -> str:
    return "-" if value is None else style.text(value)


def _grid(grid: "Grid", names: Mapping[str, str]) -> str:
    rows: list[Mapping[str, Any]] = [
        dict(zip(grid.columns, (names.get(str(each)) or cell(each) for each in row), strict=True))
        for row in grid.rows
    ]
    return fitted(rows, grid.columns, keys=2 if "second" in grid.columns else 1)
