"""A comparison as a table for a paper, a page or a program: latex, csv, md, json, html."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from rl_lab.analysis.compare import Cell, Comparison, Table
from rl_lab.analysis.document import (
    Block,
    Grid,
    Heading,
    Items,
    Paragraph,
    Strong,
    Text,
    to_html,
    to_markdown,
)
from rl_lab.analysis.statistics import Interval
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.display.metric_style import Display, MetricStyle
from rl_lab.records.commit import write_atomically
from rl_lab.records.metrics import plain

Format = Literal["latex", "csv", "md", "json", "html"]
TITLE = "Comparison of runs"
FEW_PAIRS = 5  # not even certain victory is then below 0.05
LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "\\": "\\textbackslash{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    # A row that begins with one of these would be read as an argument of the line end before it.
    **{sign: f"{{{sign}}}" for sign in "[*"},
    "±": "$\\pm$",
    "…": "\\ldots{}",
}


def export(comparison: Comparison, format: str, display: Display) -> str:
    """The text of a file in that format."""
    match checked_format(format):
        case "latex":
            tables = [_latex(table, display) for table in comparison.tables]
            return "\n".join([_latex_notes(comparison), *tables])
        case "csv":
            return _csv(comparison)
        case "json":
            return json.dumps(plain(comparison.to_tree()), indent=2, ensure_ascii=False) + "\n"
        case "md":
            return to_markdown(TITLE, blocks_of(comparison, display))
        case "html":
            return to_html(TITLE, blocks_of(comparison, display))


def checked_format(name: str) -> Format:
    """The format of that name."""
    for known in get_args(Format):
        if name == known:
            return known
    raise UserError(f"--format {name}: no such format{did_you_mean(name, get_args(Format))}")


def save(text: str | bytes, file: Path) -> None:
    """Write an exported file, whole or not at all."""
    data = text.encode() if isinstance(text, str) else text
    if file.is_dir():
        raise UserError(f"{file} is a folder: name a file in it")
    try:
        write_atomically(file, data)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error


def blocks_of(comparison: Comparison, display: Display) -> list[Block]:
    """Tables of the results, then of the methods and their pairs, then what is doubtful."""
    blocks: list[Block] = []
    for table in comparison.tables:
        blocks += [Heading(table.metric), Paragraph(caption(table)), result_grid(table, display)]
    if comparison.aggregates:
        note = Paragraph(scale_note(comparison))
        blocks += [Heading("Methods"), note, aggregate_grid(comparison)]
    if comparison.pairs:
        blocks += [Heading("Pairs"), Paragraph(pairs_note(comparison)), pair_grid(comparison)]
    if comparison.warnings:
        blocks += [Heading("Warnings"), Items(comparison.warnings)]
    return blocks


def pairs_note(comparison: Comparison) -> str:
    """What the numbers of the pairs are, and what they can show at best."""
    note = (
        "How likely a run of the first method ends better than one of the second; p-values of a "
        "paired sign-flip test on common seeds, by Holm's correction for the number of pairs."
    )
    fewest = min(pair.pairs for pair in comparison.pairs)
    if 2 <= fewest <= FEW_PAIRS:
        note += f" With {fewest} common seeds no p-value can be below {2 / 2**fewest:g}."
    return note


def caption(table: Table) -> str:
    """What the numbers of a result table are, and when one stands out."""
    return (
        f"{table.metric} at the end: mean over runs [95 % bootstrap interval]; the best is bold "
        "where its interval overlaps no other one of the task"
    )


def scale_note(comparison: Comparison) -> str:
    """What the scores 0 and 1 mean."""
    ends = "; ".join(
        f"{task} {low:g} to {high:g}" for task, (low, high) in comparison.scales.items()
    )
    return f"Final values as scores from 0 to 1 ({ends}), all tasks together, 95 % intervals."


def result_grid(table: Table, display: Display) -> Grid:
    """Tasks against methods, the longer list downwards; clear winners of a task stand out."""
    tasks = list(dict.fromkeys(cell.task for cell in table.cells))
    methods = list(dict.fromkeys(cell.method for cell in table.cells))
    cells = {(cell.task, cell.method): cell for cell in table.cells}
    style = display[table.metric]
    winners = [
        _winner([cell for cell in table.cells if cell.task == task], style) for task in tasks
    ]

    def text(task: str, method: str) -> Text:
        cell = cells.get((task, method))
        if cell is None:
            return "-"
        shown = with_interval(cell.final, cell.final_interval, style)
        return Strong(shown) if cell in winners else shown

    if len(tasks) >= len(methods):
        rows = [[task, *(text(task, method) for method in methods)] for task in tasks]
        return Grid(["task", *methods], rows)
    rows = [[method, *(text(task, method) for task in tasks)] for method in methods]
    return Grid(["method", *tasks], rows)


def _winner(cells: Sequence[Cell], style: MetricStyle) -> Cell | None:
    """The best cell of a task, if its interval overlaps no other; None where that is not known."""
    best = style.best([cell.final for cell in cells])
    first = next((cell for cell in cells if cell.final == best), None)
    if first is None or len(cells) < 2:
        return None
    for cell in cells:
        if cell is first:
            continue
        if first.final_interval is None or cell.final_interval is None:
            return None
        (low, high), (other_low, other_high) = first.final_interval, cell.final_interval
        if not (low > other_high or high < other_low):
            return None
    return first


def aggregate_grid(comparison: Comparison) -> Grid:
    """One row for each method."""
    rows = [
        [
            each.method,
            str(each.tasks),
            str(each.runs),
            with_interval(each.iqm, each.iqm_interval),
            with_interval(each.mean, each.mean_interval),
            with_interval(each.optimality_gap, each.optimality_gap_interval),
        ]
        for each in comparison.aggregates
    ]
    return Grid(["method", "tasks", "runs", "IQM", "mean", "optimality gap"], rows)


def pair_grid(comparison: Comparison) -> Grid:
    """One row for each two methods."""
    rows = [
        [
            each.first,
            each.second,
            with_interval(each.probability, each.interval),
            str(each.pairs),
            _p_value(each.p_value),
            _p_value(each.corrected),
        ]
        for each in comparison.pairs
    ]
    return Grid(["first", "second", "P(first better)", "common seeds", "p", "p corrected"], rows)


def with_interval(value: float, interval: Interval | None, style: MetricStyle | None = None) -> str:
    """`0.71 [0.60, 0.82]`."""
    style = style or MetricStyle(precision=2)
    if interval is None:
        return style.text(value)
    return f"{style.text(value)} [{style.text(interval[0])}, {style.text(interval[1])}]"


def _p_value(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _latex(table: Table, display: Display) -> str:
    """A table with the rules of booktabs, and a label to refer to."""
    grid = result_grid(table, display)
    rows = [[f"\\textbf{{{escaped(name)}}}" for name in grid.columns]]
    rows += [[_latex_cell(cell) for cell in row] for row in grid.rows]
    lines = [" & ".join(row) + " \\\\" for row in rows]
    return "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{escaped(caption(table))}. {escaped(_counted(table))}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(grid.columns) - 1)}}}",
            "\\toprule",
            lines[0],
            "\\midrule",
            *lines[1:],
            "\\bottomrule",
            "\\end{tabular}",
            f"\\label{{tab:{table.metric.replace('/', '-').replace('_', '-')}}}",
            "\\end{table}",
            "",
        ]
    )


def _counted(table: Table) -> str:
    counts = sorted({len(cell.runs) for cell in table.cells})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    unfinished = sum(len(cell.unfinished) for cell in table.cells)
    rest = f" {unfinished} {'is' if unfinished == 1 else 'are'} not finished." if unfinished else ""
    return f"{span} run{'' if counts[-1] == 1 else 's'} each.{rest}"


def _latex_notes(comparison: Comparison) -> str:
    """Comments above the tables: the package they need, and what is doubtful about them."""
    lines = ["needs \\usepackage{booktabs}", *(f"WARNING: {each}" for each in comparison.warnings)]
    return "\n".join(f"% {' '.join(line.split())}" for line in lines)


def _latex_cell(cell: Text) -> str:
    if isinstance(cell, Strong):
        return f"\\textbf{{{escaped(cell.text)}}}"
    return escaped(cell)


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(LATEX.get(sign, sign) for sign in text)


def _csv(comparison: Comparison) -> str:
    """A line for each group and metric, plain numbers."""
    rows = [_csv_row(table, cell) for table in comparison.tables for cell in table.cells]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _no_formula(value: object) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe."""
    is_formula = isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@"))
    return f"'{value}" if is_formula else value


def _csv_row(table: Table, cell: Cell) -> Mapping[str, Any]:
    row: dict[str, Any] = {
        "metric": table.metric,
        "task": cell.task,
        "method": cell.method,
        "runs": len(cell.runs),
        "finished": len(cell.runs) - len(cell.unfinished),
        "seeds": _joined(cell.seeds),
        "final": cell.final,
        **_ends("final", cell.final_interval),
        "iqm": cell.iqm,
        **_ends("iqm", cell.iqm_interval),
        "best": cell.best,
        "test": cell.test,
        "wall_time": cell.wall_time,
        "ids": _joined(cell.runs),
    }
    return row | {f"at_{each.label}": each.value for each in cell.at}


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _joined(values: Sequence[Any]) -> str:
    return " ".join(map(str, values))
