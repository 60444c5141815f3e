"""`rl-lab tag`: say something about runs, to find them again and to protect them from cleanup."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, RunsDir
from rl_lab.cli.printing import say, say_json
from rl_lab.core.errors import UserError

if TYPE_CHECKING:
    from rl_lab.records.run_directory import RunDirectory


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
    from rl_lab.records import labels
    from rl_lab.records.index import Index, row_of

    added = [word[1:] for word in words if word.startswith("+")]
    references = [word for word in words if not word.startswith("+")]
    if not references:
        raise UserError("which run? For example: rl-lab tag @last +paper")
    # Everything is checked before anything is changed.
    for name in added:
        labels.check_tag(name)
    runs = [_find(reference, runs_dir) for reference in references]
    results = []
    for each in runs:
        now = labels.read_labels(each)
        if added:
            now = labels.add_tags(each, added)
        if remove:
            now = labels.remove_tags(each, remove)
        if note is not None:
            now = labels.set_notes(each, note)
        if added or remove or note is not None:
            Index(runs_dir).upsert(row_of(each, runs_dir))
        results.append((each.id, now))
    if as_json:
        say_json([{"id": id, **asdict(now)} for id, now in results])
        return 0
    for id, now in results:
        say("  ".join([id, " ".join(now.tags) or "no tags", now.notes]).rstrip())
    return 0


def _find(reference: str, runs_dir: Path) -> "RunDirectory":
    from rl_lab.records.run_directory import find_run

    try:
        return find_run(reference, runs_dir)[0]
    except UserError as error:
        raise UserError(f"{error}; to add a tag write +{reference}") from error
