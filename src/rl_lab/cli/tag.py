"""`rl-lab tag`: say something about runs, to find them again and to protect them from cleanup."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rl_lab.cli.printing import say, say_json
from rl_lab.core.errors import UserError
from rl_lab.records import labels
from rl_lab.records.index import Index, row_of
from rl_lab.records.run_directory import RunDirectory, find_run


def run(
    words: Sequence[str],
    *,
    removed: Sequence[str],
    note: str | None,
    runs_dir: Path,
    as_json: bool,
) -> int:
    """Add `+NAME`s, remove tags, set the notes; print the labels that each run now has."""
    added = [word[1:] for word in words if word.startswith("+")]
    references = [word for word in words if not word.startswith("+")]
    if not references:
        raise UserError("which run? For example: rl-lab tag @last +paper")
    # Everything is looked at before anything is changed.
    for name in added:
        labels.check_tag(name)
    runs = [_find(reference, runs_dir) for reference in references]
    results = []
    for each in runs:
        now = labels.read_labels(each)
        if added:
            now = labels.add_tags(each, added)
        if removed:
            now = labels.remove_tags(each, removed)
        if note is not None:
            now = labels.set_notes(each, note)
        if added or removed or note is not None:
            Index(runs_dir).upsert(row_of(each, runs_dir))
        results.append((each.id, now))
    if as_json:
        say_json([{"id": id, **asdict(now)} for id, now in results])
        return 0
    for id, now in results:
        say("  ".join([id, " ".join(now.tags) or "no tags", now.notes]).rstrip())
    return 0


def _find(reference: str, runs_dir: Path) -> RunDirectory:
    try:
        return find_run(reference, runs_dir)[0]
    except UserError as error:
        raise UserError(f"{error}; to add a tag write +{reference}") from error
