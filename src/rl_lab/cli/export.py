"""`rl-lab export`: a comparison as a table for a paper, a page or a program."""

from pathlib import Path
from typing import Annotated

import typer

from rl_lab.cli.arguments import RUNS, RunsDir
from rl_lab.cli.compare import At, Filters, Group, Metrics, Runs, Scale, compare_groups
from rl_lab.cli.printing import say, warn


def export(
    runs: Runs = None,
    format: Annotated[
        str, typer.Option("--format", "-f", metavar="NAME", help="latex, csv, md, json or html")
    ] = "md",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="instead of printing it")
    ] = None,
    filters: Filters = None,
    group: Group = "",
    metrics: Metrics = "reward",
    at: At = "",
    scale: Scale = None,
    runs_dir: RunsDir = RUNS,
) -> int:
    """Print a comparison as a table for a paper, a page or a program."""
    from rl_lab.analysis.export import checked_format, export, save
    from rl_lab.display.metric_style import load_display

    checked_format(format)  # before a thousand runs are read
    display = load_display()
    found = compare_groups(runs, filters, group, metrics, at, scale, runs_dir, display)
    text = export(found, format, display)
    if output is None:
        say(text.removesuffix("\n"))
    else:
        save(text, output)
    for line in found.warnings:
        warn(f"warning: {line}")
    return 0
