"""`rl-lab list`: the runs in the index, newest first."""

import os
from pathlib import Path
from typing import Any

from rl_lab.cli.printing import say, say_json, table

COLUMNS = ["id", "name", "status", "env_steps", "best", "algorithm", "environment", "seed"]


def run(*, limit: int, runs_dir: Path, as_json: bool) -> int:
    """Print a table of runs."""
    from rl_lab.records.index import Index

    rows = Index(runs_dir).rows()[::-1]
    shown = rows[:limit] if limit else rows
    for row in shown:
        row["status"] = true_status(runs_dir / row["path"], row["status"])
    if as_json:
        say_json(shown)
    elif not rows:
        say(f"no runs in {runs_dir}: start one with `rl-lab train CartPole-v1:ppo`")
    else:
        say(table([{**row, "seed": _text(row["seed"])} for row in shown], COLUMNS))
        if len(shown) < len(rows):
            say(f"… and {len(rows) - len(shown)} older ones (--limit 0 shows all)")
    return 0


def true_status(run: Path, status: str | None) -> str | None:
    """A run whose process is gone is not running, whatever its summary last said."""
    if status != "running":
        return status
    try:
        os.kill(int((run / "run.lock").read_text()), 0)
    except PermissionError:  # it lives, as another user
        return status
    except (OSError, ValueError):
        return "killed"
    return status


def _text(seed: Any) -> str:
    return "" if seed is None else str(seed)
