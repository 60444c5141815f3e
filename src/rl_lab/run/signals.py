"""SIGTERM, SIGHUP and Ctrl-C ask the loop to stop; the loop decides where."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """How often, and by which signal, the process was asked to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.count = 0
        self.farewell: Callable[[], None] = lambda: None  # before a process that is gone at once

    @property
    def requested(self) -> bool:
        """Finish the action at hand, save, and leave."""
        return self.count > 0

    @property
    def impatient(self) -> bool:
        """Asked twice: leave without saving."""
        return self.count > 1

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + (self.signal or 0)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The handler. The third time, the process is gone at once."""
        self.signal, self.count = number, self.count + 1
        if self.count > 2:
            self.farewell()
            os._exit(self.exit_code)


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[None]:
    """Route SIGTERM, SIGHUP and SIGINT to `request` while the run lasts."""
    try:
        previous = {each: signal.signal(each, request.receive) for each in _signals()}
    except ValueError:  # not in the main thread: whoever is there keeps the handlers
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _signals() -> tuple[signal.Signals, ...]:
    """A lost terminal (SIGHUP) stops a run as SIGTERM does, unless it was started by `nohup`."""
    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    return tuple(wanted)
