"""Environments in worker processes that are watched: what dies, hangs or raises is replaced.

Each worker has a `SyncVector` of some rows, so the same seeds give the same bytes as in one
process. A worker that is lost takes its episodes with it: their last step is marked truncated and
ends on the frame that was shown last, so a bootstrap stays possible.
"""

import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, pairwise
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np

from rl_lab.core import registry, seeding
from rl_lab.core.batch import Array, Obs, Step
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.tree import assign, copied, picked
from rl_lab.envs.spaces import describe
from rl_lab.envs.vector import declared, goal_reward
from rl_lab.envs.worker import Failure, Make, SharedRows, pack, serve, unpack

WINDOW = 1000  # vector steps within which faults are counted
START_SECONDS = 120.0  # for imports and constructors, which may be slow
CLOSE_SECONDS = 1.0  # for environments to put their things away

log = logging.getLogger(__name__)


class EnvironmentFailedError(UserError):
    """More faults than may be repaired. Carries the traceback of the last one, if it has one."""

    def __init__(self, message: str, remote_traceback: str = "") -> None:
        self.remote_traceback = remote_traceback
        super().__init__(message)


class Fault(NamedTuple):
    """Why a worker has to be replaced, and what its environment raised, if it did."""

    reason: str
    failure: Failure | None = None

    @property
    def traceback(self) -> str:
        """Empty if nothing was raised."""
        return self.failure.traceback if self.failure else ""


