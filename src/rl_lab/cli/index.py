"""`rl-lab index`: the index can always be made again from the run folders."""

import typer

from rl_lab.cli.arguments import RUNS, SETTINGS, Json, RunsDir
from rl_lab.cli.printing import say, say_json
from rl_lab.core.errors import UserError

app = typer.Typer(help="The index over all runs.", rich_markup_mode=None, context_settings=SETTINGS)


@app.callback()
def index() -> None:
    """The index over all runs."""


@app.command(context_settings=SETTINGS)
def rebuild(runs_dir: RunsDir = RUNS, as_json: Json = False) -> int:
    """Make the index again from the run folders."""
    import sqlite3

    from rl_lab.records.index import Index

    if not runs_dir.is_dir():
        raise UserError(f"there is no folder {runs_dir}: choose one with --runs-dir")
    try:
        count = Index(runs_dir).rebuild()
    except (sqlite3.Error, OSError) as error:
        raise UserError(f"cannot write {runs_dir / 'index.sqlite'}: {error}") from error
    if as_json:
        say_json({"runs": count, "path": str(runs_dir / "index.sqlite")})
    else:
        say(f"{count} runs in {runs_dir / 'index.sqlite'}")
    return 0
