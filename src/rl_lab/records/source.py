"""The code that a run was made with, as hashes, so that it can tell when that has changed."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.records.files import open_to_read, read_object
from rl_lab.records.run_directory import RunDirectory

PACKAGE = "rl_lab"
# What others build on; a note of another kind is damaged.
_KINDS = {"command": list, "git": dict, "source": dict, "packages": dict, "gpus": list}


def source_hashes(plugins: Iterable[str] = ()) -> dict[str, str | None]:
    """sha256 of this package's sources, and of each plug-in file; None for one that is gone."""
    found: dict[str, str | None] = {PACKAGE: package_hash(Path(__file__).parents[1])}
    for plugin in plugins:
        found[plugin] = _file_hash(Path(plugin))
    return found


def package_hash(folder: Path) -> str:
    """sha256 over the names and the bytes of every Python file below a folder."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _file_hash(path: Path) -> str | None:
    try:
        with open_to_read(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # it is gone, or its name is none
        return None


def code_change(directory: RunDirectory) -> str | None:
    """One line if the code of today is not what a run was made with; None if it is, or unknown."""
    notes = read_provenance(directory)
    recorded = notes.get("source")
    if not isinstance(recorded, dict):  # a run of an earlier version
        return None
    today = source_hashes(name for name in recorded if name != PACKAGE)
    changed = [name for name in recorded if recorded[name] != today[name]]
    if not changed:
        return None
    git = notes.get("git")
    where = ""
    if isinstance(git, dict) and git.get("sha"):
        dirty = " with uncommitted changes" if git.get("dirty") else ""
        where = f" (at git {str(git['sha'])[:10]}{dirty})"
    return f"the code of {', '.join(changed)} has changed since this run was made{where}"


def read_provenance(directory: RunDirectory) -> dict[str, Any]:
    """What a run noted about its origin; without what is missing or damaged."""
    try:
        notes = read_object(directory.provenance_file)
    except (FileNotFoundError, UserError):
        return {}
    found = {
        name: each for name, each in notes.items() if isinstance(each, _KINDS.get(name, object))
    }
    if not _is_lineage(found.get("parent")):
        found.pop("parent", None)
    return found


def _is_lineage(parent: object) -> bool:
    if not isinstance(parent, dict) or not isinstance(parent.get("id"), str):
        return False
    return type(parent.get("step")) is int
