"""A benchmark of memories as a table, Markdown, CSV, pictures and one self-contained page."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rl_lab.analysis.curves import align, middle_and_band
from rl_lab.analysis.document import (
    Block,
    Drawing,
    Grid,
    Heading,
    Items,
    Media,
    Paragraph,
    Strong,
    Text,
    to_html,
    to_markdown,
)
from rl_lab.benchmarking.networks.results import Results, Row, curve_of, rows
from rl_lab.benchmarking.networks.timing import LATENCY, STEPS, UPDATE
from rl_lab.display import svg
from rl_lab.display.chart import Chart, Line, Panel, to_svg
from rl_lab.records.commit import write_atomically

COLUMNS = (
    "memory", "return (last)", "95 % interval", "best", "steps to threshold", "steps/s",
    "update ms", "latency ms", "MFLOPs", "state bytes", "peak RAM GB", "parameters",
)  # fmt: skip
BAR, LENGTH = 24.0, 300.0
SPEEDS: tuple[tuple[str, str, Callable[[Row], float | None]], ...] = (
    ("steps", "environment steps per second of training", lambda row: row.timing.get(STEPS)),
    ("update", "milliseconds of one update", lambda row: row.timing.get(UPDATE)),
    ("latency", "milliseconds to act in all environments", lambda row: row.timing.get(LATENCY)),
    ("state", "bytes of state per environment", lambda row: row.state_bytes or None),
)


def write_page(results: Results, folder: Path) -> list[Path]:
    """report.md, report.html, report.csv and the pictures; what was written."""
    charts = {task: chart for task in results.tasks if (chart := curves(results, task))}
    speeds = speed_pictures(results)
    files = {f"curves_{task}.svg": to_svg(chart) for task, chart in charts.items()} | speeds
    blocks = document(results, charts, speeds)
    files["report.md"] = to_markdown(results.title, blocks)
    files["report.html"] = to_html(results.title, blocks)
    files["report.csv"] = to_csv(results)
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in files]


def document(
    results: Results, charts: Mapping[str, Chart], speeds: Mapping[str, str]
) -> list[Block]:
    """The whole report."""
    found = rows(results)
    blocks: list[Block] = [Paragraph(_introduction(results))]
    for task, facts in results.tasks.items():
        own = [row for row in found if row.task == task]
        if not own:
            continue
        threshold = facts.get("threshold")
        goal = "" if threshold is None else f", threshold {threshold:g}"
        blocks += [Heading(f"{task}: {facts['steps']:,} steps{goal}"), table(own, results)]
        if facts.get("published"):
            blocks += [_published(own, facts)]
        if task in charts:
            blocks.append(Drawing("learning curves", f"curves_{task}.svg", charts[task]))
    if speeds:
        blocks.append(Heading("Speed and size"))
        blocks += [Media(file, file, picture.encode()) for file, picture in speeds.items()]
    if results.skipped:
        lines = [f"{task}: {reason}" for task, reason in results.skipped.items()]
        blocks += [Heading("Left out"), Items(lines)]
    if missing := results.missing():
        blocks += [Heading("Still to be run"), Items(missing)]
    return [*blocks, Heading("How it was measured"), Items(_method(results))]


def table(own: Sequence[Row], results: Results) -> Grid:
    """One task: a row for each memory, the best of a column stands out."""
    top = {
        "return (last)": _best([row.last for row in own], max),
        "steps/s": _best([row.timing.get(STEPS) for row in own], max),
        "update ms": _best([row.timing.get(UPDATE) for row in own], min),
        "latency ms": _best([row.timing.get(LATENCY) for row in own], min),
    }
    cells = [cells_of(row, len(results.seeds)) for row in own]
    columns = filled(cells)
    lines = []
    for row, texts in zip(own, cells, strict=True):
        values = {"return (last)": row.last, "steps/s": row.timing.get(STEPS)}
        values |= {"update ms": row.timing.get(UPDATE), "latency ms": row.timing.get(LATENCY)}
        strong = {key for key, value in values.items() if value is not None and value == top[key]}
        lines.append([Strong(texts[key]) if key in strong else texts[key] for key in columns])
    return Grid(columns, lines)


def filled(cells: Sequence[Mapping[str, str]]) -> list[str]:
    """The columns in which something stands."""
    return [name for name in COLUMNS if any(each[name] for each in cells)]


def cells_of(row: Row, seeds: int) -> dict[str, str]:
    """A row as text."""
    name = row.title if row.seeds == seeds else f"{row.title} ({row.seeds} of {seeds} seeds)"
    reached = ""
    if row.steps_to_threshold is not None:
        reached = f"{row.steps_to_threshold:,.0f} ({row.reached} of {row.seeds})"
    return {
        "memory": name,
        "return (last)": _number(row.last),
        "95 % interval": _span(row.last_interval),
        "best": _number(row.best),
        "steps to threshold": reached,
        "steps/s": _number(row.timing.get(STEPS)),
        "update ms": _number(row.timing.get(UPDATE)),
        "latency ms": _number(row.timing.get(LATENCY)),
        "MFLOPs": _number(row.decision_mflops),
        "state bytes": f"{row.state_bytes:,}",
        "peak RAM GB": _number(row.ram_gb),
        "parameters": f"{row.parameters:,}",
    }


def to_csv(results: Results) -> str:
    """Every row and every number, for programs."""
    file = io.StringIO()
    names = ["task", "memory", "seeds", "last", "last_low", "last_high", "best", "best_low",
             "best_high", "reached", "steps_to_threshold", "parameters", "state_bytes", "ram_gb",
             "decision_mflops", STEPS, UPDATE, LATENCY]  # fmt: skip
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for row in rows(results):
        line = {key: value for key, value in vars(row).items() if key in names}
        line |= row.timing
        for key, span in (("last", row.last_interval), ("best", row.best_interval)):
            line[f"{key}_low"], line[f"{key}_high"] = span or (None, None)
        writer.writerow(line)
    return file.getvalue()


def speed_pictures(results: Results) -> dict[str, str]:
    """File -> SVG: bars of each measure of speed and size."""
    found = {}
    for name, title, take in SPEEDS:
        by_memory: dict[str, list[float]] = {}
        for row in rows(results):
            if (value := take(row)) is not None:
                by_memory.setdefault(row.title, []).append(value)
        values = {memory: float(np.median(each)) for memory, each in by_memory.items()}
        if values:
            found[f"{name}.svg"] = bars(f"{title} (median over tasks)", values)
    return found


def curves(results: Results, task: str) -> Chart | None:
    """The evaluations of a task: the middle over seeds, and its interval."""
    lines = []
    cells = [each for each in results.cells if each["task"] == task]
    for color, cell in enumerate(cells):
        own = [
            curve_of(each)
            for each in results.records
            if (each.task, each.memory) == (task, cell["memory"])
        ]
        if not own:
            continue
        steps, values = align(own)
        if len(steps):
            middle, band = middle_and_band(values)
            lines.append(Line(cell["title"], steps.astype(float), middle, color, band))
    if not lines:
        return None
    panel = Panel(task, "environment steps", "return of evaluations", lines)
    note = "Line: interquartile mean over seeds. Band: its 95 % bootstrap interval."
    return Chart(f"Learning curves on {task}", [panel], note)


def bars(title: str, values: dict[str, float]) -> str:
    """One bar for each memory."""
    left = 28 + max(svg.width_of(name) for name in values)
    largest = max(values.values()) or 1.0
    parts = [svg.text(16, 30, title, size=15, bold=True)]
    for index, (name, value) in enumerate(values.items()):
        y, length = 48.0 + BAR * index, LENGTH * value / largest
        color = svg.COLORS[index % len(svg.COLORS)]
        parts.append(svg.text(left - 8, y + 13, name, anchor="end"))
        parts.append(
            svg.element("rect", x=left, y=y + 2, width=length, height=BAR - 8, rx=2, fill=color)
        )
        parts.append(svg.text(left + length + 6, y + 13, _number(value), fill=svg.GREY))
    width = max(left + LENGTH + 90, 32 + svg.width_of(title, 15, bold=True))
    return svg.document(width, 60 + BAR * len(values), title, parts)


def _introduction(results: Results) -> str:
    done, missing = len(results.records), len(results.missing())
    sizes = [cell["parameters"] for cell in results.cells]
    between = f"{min(sizes):,} to {max(sizes):,} parameters" if sizes else "no networks"
    return (
        f"PPO with each memory on {len(results.tasks)} tasks, networks of {between}, seeds "
        f"{', '.join(map(str, results.seeds))}; {done} runs, {missing} still to be run."
    )


def _published(own: Sequence[Row], facts: dict[str, object]) -> Grid:
    """Beside what another benchmark published, each with its number of steps."""
    published, steps = facts["published"], facts.get("published_steps")
    assert isinstance(published, dict)
    there = f"published at {steps:,} steps" if isinstance(steps, int) else "published"
    columns = ["memory", f"here at {facts['steps']:,} steps", there]
    lines: list[list[Text]] = [
        [row.title, _number(row.last), _number(published.get(row.memory))] for row in own
    ]
    return Grid(columns, lines)


def _method(results: Results) -> list[str]:
    commits = sorted({each.commit for each in results.records if each.commit})
    lines = [
        "return (last): the final policy, tested on seeds that no evaluation has seen; mean over "
        "seeds, with a 95 % bootstrap interval; best: the policy that its evaluations chose",
        "steps to threshold: the first evaluation at or above it, median over the seeds with one",
        "steps/s, update, latency: measured alone, in turns with the other memories of the task; "
        "latency is one step of all environments",
        "MFLOPs: floating-point operations of one decision of one environment; none are counted in "
        "numpy, in which small networks without a memory act",
        "peak RAM: the largest resident size of a training process, the libraries included",
    ]
    if commits:
        lines.append(f"code: {', '.join(commits)}")
    if results.machine:
        lines.append(f"machine: {results.machine['cpu']}, {results.machine['cpu_count']} cores")
    return lines


def _best(values: Sequence[float | None], choose: Callable[[list[float]], float]) -> float | None:
    there = [each for each in values if each is not None]
    return choose(there) if len(there) > 1 else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if value else "0"


def _span(span: tuple[float, float] | None) -> str:
    return "" if span is None else f"{_number(span[0])} to {_number(span[1])}"
