"""Several runs side by side as data: curves with bands, numbers with intervals, who is better."""

from collections.abc import Sequence
from typing import Any

from rl_lab.analysis.compare import Cell, compare
from rl_lab.analysis.curves import Curve, align, middle_and_band, thinned
from rl_lab.analysis.groups import Run, differences, load_run
from rl_lab.core.errors import UserError
from rl_lab.display.metric_style import Display
from rl_lab.records.metrics import plain
from rl_lab.ui.facts import styles
from rl_lab.ui.library import Library

MOST_RUNS = 64
POINTS = 400  # of the curve of a single run


def comparison(
    library: Library, names: Sequence[str], metric: str, keys: Sequence[str], display: Display
) -> dict[str, Any]:
    """What `rl-lab compare` finds, with the curves that it is found from."""
    if not names:
        raise UserError("choose runs in the table, then press c")
    if len(names) > MOST_RUNS:
        raise UserError(f"{len(names)} runs are too many for a page: at most {MOST_RUNS}")
    runs = [load_run(library.run(name)) for name in dict.fromkeys(names)]
    found = compare(runs, keys=keys, metrics=[metric], display=display)
    tree = found.to_tree()
    main = found.main
    return {
        "metric": styles(display, [main.metric])[0],
        "groups": [
            {**row, "runs": _named(cell.runs, runs), "curve": _band(cell.curves)}
            for row, cell in zip(tree["metrics"][0]["groups"], main.cells, strict=True)
        ],
        "missing": tree["metrics"][0]["missing"],
        "curves": [each for cell in main.cells for each in _single(cell)],
        "aggregates": tree["aggregates"],
        "pairs": tree["pairs"],
        "warnings": found.warnings,
        "differences": _differences(runs),
        "runs": _named([run.id for run in runs], runs),
    }


def _named(ids: Sequence[str], runs: Sequence[Run]) -> list[dict[str, str]]:
    folders = {run.id: run.directory.path.name for run in runs}
    return [{"id": each, "path": folders[each]} for each in ids]


def _band(curves: Sequence[Curve]) -> dict[str, Any]:
    """The middle of the group's runs where all of them have a value, and its 95 % band."""
    steps, rows = align(curves)
    if not len(steps):
        return {"steps": [], "values": [], "low": None, "high": None}
    middle, band = middle_and_band(rows)
    low, high = (None, None) if band is None else (each.tolist() for each in band)
    return {"steps": steps.tolist(), "values": middle.tolist(), "low": low, "high": high}


def _single(cell: Cell) -> list[dict[str, Any]]:
    """The curve of each run of a group."""
    label = f"{cell.task} {cell.method}"
    return [
        {"group": label, "run": run, "seed": seed, **points(thinned(curve, POINTS))}
        for run, seed, curve in zip(cell.runs, cell.seeds, cell.curves, strict=True)
    ]


def points(curve: Curve) -> dict[str, Any]:
    """A curve as lists; seven digits are more than a screen has."""
    values = [float(f"{value:.7g}") for value in curve.values.tolist()]
    return {"steps": curve.steps.tolist(), "values": values}


def _differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    found = differences(runs)
    return [{"path": path, "values": plain(values)} for path, values in found.items()]
