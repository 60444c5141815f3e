"""Files of vector steps: what a disk buffer writes, and what other programs can read as a dataset.

A segment is an uncompressed .npz file, `000000012345-500.npz`: 500 vector steps from step 12345 on.
Its arrays are the columns of `storage.layout` [T, N, …] and

    cut     [T, N]  True where the follower of a row belongs to something else
    final/… [F, …]  the frames that rows with a cut led to, in their order
    head/…  [N, …]  the frames that the last row led to
    follows []      False: the first row does not follow the last one of the file before it

A file appears whole or not at all, and is never changed. The zip format has a checksum for every
array; a file is read through them once before it is used, and mapped into memory then.
"""

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rl_lab.buffers.storage import CUT
from rl_lab.core.batch import Array
from rl_lab.core.chunks import Columns
from rl_lab.core.errors import UserError

FINAL, HEAD, FOLLOWS = "final", "head", "follows"
SUFFIX, DRAFT = ".npz", ".draft"
Place = tuple[int, tuple[int, ...], np.dtype[Any]]  # of an array in a file: offset, shape, type
Places = dict[str, Place]
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip member: how long its name and its extras are


@dataclass(frozen=True)
class Segment:
    """A file, and what its name and its table of contents say."""

    path: Path
    first: int  # vector step
    count: int
    checksum: int  # of the names, sizes and checksums of all arrays

    @property
    def stop(self) -> int:
        """The vector step after the last one."""
        return self.first + self.count


class Mapped:
    """The arrays of a segment, in the file until they are used."""

    def __init__(self, segment: Segment, num_envs: int, places: Places) -> None:
        self.segment, self.num_envs = segment, num_envs
        self.ends: Array | None = None  # rows that have a final frame, once that was asked for
        file: Array = np.memmap(segment.path, np.uint8, "r")
        self.columns: Columns = {
            name: file[offset : offset + kind.itemsize * math.prod(shape)].view(kind).reshape(shape)
            for name, (offset, shape, kind) in places.items()
        }

    def take(self, name: str, row: Array) -> Array:
        """A column at these rows, counted from the beginning of the file."""
        step, env = np.divmod(row, self.num_envs)
        return self.columns[name][step, env]

    def final_frame(self, name: str, row: Array) -> Array:
        """What rows with a cut led to; the last row may have been cut later, by what came next."""
        last = row >= (self.segment.count - 1) * self.num_envs
        found = np.array(self.columns[f"{HEAD}/{name}"][row % self.num_envs])
        inner = np.flatnonzero(~last)
        if self.ends is None:
            self.ends = np.flatnonzero(self.columns[CUT])
        found[inner] = self.columns[f"{FINAL}/{name}"][np.searchsorted(self.ends, row[inner])]
        return found


def find_segments(folder: Path) -> list[Segment]:
    """The segments in a folder, in the order of time; they must follow each other."""
    found = [_segment(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    stop = 0
    for each in found:
        if each.first != stop:
            raise UserError(f"{folder} has no file for the steps from {stop} to {each.first}")
        stop = each.stop
    return found


def write_segment(folder: Path, first: int, columns: Columns) -> Segment:
    """A new file, whole and durable."""
    path = folder / f"{first:012d}-{len(columns[CUT])}{SUFFIX}"
    write_durably(path, lambda file: np.savez(file, allow_pickle=False, **columns))
    return _segment(path)


def write_durably(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Beside it, to the disk, then under its name: never half a file."""
    draft = path.with_suffix(DRAFT)
    with draft.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    names = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(names)
    finally:
        os.close(names)


def read_array(path: Path, name: str) -> Array:
    """One array of a file, checked."""
    with opened(path) as archive, archive.open(f"{name}.npy") as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        return array


def opened(path: Path) -> zipfile.ZipFile:
    """A .npz file, or one line about why not."""
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except zipfile.BadZipFile as error:
        raise UserError(f"{path} is not an .npz file: {error}") from error


def _segment(path: Path) -> Segment:
    with opened(path) as archive:
        contents = [(each.filename, each.file_size, each.CRC) for each in archive.infolist()]
    try:
        first, count = map(int, path.stem.split("-"))
    except ValueError:
        raise UserError(f"{path} is not a file of a disk buffer: its name has no steps") from None
    return Segment(path, first, count, zlib.crc32(repr(contents).encode()))


def find_arrays(path: Path) -> Places:
    """Where the arrays of an uncompressed file lie, after their checksums were compared."""
    with opened(path) as archive, path.open("rb") as file:
        if any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist()):
            raise UserError(f"{path} is damaged: a disk buffer writes no compressed files")
        if damaged := _damaged(archive):
            raise UserError(f"{path} is damaged: {damaged} is not what was written")
        try:
            return {
                each.filename.removesuffix(".npy"): _place(file, each)
                for each in archive.infolist()
            }
        except (ValueError, struct.error) as error:
            raise UserError(f"{path} is damaged: {error}") from error


def _damaged(archive: zipfile.ZipFile) -> str | None:
    try:
        return archive.testzip()
    except zipfile.BadZipFile as error:
        return str(error)


def _place(file: BinaryIO, member: zipfile.ZipInfo) -> Place:
    """The array in a zip member; it must be plain numbers, as many as its header says."""
    file.seek(member.header_offset)
    name, extras = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    begin = file.seek(name + extras, os.SEEK_CUR)
    if np.lib.format.read_magic(file) != (1, 0):  # as np.savez writes it
        raise ValueError(f"{member.filename} has an unknown version")
    shape, by_column, kind = np.lib.format.read_array_header_1_0(file)
    size = kind.itemsize * math.prod(shape)
    if kind.hasobject or by_column or file.tell() - begin + size != member.file_size:
        raise ValueError(f"{member.filename} is not an array of so many numbers")
    return file.tell(), shape, kind
