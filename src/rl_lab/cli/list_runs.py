"""`rl-lab list`: the runs in the index, newest first, or those that are asked for."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from rl_lab.analysis import query
from rl_lab.cli.arguments import RUNS, Json, RunsDir
from rl_lab.cli.printing import cell, say, say_json, table
from rl_lab.core.errors import UserError

COLUMNS = ["id", "name", "status", "env_steps", "best", "algorithm", "environment", "seed"]
GROUP_COLUMNS = ["name", "seeds", "finished", "env_steps", "best", "last_return", "experiment"]
SOMETIMES = ["tags", "group", "parent", "alerts"]  # shown when a run has one


def list_runs(
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="KEY=VALUE",
            help="only such runs; also != < <= > >=, tag=NAME, * in text; all of several must hold",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="by reward, loss, best or another column or metric"),
    ] = None,
    ascending: Annotated[
        bool | None,
        typer.Option("--ascending/--descending", help="which end first; by default the best"),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="how many runs; 0: all")] = 20,
    grouped: Annotated[
        bool, typer.Option("--group", help="one line per experiment, over its seeds")
    ] = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print CSV, with all metrics")] = False,
) -> int:
    """List the runs, newest first."""
    from rl_lab.records import index

    if as_json and as_csv:
        raise UserError("--json and --csv: choose one of them")
    conditions = [query.parse_filter(word) for word in filters or []]
    # Metrics only if they are asked for: of ten thousand runs they take as long as the rest.
    keys = [*(each.key for each in conditions), *([sort] if sort else [])]
    quick = not (as_json or as_csv) and set(keys) <= set(index.COLUMNS)
    found = index.Index(runs_dir).rows(quick=quick)[::-1]
    rows: Sequence[query.Row] = query.select(found, conditions)
    if grouped:
        rows = query.group(rows)
    if sort is not None:
        # The best first, unless the user chose the end.
        up = query.lower_is_better(sort) if ascending is None else ascending
        rows = query.sort(rows, sort, ascending=up)
    shown = rows[:limit] if limit else rows
    if as_json:
        say_json(shown)
    elif as_csv:
        say(csv_of(shown).rstrip("\n"))
    elif not found:
        say(f"no runs in {runs_dir}: start one with `rl-lab train CartPole-v1:ppo`")
    elif not rows:
        say(f"none of the {len(found)} runs in {runs_dir} fulfils {' and '.join(filters or [])}")
    else:
        say(group_table(shown, [sort] if sort else []) if grouped else run_table(shown, keys))
        if len(shown) < len(rows):
            say(f"… and {len(rows) - len(shown)} more (--limit 0 shows all)")
    return 0


def run_table(rows: Sequence[query.Row], asked: Sequence[str]) -> str:
    """The usual columns, what was asked for, and what only some runs have."""
    sometimes = [name for name in SOMETIMES if any(row.get(name) for row in rows)]
    hidden = [name for name in asked if name not in {*query.ALIASES["tag"], "tag"}]
    columns = list(dict.fromkeys([*COLUMNS, *hidden, *sometimes]))
    return table([{name: _shown(row, name) for name in columns} for row in rows], columns)


def group_table(rows: Sequence[query.Row], asked: Sequence[str]) -> str:
    """One line per experiment; results as mean ± standard deviation over its runs."""
    columns = list(dict.fromkeys([*GROUP_COLUMNS, *asked]))
    lines = [{name: _shown(row, name) for name in columns} for row in rows]
    for line, row in zip(lines, rows, strict=True):
        line |= {name: _with_spread(row, name) for name in ("best", "last_return")}
    return table(lines, columns)


def csv_of(rows: Sequence[query.Row]) -> str:
    """All columns and all metrics, one line per row."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: query.Row) -> dict[str, Any]:
    plain = {name: value for name, value in row.items() if name != "metrics"}
    lists = {name: " ".join(value) for name, value in plain.items() if isinstance(value, list)}
    metrics: Mapping[str, Any] = row.get("metrics") or {}
    return {**plain, **lists, **metrics}


def _shown(row: query.Row, name: str) -> Any:
    value = query.value_of(row, name)
    if isinstance(value, list):
        return " ".join(value)
    if name == "seed":  # a name, not a quantity: no separators in it
        return "" if value is None else str(value)
    return round(value) if name == "env_steps" and value is not None else value


def _with_spread(row: query.Row, name: str) -> str:
    spread = row[f"{name}_std"]
    return cell(row[name]) if spread is None else f"{cell(row[name])} ± {cell(spread)}"