class ProcessVector:
    """Environments of one kind in supervised worker processes.

    `make` and what it refers to must be importable in another process. `faults` counts how often
    a worker was replaced; more than `restarts` times within `WINDOW` steps is a failure.
    """

    def __init__(
        self,
        make: Make,
        seeds: Sequence[int],
        id: str,
        *,
        workers: int | None = None,
        step_timeout: float = 60.0,
        restarts: int = 10,
    ) -> None:
        probe = make()  # bad arguments and spaces are reported here, before any process exists
        self.spec = describe(probe, id)
        self.goal_reward = goal_reward(probe)
        measures, self.outcomes = declared(probe)
        probe.close()
        self.num_envs = len(seeds)
        self.faults = 0
        self.snapshot_level = "E3"
        self._make, self._seeds, self._id = make, [int(seed) for seed in seeds], id
        self._timeout, self._restarts = step_timeout, restarts
        self._steps, self._recent = 0, deque[int]()
        self._started = False
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["rl_lab.envs.worker"])
        told = (*measures, *self.outcomes)
        self._shared = SharedRows(self._context, self.spec, self.num_envs, told)
        self._rows = self._shared.arrays()
        self._shown = copied(self._rows["first"])  # the frames on which the next actions are taken
        self._cut = np.zeros(self.num_envs, np.bool_)  # episodes that were lost since then
        self._workers: list[Worker] = []
        # Called by `close`, by the garbage collector, and at exit before children are joined.
        self._end: Any = Finalize(self, end_workers, (self._workers,), exitpriority=10)
        self._launch(min(workers or usable_cores(), self.num_envs))

    def reset(self, seeds: Sequence[int] | None = None) -> Obs:
        """Reset every environment, with new seeds if given; the first observations [N, …]."""
        self._require_open()
        if seeds is not None:
            if len(seeds) != self.num_envs:
                raise ValueError(f"{self.num_envs} environments need as many seeds: {len(seeds)}")
            self._seeds = [int(seed) for seed in seeds]
        self._started = True
        given = [None if seeds is None else self._seeds[each.rows] for each in self._workers]
        self._ask("reset", dict(enumerate(given)))
        self.snapshot_level = max(worker.level for worker in self._workers)
        self._cut[:] = False
        self._shown = copied(self._rows["first"])
        return self._shown

    def step(self, action: Array) -> Step:
        """One decision per environment; ended episodes are already reset in `Step.obs`."""
        self._require_open()
        if not self._started:
            raise RuntimeError("call reset() before step()")
        self._steps += 1
        workers = enumerate(self._workers)
        told = self._ask(
            "step", {i: action[w.rows] for i, w in workers if not self._cut[w.rows].any()}
        )
        if any(told.values()):
            for text, once in chain.from_iterable(filter(None, told.values())):
                log.warning("%s", text, extra={"once": once})
        names = ("next_obs", "reward", "terminated", "truncated", "measures")
        next_obs, reward, terminated, truncated, measures = (
            copied(self._rows[name]) for name in names
        )
        if self._cut.any():
            assign(next_obs, self._cut, picked(self._shown, self._cut))
            reward[self._cut] = 0.0
            terminated[self._cut], truncated[self._cut] = False, True
            for name, values in measures.items():  # nobody knows how a lost episode ended
                values[self._cut] = np.nan if name in self.outcomes else 0.0
            self._cut[:] = False
        obs, ended = next_obs, terminated | truncated
        if ended.any():
            obs = copied(next_obs)
            assign(obs, ended, picked(self._rows["first"], ended))
        self._shown = obs
        return Step(obs, reward, terminated, truncated, next_obs, measures=measures)

    def close(self) -> None:
        """End the workers, by force if one does not answer. Calling it again does nothing."""
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """What each worker's `SyncVector` saves, its random streams, and what was shown last."""
        self._require_open()
        packed = self._ask_all("save", [None] * len(self._workers))
        return {
            "workers": [unpack(each) for each in packed],
            "started": self._started,
            "seeds": list(self._seeds),
            "faults": self.faults,
            "cut": self._cut.copy(),
            "shown": copied(self._shown),
            "first": copied(self._rows["first"]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly at E0; at E3 the next call must be `reset`: new episodes, new seeds."""
        self._require_open()
        if len(state["seeds"]) != self.num_envs:
            raise UserError(f"state of {len(state['seeds'])} envs cannot fill {self.num_envs}")
        if len(state["workers"]) != len(self._workers):  # another machine: keep its division
            self._launch(len(state["workers"]))
        before = self.faults
        self._ask_all("load", [pack(each) for each in state["workers"]])
        self.snapshot_level = max(worker.level for worker in self._workers)
        self._seeds = [int(seed) for seed in state["seeds"]]
        self.faults += int(state["faults"]) - before
        self._started = bool(state["started"]) and self.snapshot_level != "E3"
        self._cut[:] = state["cut"]
        assign(self._rows["first"], slice(None), state["first"])
        self._shown = copied(state["shown"])

    def _launch(self, count: int) -> None:
        """Start workers, all at once; whatever fails now is reported, not repaired."""
        end_workers(self._workers)
        bounds = np.linspace(0, self.num_envs, count + 1).astype(int).tolist()
        with self._closed_if_broken():
            for begin, end in pairwise(bounds):
                rows = slice(begin, end)
                self._workers.append(self._start(rows, self._seeds[rows]))
            _, lost = collect(self._workers, START_SECONDS)
            for fault in lost.values():
                raise self._failed("a worker did not start", fault)
        self.snapshot_level = max(worker.level for worker in self._workers)

    def _start(self, rows: slice, seeds: Sequence[int]) -> "Worker":
        arguments = (self._make, seeds, self._id, rows, self._shared)
        try:
            return Worker(self._context, rows, arguments)
        except Exception as error:  # pickling may fail in any way
            raise UserError(
                f"environment '{self._id}' cannot be sent to another process: {error}; "
                "use environment.vectorization=sync"
            ) from error

    def _ask(self, command: str, arguments: Mapping[int, Any]) -> dict[int, Any]:
        """Send a command to some workers; the answers of those that did not have to be replaced."""
        lost: dict[Worker, Fault] = {}
        asked = {i: self._workers[i] for i in arguments}
        with self._closed_if_broken():
            for i, worker in asked.items():
                try:
                    worker.send(command, arguments[i], self._timeout)
                except OSError:
                    lost[worker] = Fault(worker.last_words())
            waiting = [worker for worker in asked.values() if worker not in lost]
            answers, silent = collect(waiting, self._timeout)
        refused: Exception | None = None
        for fault in silent.values():
            failure = fault.failure
            if failure is None or command not in ("step", "reset"):
                continue
            if failure.number is not None:
                # Not the worker's failure: what a bad number does is the run's own decision.
                raise NonFiniteError(*failure.number)
            if failure.refused:  # a broken contract, which a new worker would break again
                self.close()
                raise EnvironmentFailedError(failure.line, failure.traceback)
        for worker, fault in (lost | silent).items():
            if fault.failure and command not in ("step", "reset"):
                refused = self._failed(f"cannot {command} its state", fault)
            else:
                with self._closed_if_broken():
                    self._replace(worker, fault)
        if refused:
            raise refused
        return {i: answers[worker] for i, worker in asked.items() if worker in answers}

    def _ask_all(self, command: str, arguments: Sequence[Any]) -> list[Any]:
        """The answers of all workers, also of those that were replaced on the way."""
        answers: dict[int, Any] = {}
        while open_ := {i: each for i, each in enumerate(arguments) if i not in answers}:
            answers |= self._ask(command, open_)
        return [answers[i] for i in range(len(arguments))]

    def _replace(self, worker: "Worker", fault: Fault) -> None:
        """Put a new worker with new episodes in the place of a lost one, or give up."""
        place, rows = self._workers.index(worker), worker.rows
        lost: dict[Worker, Fault] = {worker: fault}
        while lost:
            (worker, fault), *_ = lost.items()
            self._count(rows, fault)
            worker.end()
            seeds = [seeding.integer(seed, "restart", self.faults) for seed in self._seeds[rows]]
            worker = self._workers[place] = self._start(rows, seeds)
            _, lost = collect([worker], START_SECONDS)
            if self._started and not lost:
                with suppress(OSError):  # then `collect` sees its end
                    worker.send("reset", None, self._timeout)
                _, lost = collect([worker], self._timeout)
        self._cut[rows] = self._started

    def _count(self, rows: slice, fault: Fault) -> None:
        """Report a fault; too many of them are a failure."""
        self.faults += 1
        self._recent.append(self._steps)
        while self._recent[0] <= self._steps - WINDOW:
            self._recent.popleft()
        which = f"environments {rows.start} to {rows.stop - 1}"
        if len(self._recent) > self._restarts:
            text = f"{which} failed, fault {len(self._recent)} within {WINDOW} steps"
            raise self._failed(text, fault)
        text = f"'{self._id}': {which} start new episodes in a new worker: {fault.reason}"
        log.warning("%s", text, extra={"detail": fault.traceback})

    def _failed(self, what: str, fault: Fault) -> EnvironmentFailedError:
        return EnvironmentFailedError(f"'{self._id}': {what}: {fault.reason}", fault.traceback)

    @contextmanager
    def _closed_if_broken(self) -> Iterator[None]:
        """After Ctrl-C between question and answer, later answers would belong to no question."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _require_open(self) -> None:
        if not self._workers:
            raise RuntimeError("this vector is closed")


class Worker:
    """The trainer's end of one worker process."""

    def __init__(self, context: ForkServerContext, rows: slice, arguments: tuple[Any, ...]) -> None:
        self.rows = rows
        self.level = "E3"
        self.pipe, theirs = context.Pipe()
        try:
            self.process = _started(context, (theirs, *arguments))
        finally:
            theirs.close()
        self.sentinel = _sentinel(self.process)
        self._poller = select.poll()
        for descriptor in (self.pipe.fileno(), self.sentinel):
            self._poller.register(descriptor, select.POLLIN)
        self._patience: float | None = None  # seconds, while a long message may come

    def send(self, command: str, argument: object, seconds: float) -> None:
        """Ask for something; `OSError` if nobody is there."""
        self._patience = seconds if command in ("save", "load") else None
        with self._killed_after(self._patience):
            self.pipe.send((command, argument))

    def receive(self, seconds: float) -> tuple[bool, Any]:
        """The answer; `TimeoutError` if none comes, `EOFError` or `OSError` if there was an end."""
        ready = self._poller.poll(seconds * 1000)
        if not ready:
            raise TimeoutError
        if self.pipe.fileno() not in (descriptor for descriptor, _ in ready):
            raise EOFError
        with self._killed_after(self._patience):
            good, answer = self.pipe.recv()
        if good and isinstance(answer, str):
            self.level = answer
        return good, answer

    def last_words(self) -> str:
        """How the process ended."""
        self.process.join(CLOSE_SECONDS)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"the worker was killed by {signal.Signals(-code).name}"
        return f"the worker ended by itself with exit code {code}"

    def end(self) -> None:
        """Kill the process if it is still there, and let go of everything."""
        self.process.kill()
        self.process.join(CLOSE_SECONDS)
        if self.process.exitcode is not None:
            self.process.close()
        self.pipe.close()
        os.close(self.sentinel)

    @contextmanager
    def _killed_after(self, seconds: float | None) -> Iterator[None]:
        """A worker that stops in the middle of a long message must not block the trainer."""
        if seconds is None:
            yield
            return
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def collect(
    workers: Sequence[Worker], seconds: float
) -> tuple[dict[Worker, Any], dict[Worker, Fault]]:
    """One answer from each worker; or why there is none. All have the same `seconds`."""
    answers: dict[Worker, Any] = {}
    lost: dict[Worker, Fault] = {}
    deadline = time.monotonic() + seconds
    for worker in workers:  # one after the other: nothing can go on before all have answered
        try:
            good, answer = worker.receive(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            lost[worker] = Fault(f"the worker gave no answer for {seconds:g} s")
        except (EOFError, OSError):
            lost[worker] = Fault(worker.last_words())
        else:
            if good:
                answers[worker] = answer
            else:
                lost[worker] = Fault(answer.line, answer)
    return answers, lost


def end_workers(workers: list[Worker]) -> None:
    """Ask all to close, wait a moment, kill the rest; empties the list."""
    for worker in workers:
        with suppress(OSError):
            worker.send("close", None, CLOSE_SECONDS)
    deadline = time.monotonic() + CLOSE_SECONDS
    open_ = {worker.sentinel for worker in workers}
    while open_ and (left := deadline - time.monotonic()) > 0:
        open_ -= {each for each in wait(list(open_), left) if isinstance(each, int)}
    for worker in workers:
        worker.end()
    workers.clear()


def _started(context: ForkServerContext, arguments: tuple[Any, ...]) -> Any:
    """A running worker process. It does not run the user's script again unless it needs it."""
    with suppress(Exception), _as_a_new_process_finds_it():
        process = context.Process(target=serve, args=arguments)
        process.start()
        return process
    process = context.Process(target=serve, args=arguments)  # something is defined in the script
    process.start()
    return process


@contextmanager
def _as_a_new_process_finds_it() -> Iterator[None]:
    """An empty `__main__`, and the folders of the user's own files.

    A new process imports `__main__`: an empty one costs nothing, so a script needs no
    `if __name__ == "__main__":` and restarts are quick.
    """
    main, path = sys.modules["__main__"], sys.path
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path = [*path, *sorted(registry.local_folders)]
    try:
        yield
    finally:
        sys.modules["__main__"], sys.path = main, path


def _sentinel(process: BaseProcess) -> int:
    """Readable when the process has ended; `process.sentinel` also when the fork server has."""
    assert process.pid is not None, "the worker was not started"
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or it has ended already
        return os.dup(process.sentinel)


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
