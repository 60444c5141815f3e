"""The files of sealed chunks: written once, named by every checkpoint that needs them.

They lie in `checkpoints/chunks/`, outside of the checkpoints. A checkpoint's manifest names its
chunks with size and CRC, relative to that folder. A file that no manifest names is litter.
"""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_lab.records.commit import (
    CorruptCheckpoint,
    Entry,
    entry_of,
    make_directory,
    read_verified,
    sync_names,
    verify_file,
    write_whole,
)
from rl_lab.records.faults import fault

if TYPE_CHECKING:
    from rl_lab.core.chunks import Chunk, Columns
    from rl_lab.core.state import Tree

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class ChunkFile:
    """A chunk on disk. Called, it gives the rows, verified; so it is what loads a `Chunk`."""

    path: Path
    entry: Entry

    def __call__(self) -> "Columns":
        """Every column of the file."""
        from safetensors import SafetensorError  # here: `rl-lab list` needs no numpy
        from safetensors.numpy import load

        data = read_verified(self.path, self.entry)
        try:
            return load(data)
        except SafetensorError as error:
            raise CorruptCheckpoint(f"{self.path}: not a chunk: {error!r}") from error


def write_chunks(folder: Path, tree: "Tree") -> dict[str, Entry]:
    """Give every chunk in a tree a durable file in this folder; what a manifest says of them.

    Only what has none yet is written. Memory lets go of a chunk when all of them are durable. On an
    error no new file stays: a disk that is full does not become fuller with every attempt.
    """
    from rl_lab.core.state import logs

    files: dict[str, Entry] = {}
    fresh: list[tuple[Chunk, ChunkFile]] = []
    written: list[Path] = []
    try:
        for chunk in (chunk for log in logs(tree) for chunk in log.chunks):
            file = chunk.load
            if isinstance(file, ChunkFile) and file.path.parent == folder:
                _check_presence(file)
            else:
                file = _write(folder, chunk, written)
                fresh.append((chunk, file))
            files[file.path.name] = file.entry
        if fresh:
            sync_names(folder)
            fault("chunk.after_folder_fsync")
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    for chunk, file in fresh:
        chunk.stored(file.path.name, file)
    return files


def open_chunks(folder: Path, tree: "Tree", manifest: Mapping[str, Any]) -> None:
    """Check every chunk file of a checkpoint, and let the chunks in its tree read them later."""
    from rl_lab.core.state import logs

    files = {name: ChunkFile(folder / name, entry) for name, entry in named_chunks(manifest)}
    for file in files.values():
        verify_file(file.path, file.entry)
    for chunk in (chunk for log in logs(tree) for chunk in log.chunks if chunk.columns is None):
        if chunk.name not in files:
            raise CorruptCheckpoint(f"the manifest does not list the chunk '{chunk.name}'")
        chunk.load = files[chunk.name]


def named_chunks(manifest: Mapping[str, Any]) -> list[tuple[str, Entry]]:
    """The chunk files that a checkpoint needs."""
    return list(manifest.get("chunks", {}).items())


def unnamed_files(folder: Path, manifests: list[Mapping[str, Any]]) -> list[Path]:
    """The chunk files that none of these checkpoints needs."""
    if not folder.is_dir():
        return []
    needed = {name for manifest in manifests for name, _ in named_chunks(manifest)}
    return [path for path in sorted(folder.glob(f"*{SUFFIX}")) if path.name not in needed]


def delete_files(files: list[Path], on_skip: Callable[[str], object]) -> None:
    """Best effort: what cannot be deleted is litter that the next save meets again."""
    for path in files:
        try:
            path.unlink(missing_ok=True)
            fault("chunk.after_delete")
        except OSError as error:
            on_skip(f"could not delete {path}: {error}")


def _write(folder: Path, chunk: "Chunk", written: list[Path]) -> ChunkFile:
    from numpy import ascontiguousarray
    from safetensors.numpy import save

    data = save({name: ascontiguousarray(column) for name, column in chunk.read().items()})
    entry = entry_of(data)
    make_directory(folder)
    for attempt in count():
        # A file of this name with another content is damaged, or of another log: it stays.
        again = f"-{attempt}" if attempt else ""
        name = f"{chunk.first:012d}-{chunk.count}-{entry['crc32']:08x}{again}{SUFFIX}"
        path = folder / name
        if not path.exists():
            written.append(path)
            write_whole(path, data, point="chunk")
            break
        if _holds(path, data):
            break
    return ChunkFile(path, entry)


def _holds(path: Path, data: bytes) -> bool:
    return path.stat().st_size == len(data) and path.read_bytes() == data


def _check_presence(file: ChunkFile) -> None:
    """A checkpoint must not name what another process has deleted meanwhile."""
    if not file.path.exists() or file.path.stat().st_size != file.entry["size"]:
        raise FileNotFoundError(
            errno.ENOENT, "a chunk of a buffer was deleted or changed", str(file.path)
        )
