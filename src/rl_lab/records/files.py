"""Opens the files of a run: regular files of a bounded size, and no link to write through.

A run folder may come from anywhere. A link in it must not make us overwrite what is elsewhere; a
pipe or a device in the place of a file must not make us wait or read without end.
"""

import errno
import json
import os
import stat
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError

MAX_BYTES = 16_000_000  # of a file that is read as a whole; a provenance.json may have a long diff

SPECIAL = "it is a pipe or a device, not a file"


def own_file(path: str, flags: int) -> int:
    """An `opener` for files that are written: an `OSError` for a link or a special file."""
    try:
        # Without O_NONBLOCK, opening a pipe without a reader would wait for ever.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link: remove it", path) from error
        if error.errno == errno.ENXIO:  # a pipe without a reader, or no such device
            raise OSError(errno.EINVAL, SPECIAL, path) from error
        raise
    return _regular(descriptor, path)


def open_to_read(path: Path) -> BufferedReader:
    """A regular file to read from; an `OSError` if it is missing or something else."""

    def opener(name: str, flags: int) -> int:
        return _regular(os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC), name)

    return open(path, "rb", opener=opener)


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a regular file of at most `limit` bytes, else an `OSError`."""
    with open_to_read(path) as file:
        # A read sets aside as many bytes as it is asked for, however few there are.
        data = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return data


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file of a run holds; `FileNotFoundError` if there is no file."""
    try:
        found = json.loads(read_bounded(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is not valid: it must be a JSON object {{…}}")
    return found


def check_folder(run: Path) -> None:
    """`UserError` if a run folder has a link that leaves it, a pipe or a device.

    Links within the run, such as `checkpoints/best`, are fine, and so is a link to the run. W&B
    links its logs in `wandb/`, into which nothing of ours writes.
    """
    inside, foreign = os.path.realpath(run), str(run / "wandb")
    waiting = [str(run)]
    while waiting:
        # A run in training removes checkpoints meanwhile.
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.path == foreign and not entry.is_symlink():
                    continue
                if entry.is_symlink():
                    if not os.path.realpath(entry.path).startswith(f"{inside}{os.sep}"):
                        name = os.path.relpath(entry.path, run)
                        raise UserError(f"{run}: {name} is a link that leaves the run: remove it")
                elif entry.is_dir():
                    waiting.append(entry.path)
                elif not entry.is_file():
                    name = os.path.relpath(entry.path, run)
                    raise UserError(f"{run}: {name} is a pipe or a device: remove it")


def _regular(descriptor: int, path: str) -> int:
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", path)
    raise OSError(errno.EINVAL, SPECIAL, path)
