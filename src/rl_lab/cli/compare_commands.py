"""Commands that compare runs and tell of them: their words and options, nothing heavy."""

from pathlib import Path
from typing import Annotated

import typer

from rl_lab.cli.arguments import RUNS, SETTINGS, Json, RunsDir

app = typer.Typer(rich_markup_mode=None, context_settings=SETTINGS)

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


@app.command(context_settings=SETTINGS)
def compare(
    runs: Runs = None,
    filters: Filters = None,
    group: Group = "",
    metrics: Metrics = "reward",
    at: At = "",
    scale: Scale = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="draw curves and profiles: .svg, .html or .png"),
    ] = None,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Compare groups of runs: intervals, who is better, and what makes that doubtful."""
    from rl_lab.cli import compare

    request = compare.Request(
        runs=runs or [],
        runs_dir=runs_dir,
        group=group,
        metrics=metrics,
        at=at,
        scales=scale or [],
        filters=filters or [],
    )
    return compare.run(request, plot=plot, as_json=as_json)


@app.command(context_settings=SETTINGS)
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
    from rl_lab.cli import compare, export

    request = compare.Request(
        runs=runs or [],
        runs_dir=runs_dir,
        group=group,
        metrics=metrics,
        at=at,
        scales=scale or [],
        filters=filters or [],
    )
    return export.run(request, format=format, output=output)


@app.command(context_settings=SETTINGS)
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
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Write report.md and a self-contained report.html of a run, or of several together."""
    from rl_lab.cli import report

    return report.run(
        runs or ([] if group or filters else ["@last"]),
        filters=filters or [],
        group=group,
        output=output,
        runs_dir=runs_dir,
        as_json=as_json,
    )
