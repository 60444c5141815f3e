"""Runs as processes: each on cores of its own, and none outlives the process that started it."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import IO

_PR_SET_PDEATHSIG = 1
_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TRAIN = (sys.executable, "-m", "rl_lab", "train")


def launch(
    words: Sequence[str],
    *,
    slot: int,
    threads: int,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int | None,
) -> "subprocess.Popen[bytes]":
    """Start a command with `threads` cores of its own; it saves and ends if this process dies."""
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=os.environ | dict.fromkeys(_LIMITS, str(threads)),
        start_new_session=True,  # Ctrl-C reaches this process only, which ends the others
        preexec_fn=partial(_prepare, slot, threads, os.getpid()),
    )


def cores(slot: int, threads: int, there: Sequence[int]) -> list[int]:
    """Which cores a slot uses: `threads` in a row, round and round."""
    return sorted({there[(slot * threads + index) % len(there)] for index in range(threads)})


def usable() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _prepare(slot: int, threads: int, parent: int) -> None:
    """In the new process, before it runs anything."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # also where this process ignores it
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores(slot, threads, usable()))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died in between
            os._exit(1)
