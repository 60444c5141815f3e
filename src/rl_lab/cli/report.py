"""`rl-lab report`: a run or a group as report.md and one self-contained report.html."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from zlib import crc32

import typer

from rl_lab.cli.arguments import RUNS, Json, RunsDir
from rl_lab.cli.browser import open_page
from rl_lab.cli.compare import Filters, Group, Runs, listed
from rl_lab.cli.printing import say, say_json, warn
from rl_lab.core.errors import UserError


def report(
    runs: Runs = None,
    filters: Filters = None,
    group: Group = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="of a group's report; one run has its own"
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="open the page in a browser")] = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Write report.md and a self-contained report.html of a run, or of several together."""
    from rl_lab.analysis.groups import select_runs
    from rl_lab.analysis.query import parse_filter
    from rl_lab.analysis.report import write_group_report, write_report

    references = runs or ([] if group or filters else ["@last"])
    conditions = [parse_filter(word) for word in filters or []]
    found = select_runs(
        references, runs_dir, conditions, warn=lambda line: warn(f"warning: {line}")
    )
    try:
        if len(found) == 1 and not group:
            if output is not None:
                raise UserError("--output is for several runs: one has its report in its folder")
            files = write_report(found[0].directory)
        else:
            folder = output or runs_dir / "reports" / _name(references, filters or [], group)
            files = write_group_report(found, folder, listed(group))
    except OSError as error:
        raise UserError(f"cannot write the report: {error.strerror}: {error.filename}") from error
    if as_json:
        say_json([str(file) for file in files])
    else:
        for file in files:
            say(str(file))
    if open_it:
        open_page(next(file for file in files if file.suffix == ".html"))
    return 0


def _name(references: Sequence[str], filters: Sequence[str], group: str) -> str:
    """A folder's name; with filters it has a number: `best<9` and `best>9` would look the same."""
    from rl_lab.records.run_directory import folder_name

    name = folder_name("-".join([*references, *filters, *listed(group)]))
    return f"{name}-{crc32(' '.join(filters).encode()):08x}" if filters else name
