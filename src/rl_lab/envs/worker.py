"""What runs inside a worker process: a `SyncVector` of its own rows, one command at a time.

Rows of a step travel through memory that all processes see; everything else through the pipe.
"""

import fcntl
import json
import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from rl_lab.core import seeding, state
from rl_lab.core.batch import Array, Step
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.failure import located
from rl_lab.core.spec import EnvSpec, Space, observation_rows
from rl_lab.core.tree import assign, map_leaves, picked
from rl_lab.envs.vector import SyncVector

Make = Callable[[], gym.Env[Any, Any]]
Packed = tuple[str, bytes]  # a state tree: its skeleton as JSON, its tensors as safetensors

_ALIGNMENT = 64  # bytes: every array starts on its own cache line
_LONGEST_TRACEBACK = 20_000  # characters: a short message cannot block its reader


class SharedRows:
    """The arrays of one vector step, in memory without a name: nothing is left when all are gone.

    `next_obs`, `reward`, `terminated`, `truncated`, `measures` are the step's; `first` has the
    first frame of the new episode in the rows whose episode ended.
    """

    def __init__(
        self, context: BaseContext, spec: EnvSpec, count: int, measures: Sequence[str] = ()
    ) -> None:
        frame = observation_rows(spec.observation, _layout)
        layout = {"next_obs": frame, "first": frame, "reward": ((), "<f8")}
        layout |= {"terminated": ((), "|b1"), "truncated": ((), "|b1")}
        layout["measures"] = dict.fromkeys(measures, ((), "<f8"))
        size = 0

        def place(field: tuple[tuple[int, ...], str]) -> tuple[tuple[int, ...], str, int]:
            nonlocal size
            shape, dtype = (count, *field[0]), field[1]
            start, wanted = size, int(np.prod(shape)) * np.dtype(dtype).itemsize
            size += -(-wanted // _ALIGNMENT) * _ALIGNMENT
            return shape, dtype, start

        self._fields = map_leaves(place, layout)
        self._block = context.RawArray("b", max(size, 1))

    def arrays(self) -> dict[str, Any]:
        """Views of the shared memory, all N rows."""

        def view(field: tuple[tuple[int, ...], str, int]) -> Array:
            shape, dtype, start = field
            return np.frombuffer(self._block, dtype, int(np.prod(shape)), start).reshape(shape)

        arrays: dict[str, Any] = map_leaves(view, self._fields)
        return arrays


def serve(
    pipe: Connection, make: Make, seeds: Sequence[int], id: str, rows: slice, shared: SharedRows
) -> None:
    """The worker's life: answer `(True, answer)` or `(False, what happened)` until it is closed.

    Ctrl-C and a SIGTERM to the whole group are the trainer's business: it still wants to save.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_the_trainer()
    torch.set_num_threads(1)  # one core for each worker
    desk: _Desk | None = None
    command, argument = "make", None
    while command != "close":
        try:
            if desk is None:
                desk = _Desk(make, seeds, id, rows, shared)
            reply = True, desk.answer(command, argument)
        except Exception as error:  # noqa: BLE001  (environments may raise anything)
            reply = False, _failure(error)
        try:
            pipe.send(reply)
            command, argument = pipe.recv()
        except (EOFError, OSError):  # the trainer is gone
            break
    if desk is not None:
        desk.vector.close()


class Failure(NamedTuple):
    """What an environment raised, for the trainer."""

    line: str  # the last frame of user code, and the error
    traceback: str
    number: tuple[str, Any] | None  # text and details, if it was a number that is not finite
    refused: bool  # a sentence of ours: it would be the same in a new worker


def _failure(error: Exception) -> Failure:
    number = (str(error), error.details) if isinstance(error, NonFiniteError) else None
    text = traceback.format_exc()[-_LONGEST_TRACEBACK:]
    return Failure(located(error), text, number, isinstance(error, UserError))


def end_with_the_trainer() -> None:
    """Make this process end when the trainer does, even inside a step that never returns.

    Its parent is the fork server, so a parent-death signal would come too late. The pipe that
    `multiprocessing` keeps open as a sign of life breaks at once; Linux turns that into SIGKILL.
    """
    trainer = multiprocessing.parent_process()
    assert trainer is not None
    lifeline = trainer.sentinel
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:  # elsewhere, and if the pipe was broken before this line
        wait([lifeline])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def pack(tree: state.Tree) -> Packed:
    """A state tree as text and bytes. Tensors would otherwise travel as shared files."""
    tensors, skeleton = state.split(tree)
    return json.dumps(skeleton), to_bytes(tensors)


def unpack(packed: Packed) -> state.Tree:
    """The inverse of `pack`."""
    return state.join(from_bytes(packed[1]), json.loads(packed[0]))


class _Desk:
    """One method for each command that the trainer may send."""

    def __init__(
        self, make: Make, seeds: Sequence[int], id: str, rows: slice, shared: SharedRows
    ) -> None:
        # Environments that draw from the process-wide generators repeat themselves, too.
        self.streams = seeding.Streams(seeding.integer(seeds[0], "worker"))
        self.heard = _Heard()
        logging.getLogger("rl_lab").addHandler(self.heard)
        self.vector = SyncVector([make() for _ in seeds], seeds, id, rows.start)
        self.rows = picked(shared.arrays(), rows)

    def answer(self, command: str, argument: Any) -> Any:
        """For a step: what was logged since the last one, or None."""
        if command == "step":
            self.write(self.vector.step(argument))
            return self.heard.take()
        if command == "reset":
            assign(self.rows["first"], slice(None), self.vector.reset(argument))
        elif command == "save":
            tree = {"vector": self.vector.state_dict(), "streams": self.streams.state_dict()}
            return pack(tree)
        elif command == "load":
            tree = unpack(argument)
            self.vector.load_state_dict(tree["vector"])
            self.streams.load_state_dict(tree["streams"])
        return self.vector.snapshot_level

    def write(self, step: Step) -> None:
        rows = self.rows
        assign(rows["next_obs"], slice(None), step.next_obs)
        rows["reward"][:] = step.reward
        rows["terminated"][:] = step.terminated
        rows["truncated"][:] = step.truncated
        assign(rows["measures"], slice(None), step.measures)
        if step.obs is not step.next_obs:
            ended = step.terminated | step.truncated
            assign(rows["first"], ended, picked(step.obs, ended))


class _Heard(logging.Handler):
    """Warnings of our own code in a worker, for the trainer to log: (text, what it is about)."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings: list[tuple[str, str | None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append((record.getMessage(), getattr(record, "once", None)))

    def take(self) -> list[tuple[str, str | None]] | None:
        taken, self.warnings = self.warnings, []
        return taken or None


def _layout(space: Space) -> tuple[tuple[int, ...], str]:
    return tuple(space.shape), np.dtype(space.dtype).str
