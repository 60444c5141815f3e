"""Commands that find, label and clean up runs: their words and options, nothing heavy."""

from typing import Annotated

import typer

from rl_lab.cli.arguments import RUNS, SETTINGS, Json, RunsDir

app = typer.Typer(rich_markup_mode=None, context_settings=SETTINGS)


@app.command(name="list", context_settings=SETTINGS)
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
        typer.Option("--ascending/--descending", help="which end first; if not said: the best"),
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
    from rl_lab.cli import list_runs

    return list_runs.run(
        filters=filters or [],
        sort=sort,
        ascending=ascending,
        limit=limit,
        grouped=grouped,
        runs_dir=runs_dir,
        as_json=as_json,
        as_csv=as_csv,
    )


@app.command(context_settings=SETTINGS)
def tag(
    words: Annotated[
        list[str], typer.Argument(metavar="RUN|+NAME...", help="runs, and tags to add to them")
    ],
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="NAME", help="a tag to take away")
    ] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="replace the notes")] = None,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Tag runs and write notes: tag @last +paper --note "the one in the figure"."""
    from rl_lab.cli import tag

    return tag.run(words, removed=remove or [], note=note, runs_dir=runs_dir, as_json=as_json)


@app.command(context_settings=SETTINGS)
def cleanup(
    keep_best: Annotated[
        int, typer.Option(min=0, metavar="N", help="the best runs of each environment are kept")
    ] = 10,
    keep_recent: Annotated[
        int, typer.Option(min=0, metavar="DAYS", help="runs active in the last days are kept")
    ] = 30,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would go")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Free disk space: remove checkpoints, videos and events of old runs, not of the best ones."""
    from rl_lab.cli import cleanup

    return cleanup.run(
        keep_best=keep_best,
        keep_recent=keep_recent,
        dry_run=dry_run,
        yes=yes,
        runs_dir=runs_dir,
        as_json=as_json,
    )
