"""What a benchmark found: rows for a table, JSON for a program, with matplotlib a picture."""

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_lab.benchmarking.measure import Spread, ratio, spread
from rl_lab.core.errors import UserError
from rl_lab.records.commit import write_atomically
from rl_lab.records.metrics import plain
from rl_lab.records.provenance import provenance

FORMAT = 1
RESULTS = Path("benchmarks") / "results"  # written to by default, where it exists


@dataclass(frozen=True, kw_only=True)
class Report:
    """The rows of one benchmark. A row has `name`, and `value` and `ratio` if it was measured."""

    benchmark: str
    title: str
    unit: str  # of `value`
    ratio_means: str  # what `ratio` compares with what
    rows: list[dict[str, Any]]
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()
    load: float = field(default_factory=lambda: os.getloadavg()[0])  # others at work meanwhile

    def to_tree(self) -> dict[str, Any]:
        """Everything, with the machine, as JSON."""
        keys = ("benchmark", "title", "unit", "ratio_means", "settings", "notes")
        tree = {"format": FORMAT, **{key: getattr(self, key) for key in keys}}
        facts = provenance([])
        machine = {key: facts[key] for key in ("time", "packages", "python", "platform", "cpu")}
        machine |= {"cpu_count": facts["cpu_count"], "load_at_the_end": self.load}
        return plain(tree | {"machine": machine, "rows": self.rows})


def measured(
    name: str, values: Sequence[float], compared: tuple[Sequence[float], Sequence[float]]
) -> dict[str, Any]:
    """A row: the spread of the values, and of the ratio of the first series to the second.

    There is no ratio where there is nothing to compare with.
    """
    row: dict[str, Any] = {"name": name, "value": _numbers(spread(values))}
    if compared[0]:
        row["ratio"] = _numbers(ratio(*compared))
    return row | {"samples": list(values)}


def absent(name: str, reason: str) -> dict[str, Any]:
    """A row of something that could not be measured, and why."""
    return {"name": name, "detail": reason}


def _numbers(found: Spread) -> dict[str, float]:
    return {"low": found.low, "median": found.median, "high": found.high}


def destination(benchmark: str, output: Path | None) -> Path | None:
    """Where the JSON goes: as given, or the results folder where there is one, or nowhere."""
    if output is None:
        return RESULTS / f"{benchmark}.json" if RESULTS.is_dir() else None
    if output.suffix != ".json":
        raise UserError(f"--output {output}: name a file that ends in .json")
    if output.is_dir():
        raise UserError(f"--output {output} is a folder: name a file in it")
    return output


def save(
    report: Report, file: Path, draw: Callable[[Report], bytes | None] | None = None
) -> list[Path]:
    """The JSON, and a PNG of the same name where matplotlib is installed; what was written."""
    text = json.dumps(report.to_tree(), indent=2, ensure_ascii=False) + "\n"
    picture = (draw or bars)(report)
    try:
        write_atomically(file, text.encode())
        if picture is None:
            return [file]
        write_atomically(file.with_suffix(".png"), picture)
    except OSError as error:
        raise UserError(f"--output {file}: {error.strerror}") from error
    return [file, file.with_suffix(".png")]


def bars(report: Report) -> bytes | None:
    """One bar per measured row with its quartiles, as a PNG; None without matplotlib."""
    if find_spec("matplotlib") is None:  # it is optional
        return None
    from matplotlib.figure import Figure

    rows = [row for row in reversed(report.rows) if "value" in row]
    middle = [row["value"]["median"] for row in rows]
    below = [row["value"]["median"] - row["value"]["low"] for row in rows]
    above = [row["value"]["high"] - row["value"]["median"] for row in rows]
    figure = Figure(figsize=(8, 1.2 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([row["name"] for row in rows], middle, xerr=[below, above], capsize=3)
    axes.set_xlabel(f"{report.unit} (median, quartiles)")
    axes.set_title(report.title)
    return png(figure)


def png(figure: object) -> bytes:
    """A figure of matplotlib as the bytes of a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()
