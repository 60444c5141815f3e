"""`rl-lab compare`: groups of runs against each other, and what makes that doubtful."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_lab.cli.printing import cell, say, say_json, table, warn
from rl_lab.core.errors import UserError

if TYPE_CHECKING:
    from rl_lab.analysis.compare import Comparison, Table
    from rl_lab.analysis.document import Grid
    from rl_lab.records.display import Display

PICTURES = (".png", ".html")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the words of the command line ask for."""

    runs: Sequence[str]
    runs_dir: Path
    group: str = ""
    metrics: str = "reward"
    at: str = ""
    scales: Sequence[str] = ()
    filters: Sequence[str] = ()

    def comparison(self, display: "Display") -> "Comparison":
        """Read the runs and compare them."""
        from rl_lab.analysis.compare import compare
        from rl_lab.analysis.groups import select_runs
        from rl_lab.analysis.query import parse_filter

        if not self.runs and not self.group and not self.filters:
            raise UserError(
                "name runs (ids, folders, 'CartPole-*'), choose them with --filter, or take all of "
                "them with --group"
            )
        metrics = listed(self.metrics)
        if not metrics:
            raise UserError("--metrics needs at least one name, such as reward")
        filters = [parse_filter(word) for word in self.filters]
        return compare(
            select_runs(
                self.runs, self.runs_dir, filters, warn=lambda line: warn(f"warning: {line}")
            ),
            keys=listed(self.group),
            metrics=metrics,
            at=[_step(text) for text in listed(self.at)],
            scales=dict(map(_scale, self.scales)),
            display=display,
        )


def run(request: Request, *, plot: Path | None, as_json: bool) -> int:
    """Print the tables, and draw them if a file is named."""
    from rl_lab.records.display import load_display

    if plot is not None and plot.suffix not in PICTURES:
        raise UserError(f"--plot {plot}: name a file that ends in .png or .html")
    display = load_display()
    found = request.comparison(display)
    if plot is not None:
        _draw(found, plot, display)
    if as_json:
        say_json(found.to_tree())
        return 0
    _print(found, display)
    if plot is not None:
        say(f"\nplot: {plot}")
    for line in found.warnings:
        warn(f"warning: {line}")
    return 0


def listed(text: str) -> list[str]:
    """`a,b` as a list."""
    return [each.strip() for each in text.split(",") if each.strip()]


def _step(text: str) -> int:
    try:
        step = float(text)
    except ValueError:
        step = -1.0
    if step < 0 or step != step // 1:
        raise UserError(f"--at {text}: must be a number of environment steps, such as 5e4")
    return int(step)


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
    from rl_lab.analysis.document import Media, to_html
    from rl_lab.analysis.export import TITLE, blocks_of, save
    from rl_lab.analysis.plots import draw_comparison

    picture = draw_comparison(found)
    if plot.suffix == ".png":
        save(picture, plot)
        return
    blocks = [Media("learning curves and performance profiles", "curves.png", picture)]
    save(to_html(TITLE, [*blocks, *blocks_of(found, display)]), plot)


def _print(found: "Comparison", display: "Display") -> None:
    from rl_lab.analysis.export import aggregate_grid, pair_grid, pairs_note, scale_note

    for each in found.tables:
        say(f"{each.metric}\n{_metric_table(each, display)}\n")
    say(f"methods\n{scale_note(found)}\n{_grid(aggregate_grid(found))}")
    if found.pairs:
        say(f"\npairs\n{pairs_note(found)}\n{_grid(pair_grid(found))}")


def _metric_table(each: "Table", display: "Display") -> str:
    from rl_lab.analysis.export import with_interval
    from rl_lab.records.formatting import format_duration

    style = display[each.metric]
    rows = []
    for one in each.cells:
        row: dict[str, Any] = {"task": one.task, "method": one.method, "runs": len(one.runs)}
        row["final"] = with_interval(one.final, one.final_interval, style)
        row["IQM"] = with_interval(one.iqm, one.iqm_interval, style)
        row |= {"best": _text(one.best, style), "test": _text(one.test, style)}
        row |= {f"at {reached.label}": _text(reached.value, style) for reached in one.at}
        row["wall time"] = "-" if one.wall_time is None else format_duration(one.wall_time)
        rows.append(row)
    for group in each.missing:  # a dash for every number
        rows.append({"task": group.task, "method": group.method, "runs": len(group.runs)})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns = [name for name in columns if any(row.get(name) not in (None, "-") for row in rows)]
    return table(rows, columns)


def _text(value: float | None, style: Any) -> str:
    return "-" if value is None else style.text(value)


def _grid(grid: "Grid") -> str:
    rows: list[Mapping[str, Any]] = [
        dict(zip(grid.columns, map(cell, row), strict=True)) for row in grid.rows
    ]
    return table(rows, grid.columns)
