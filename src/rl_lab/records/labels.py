"""Tags and notes of a run: what people say about it. They live in its folder, as labels.json.

The tags of the configuration are the first ones; labels.json replaces them once something is
changed. A run may be labeled while it trains, and by two people at once.
"""

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rl_lab.core.errors import UserError
from rl_lab.records.commit import write_atomically
from rl_lab.records.config_file import at, read_config
from rl_lab.records.files import read_object
from rl_lab.records.run_directory import RunDirectory

FILE = "labels.json"
_TAG = re.compile(r"\w[\w.:/=-]{0,63}")


@dataclass(frozen=True)
class Labels:
    """What people say about a run."""

    tags: tuple[str, ...] = ()
    notes: str = ""


def read_labels(run: RunDirectory, config: object = None) -> Labels:
    """The labels of a run; `config` is its tree, if it was read already."""
    file = run.path / FILE
    try:
        found = read_object(file)
    except FileNotFoundError:
        tags = at(read_config(run.config_file) if config is None else config, "experiment", "tags")
        return Labels(tuple(map(str, tags)) if isinstance(tags, list) else ())
    except UserError as error:
        raise UserError(f"{error}; correct or delete it") from error
    tags, notes = at(found, "tags"), at(found, "notes")
    if not isinstance(tags, list) or not isinstance(notes, str):
        raise UserError(
            f"{file} must have a list of tags and a text of notes; correct or delete it"
        )
    return Labels(tuple(map(str, tags)), notes)


def check_tag(name: str) -> None:
    """Refuse what could not be typed again, or would look like two tags."""
    if not _TAG.fullmatch(name):
        raise UserError(
            f"'{name}' is not a tag: use letters, digits and . _ - : / =, at most 64 of them"
        )


def add_tags(run: RunDirectory, names: Sequence[str]) -> Labels:
    """Give a run these tags too, in the order they came."""
    for name in names:
        check_tag(name)
    return _change(run, lambda old: replace(old, tags=tuple(dict.fromkeys([*old.tags, *names]))))


def remove_tags(run: RunDirectory, names: Sequence[str]) -> Labels:
    """Take these tags away; one that is not there is no mistake."""
    return _change(
        run, lambda old: replace(old, tags=tuple(tag for tag in old.tags if tag not in names))
    )


def set_notes(run: RunDirectory, text: str) -> Labels:
    """Replace the notes of a run; an empty text removes them."""
    return _change(run, lambda old: replace(old, notes=text))


def _change(run: RunDirectory, change: Callable[[Labels], Labels]) -> Labels:
    try:
        with _locked(run.path):
            old = read_labels(run)
            new = change(old)
            if new != old:
                text = json.dumps(asdict(new), indent=2, ensure_ascii=False)
                write_atomically(run.path / FILE, f"{text}\n".encode())
            return new
    except OSError as error:
        raise UserError(f"cannot label run {run.path}: {error.strerror}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer of labels at a time. Not run.lock: that is held as long as the run trains."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
