"""`rl-lab index`: the index can always be made again from the run folders."""

from pathlib import Path

from rl_lab.cli.printing import say, say_json
from rl_lab.core.errors import UserError


def rebuild(runs_dir: Path, *, as_json: bool) -> int:
    """Read every run folder and write the index anew."""
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
