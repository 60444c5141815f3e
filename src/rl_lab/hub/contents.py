"""What a published policy consists of: names, sizes and checksums, checked before use.

`rl-lab.json` lists every file with its size and sha256. Checksums find damage, not malice: what
keeps a policy from running code is that only these kinds of files are ever read (`FILES`), none of
which can hold code, and that its configuration may use registered names only.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.records.commit import write_atomically
from rl_lab.records.files import open_to_read, read_bounded

LIST, CARD = "rl-lab.json", "README.md"
FORMAT = 1
MAX_LIST = 100_000  # bytes of the list
MAX_TOTAL = 8_000_000_000  # bytes of everything that is downloaded
BLOCK = 1 << 20

_CHECKPOINT = r"checkpoints/step_\d{12,15}/(?:manifest\.json|state\.json|state\.safetensors)"
FILES = re.compile(
    rf"config\.yaml|summary\.json|provenance\.json|results\.json|metrics\.jsonl|{_CHECKPOINT}"
)
SHOWN = re.compile(r"curves\.(?:svg|png)|replay\.(?:mp4|gif)")  # by the card; never downloaded
# Files that hold code, or data in formats that run code when they are opened.
CODE = re.compile(
    r".*\.(?:pkl|pickle|pt|pth|bin|ckpt|joblib|dill|npy|npz|zip|py|pyc|pyd|so|sh|h5|msgpack)", re.I
)


@dataclass(frozen=True)
class Entry:
    """What the list says of a file."""

    size: int
    sha256: str


def write_list(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the list of all files of a finished folder, but the card: people edit that."""
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    files = {name: asdict(entry_of(folder / name)) for name in names if name not in (CARD, LIST)}
    text = json.dumps({"format": FORMAT, **facts, "files": files}, indent=1)
    write_atomically(folder / LIST, f"{text}\n".encode())


def read_list(data: bytes, where: str) -> dict[str, Entry]:
    """The files that a policy needs; `UserError` if the list names anything that none has."""
    try:
        found = json.loads(data)
        version = int(found["format"])
        entries = {
            str(name): Entry(int(each["size"]), str(each["sha256"]))
            for name, each in found["files"].items()
        }
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(f"{where}: {LIST} is damaged: {type(error).__name__}") from error
    if version > FORMAT:
        raise UserError(f"{where} was published by a newer rl-lab: upgrade rl-lab to load it")
    check_names(entries, where)
    needed = {name: entry for name, entry in entries.items() if FILES.fullmatch(name)}
    check_complete(needed, where)
    if any(entry.size < 0 for entry in needed.values()):
        raise UserError(f"{where}: {LIST} is damaged: a size below 0")
    if (total := sum(entry.size for entry in needed.values())) > MAX_TOTAL:
        raise UserError(f"{where} has {total:,} bytes, more than {MAX_TOTAL:,}: not downloaded")
    return needed


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse a list with names that no published policy has."""
    for name in names:
        if not (FILES.fullmatch(name) or SHOWN.fullmatch(name)):
            raise UserError(f"{where}: {LIST} lists {name[:80]!r}, which no policy has: not loaded")


def check_no_code(names: Iterable[str], where: str) -> None:
    """Refuse a repository with files that could hold code, though none would be read."""
    for name in names:
        if CODE.fullmatch(name):
            raise UserError(
                f"{where} has {name[:80]!r}, which may hold code; rl-lab publishes no such file "
                "and loads nothing beside it"
            )


def check_complete(names: Iterable[str], where: str) -> None:
    """Exactly one checkpoint, with its configuration."""
    names = set(names)
    folders = {name.rpartition("/")[0] for name in names if name.startswith("checkpoints/")}
    wanted = {
        f"{folder}/{name}"
        for folder in folders
        for name in ("manifest.json", "state.json", "state.safetensors")
    }
    if missing := sorted({"config.yaml", *wanted} - names):
        raise UserError(f"{where}: {LIST} does not list {missing[0]}: it is incomplete")
    if len(folders) != 1:
        raise UserError(f"{where} must have exactly one checkpoint, it has {len(folders)}")


def entry_of(path: Path) -> Entry:
    """Size and sha256 of a file."""
    digest, size = hashlib.sha256(), 0
    with open_to_read(path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    return Entry(size, digest.hexdigest())


def verify(folder: Path, where: str) -> None:
    """Check the sums of a folder that was downloaded; `UserError` names the first wrong file."""
    for name, entry in read_list(read_bounded(folder / LIST, MAX_LIST), where).items():
        check_file(folder / name, entry, f"{where}: {name}")


def check_file(path: Path, entry: Entry, what: str) -> None:
    """Check one file against the list."""
    try:
        found = entry_of(path)
    except OSError as error:
        raise UserError(f"{what} cannot be read: {error.strerror}") from error
    if found.size != entry.size:
        raise UserError(f"{what} has {found.size:,} bytes, {LIST} says {entry.size:,}")
    if found.sha256 != entry.sha256:
        raise UserError(f"{what} does not fit its checksum in {LIST}")
