"""Ask the process that trains a run to save and end, as Ctrl-C in its terminal would."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from rl_lab.core.errors import UserError
from rl_lab.records.files import read_bounded
from rl_lab.records.index import LOCK_BYTES
from rl_lab.records.run_directory import RunDirectory


def stop_run(run: RunDirectory) -> int:
    """Signal the process that holds the run's lock; its process id, or a `UserError` if none does.

    A run folder may come from anywhere, and so may the number in run.lock: only a process of this
    user that has that very file open is signalled.
    """
    try:
        process = int(read_bounded(run.lock_file, LOCK_BYTES))
    except (OSError, ValueError):
        process = 0
    if process <= 0 or process == os.getpid() or not _holds(process, run):
        raise UserError(f"run {run.id} is not in training on this machine")
    try:
        os.kill(process, signal.SIGINT)
    except OSError as error:
        raise UserError(f"run {run.id}: process {process}: {error.strerror}") from error
    return process


def _holds(process: int, run: RunDirectory) -> bool:
    """Whether a process has the lock file open: Linux lists that for processes of the same user."""
    with suppress(OSError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                if file.samefile(run.lock_file):
                    return True
    return False
