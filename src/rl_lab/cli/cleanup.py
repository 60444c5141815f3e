"""`rl-lab cleanup`: what old runs take, and how to get it back."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, RunsDir
from rl_lab.cli.printing import say, say_json, table, warn
from rl_lab.core.errors import UserError

if TYPE_CHECKING:
    from rl_lab.analysis.cleanup import Verdict

COLUMNS = ["id", "name", "status", "best", "updated", "size"]


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
    from rl_lab.analysis.cleanup import execute, plan

    verdicts = plan(runs_dir, keep_best=keep_best, keep_recent=keep_recent)
    doomed = [each for each in verdicts if each.kept is None and each.size]
    kept = Counter(each.kept for each in verdicts if each.kept)
    if not as_json:
        _tell(doomed, kept, runs_dir)
    freed: dict[str, int] = {}
    if doomed and not dry_run:
        if not _agreed(yes, quiet=as_json):
            say("nothing was removed")
            return 0
        for each in doomed:
            try:
                freed[each.row["id"]] = execute(each.row, runs_dir)
            except (UserError, OSError) as error:
                warn(f"WARNING: kept {each.row['id']}: {error}")
        if not as_json:
            say(f"freed {size(sum(freed.values()))} of {len(freed)} runs")
    if as_json:
        say_json(
            {
                "runs": [{"id": each.row["id"], "size": each.size} for each in doomed],
                "size": sum(each.size for each in doomed),
                "kept": kept,
                "freed": sum(freed.values()),
                "cleaned": list(freed),
            }
        )
    return 0


def size(count: float) -> str:
    """Bytes as a reader wants them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _tell(doomed: Sequence["Verdict"], kept: Counter[str], runs_dir: Path) -> None:
    from rl_lab.analysis.cleanup import REASONS

    if doomed:
        say(table([{**each.row, "size": size(each.size)} for each in doomed], COLUMNS))
    total = size(sum(each.size for each in doomed))
    say(f"checkpoints, videos and TensorBoard events of {len(doomed)} runs in {runs_dir}: {total}")
    reasons = ", ".join(f"{kept[reason]} {reason}" for reason in REASONS if kept[reason])
    say(f"kept whole: {reasons or 'none'}")


def _agreed(yes: bool, *, quiet: bool) -> bool:
    if yes:
        return True
    if quiet or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("nothing was removed: there is no terminal to ask at, so it needs --yes")
    return typer.confirm("remove them? Such runs cannot be resumed or evaluated any more")
