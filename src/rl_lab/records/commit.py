"""The only file that writes state: it appears on disk complete or not at all, and stays there.

A checkpoint is a folder of payload files and a `manifest.json` with the size and CRC of each. It is
written beside its destination under a `.tmp-` name, fsynced, and renamed. Names that begin with
`.tmp-` (unfinished) or `.del-` (half deleted) are litter of a crash; `sweep` removes them. What
several checkpoints share lies outside of them, in files that their manifests name as `chunks`.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from zlib import crc32

from rl_lab.core.errors import UserError
from rl_lab.records.faults import fault
from rl_lab.records.files import MAX_BYTES, open_to_read, read_bounded

if TYPE_CHECKING:
    from rl_lab.core.state import Tree

FORMAT = 1
MANIFEST, TENSORS, SKELETON = "manifest.json", "state.safetensors", "state.json"
TEMPORARY, DELETED = ".tmp-", ".del-"

Payload = Mapping[str, bytes]  # file name -> content
Entry = Mapping[str, int]  # what a manifest says of a file: size and crc32
RESERVED = {"format", "files", "chunks", "sha256"}  # manifest fields that only this file may set
BLOCK = 1 << 20  # a file that is only checked is never in memory as a whole


# What a damaged disk or folder answers; no permission or no memory is not a damage.
DAMAGE = {errno.ENOENT, errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
DAMAGE |= {errno.EINVAL, errno.ENXIO, errno.EFBIG}  # a pipe, a device, a manifest of a gigabyte


class CorruptCheckpoint(Exception):  # noqa: N818  (reads better in `except CorruptCheckpoint`)
    """A checkpoint is not what was once written; the message names the file."""


# -- whole checkpoints ---------------------------------------------------------------------------


def commit_tree(destination: Path, tree: "Tree", *, manifest: Mapping[str, Any]) -> None:
    """Write a state tree as a new checkpoint folder; once this returns it survives a power loss."""
    commit_files(destination, encode_tree(tree), manifest=manifest)


def commit_files(
    destination: Path,
    payload: Payload,
    *,
    manifest: Mapping[str, Any],
    chunks: Mapping[str, Entry] | None = None,
) -> None:
    """Write a folder of files with its manifest; on an error nothing of it is left behind.

    `chunks` are the files outside of the folder that it needs, durable already.
    """
    if taken := RESERVED & set(manifest):
        raise ValueError(f"manifest fields {sorted(taken)} are set by the commit itself")
    if destination.exists():
        raise FileExistsError(f"{destination} exists: a commit never overwrites")
    files = {name: entry_of(data) for name, data in payload.items()}
    shared = {"chunks": chunks} if chunks else {}
    described = encode_manifest({"format": FORMAT, **manifest, "files": files, **shared})

    parent = destination.parent
    make_directory(parent)
    draft = parent / f"{TEMPORARY}{destination.name}-{uuid4().hex}"
    try:
        fault("ckpt.before_mkdir")
        draft.mkdir()
        fault("ckpt.after_mkdir")
        for name, data in {**payload, MANIFEST: described}.items():
            _write_new(draft / name, data, point="ckpt")
        sync_names(draft)
        fault("ckpt.after_folder_fsync")
        draft.rename(destination)
        fault("ckpt.after_rename")
        sync_names(parent)
        fault("ckpt.after_parent_fsync")
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def read_tree(path: Path) -> tuple["Tree", dict[str, Any]]:
    """The state tree and the manifest of a checkpoint, every byte verified first."""
    manifest = read_manifest(path)
    content = {name: read_verified(path / name, entry) for name, entry in manifest["files"].items()}
    for name in (TENSORS, SKELETON):
        if name not in content:
            raise CorruptCheckpoint(f"{path / MANIFEST}: does not list {name}")
    from safetensors import SafetensorError  # here: `rl-lab list` needs no torch
    from safetensors.torch import load

    from rl_lab.core.state import join

    try:
        tensors = load(content[TENSORS])
        return join(tensors, json.loads(content[SKELETON])), manifest
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path}: files that do not fit together: {error!r}") from error


def verify(path: Path) -> dict[str, Any]:
    """Check size and CRC of every file of a checkpoint; the manifest if all is well."""
    manifest = read_manifest(path)
    for name, entry in manifest["files"].items():
        verify_file(path / name, entry)
    return manifest


def encode_tree(tree: "Tree", *, inline: bool = True) -> Payload:
    """A state tree as the two payload files of a checkpoint; `inline` as for `split`."""
    from safetensors.torch import save  # here: `rl-lab list` needs no torch

    from rl_lab.core.state import split

    tensors, skeleton = split(tree, inline=inline)
    return {TENSORS: save(tensors), SKELETON: json.dumps(skeleton).encode()}


# -- the manifest --------------------------------------------------------------------------------


def encode_manifest(fields: Mapping[str, Any]) -> bytes:
    """Readable JSON that ends with a sha256 of the rest."""
    digest = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
    return (json.dumps({**fields, "sha256": digest}, indent=1) + "\n").encode()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder, itself verified. The other files are not read."""
    file = path / MANIFEST
    raw = _read(file)
    try:
        fields = json.loads(raw)
        fields.pop("sha256")
        # Encoding is deterministic, so comparing bytes also finds damage JSON would not notice.
        intact = encode_manifest(fields) == raw
        # The envelope (format, files, sha256) never changes: a newer format is readable this far.
        version = int(fields["format"])
        listed = [*fields["files"].items(), *fields.get("chunks", {}).items()]
        inside = all(Path(name).name == name and name not in ("", "..") for name, _ in listed)
        typed = all({int(entry["size"]), int(entry["crc32"])} for _, entry in listed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{file}: not a manifest: {error!r}") from error
    if not (intact and inside and typed):
        why = "does not match its own sha256" if not intact else "names a file outside its folder"
        raise CorruptCheckpoint(f"{file}: {why}")
    # Only after the sha, so that a flipped bit is never taken for a version.
    if version > FORMAT:
        raise UserError(
            f"{path} was written by a newer rl-lab (checkpoint format {version}, this one reads "
            f"up to {FORMAT}): upgrade rl-lab to load it"
        )
    return dict(fields)


# -- single files, folders, links ----------------------------------------------------------------


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a single file: a reader sees the old content or the new, also after a power loss."""
    make_directory(path.parent)
    write_whole(path, data, point="file")
    sync_names(path.parent)
    fault("file.after_parent_fsync")


def write_whole(path: Path, data: bytes, *, point: str) -> None:
    """The same, but its name may be lost in a power loss until `sync_names`: once for many."""
    draft = path.parent / f"{TEMPORARY}{path.name}-{uuid4().hex}"
    try:
        _write_new(draft, data, point=point)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    fault(f"{point}.after_rename")


def sync_names(directory: Path) -> None:
    """Make the names in a folder durable; a rename alone may be forgotten in a power loss."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> bool:
    """Create a folder and its parents durably; False if it existed before."""
    if path.is_dir():
        return False
    make_directory(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    sync_names(path.parent)
    return True


def move(source: Path, destination: Path) -> None:
    """Rename within one folder, durably."""
    source.rename(destination)
    fault("ckpt.after_move")
    sync_names(destination.parent)
    fault("ckpt.after_move_fsync")


def remove(path: Path) -> None:
    """Delete a folder so that no reader ever sees half of it under its own name."""
    doomed = path.parent / f"{DELETED}{path.name}-{uuid4().hex}"
    path.rename(doomed)
    fault("ckpt.after_doom")
    shutil.rmtree(doomed, ignore_errors=True)  # what is left has a name that `sweep` knows
    fault("ckpt.after_delete")


def point_link(link: Path, target: str) -> None:
    """Make `link` a relative symlink to its sibling `target`; it is missing at no moment."""
    draft = link.parent / f"{TEMPORARY}{link.name}-{uuid4().hex}"
    try:
        draft.symlink_to(target)
        fault("ckpt.after_symlink")
        draft.replace(link)
        fault("ckpt.after_link")
    finally:
        draft.unlink(missing_ok=True)


def sweep(directory: Path) -> None:
    """Remove what a crash left behind. Only for the process that holds the run's lock."""
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        if not entry.name.startswith((TEMPORARY, DELETED)):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.unlink()


# -- bytes ---------------------------------------------------------------------------------------


def _write_new(path: Path, data: bytes, *, point: str) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        fault(f"{point}.after_write")
        os.fsync(file.fileno())
    fault(f"{point}.after_fsync")


def entry_of(data: bytes) -> Entry:
    """What a manifest says of a file with this content."""
    return {"size": len(data), "crc32": crc32(data)}


def read_verified(path: Path, entry: Entry) -> bytes:
    """The content of a file that is what its manifest says."""
    data = _read(path, size=entry["size"])
    if crc32(data) != entry["crc32"]:
        raise CorruptCheckpoint(f"{path}: content does not match its checksum")
    return data


def verify_file(path: Path, entry: Entry) -> None:
    """The same without keeping the content."""
    with _damage_named(path):
        _check_size(path, entry["size"])
        checksum = 0
        with open_to_read(path) as file:
            while block := file.read(BLOCK):
                checksum = crc32(block, checksum)
    if checksum != entry["crc32"]:
        raise CorruptCheckpoint(f"{path}: content does not match its checksum")


def _read(path: Path, *, size: int | None = None) -> bytes:
    with _damage_named(path):
        _check_size(path, size)
        return read_bounded(path, MAX_BYTES if size is None else size)


def _check_size(path: Path, size: int | None) -> None:
    found = path.stat().st_size
    if size is not None and found != size:  # before a byte is allocated
        raise CorruptCheckpoint(f"{path}: {found} bytes, the manifest says {size}")


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in DAMAGE:
            raise
        raise CorruptCheckpoint(f"{path}: {error.strerror}") from error
