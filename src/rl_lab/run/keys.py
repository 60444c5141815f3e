"""Keys in a terminal while a run trains: looked at between two hooks, and no bit changes."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from rl_lab.core.errors import NonFiniteError
from rl_lab.run.callback import Callback
from rl_lab.run.filming import film
from rl_lab.run.orchestrator import Orchestrator

HELP = "keys: e evaluate, c checkpoint, v video, p pause or go on, q save and quit, ? this line"
PAUSE_SECONDS = 0.2  # between two looks at signals while a run pauses


class Keyboard:
    """A terminal that hands over keys as they are pressed, and is as it was before when it is left.

    That holds for every end that a process can notice: an error, Ctrl-C, and being stopped
    (Ctrl-Z), from which it comes back with its keys. In the background it reads nothing.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._before: list[Any] | None = None  # how the terminal was; None while it still is

    def key(self, seconds: float = 0.0) -> str | None:
        """The next key, if one is pressed within this time."""
        if self._before is None or not self._in_front():
            time.sleep(seconds)
            return None
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if not ready:
            return None
        with suppress(OSError):
            if pressed := os.read(self.descriptor, 1):
                return pressed.decode(errors="replace")
        self._before = None  # the terminal is gone
        return None

    @contextmanager
    def open(self) -> Iterator["Keyboard"]:
        """While it lasts, keys need no Enter and are not shown."""
        handlers = {}
        with suppress(ValueError):  # not in the main thread: Ctrl-Z leaves the terminal as it is
            handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
            handlers[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._go_on)
        try:
            self.take()
            yield self
        finally:
            self.give_back()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def take(self) -> None:
        """Read single keys from now on, if the terminal is ours."""
        if self._before is None and self._in_front():
            with suppress(termios.error):
                self._before = termios.tcgetattr(self.descriptor)
                tty.setcbreak(self.descriptor, termios.TCSANOW)

    def give_back(self) -> None:
        """The terminal as it was."""
        before, self._before = self._before, None
        if before is not None and self._in_front():
            with suppress(termios.error):
                termios.tcsetattr(self.descriptor, termios.TCSANOW, before)

    def _in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:
            return False

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self.give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # stops here
        signal.signal(signal.SIGTSTP, self._suspend)
        self.take()

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        self.take()


class Keys(Callback):
    """Does what a key asks for. What it measures goes to the log and to timing.jsonl only."""

    def __init__(self, keyboard: Keyboard) -> None:
        self.keyboard = keyboard
        self.actions: dict[str, Callable[[Orchestrator], None]] = {
            "e": evaluate,
            "c": save,
            "v": record,
            "p": self.pause,
            "q": leave,
            "?": lambda run: run.sinks.say(HELP),
        }

    def after_hook(self, run: Orchestrator) -> None:
        """Every key that was pressed since the last hook."""
        while (key := self.keyboard.key()) is not None:
            self.press(run, key)

    def press(self, run: Orchestrator, key: str) -> None:
        """One key; what has no meaning is answered with those that have one."""
        self.actions.get(key, self.actions["?"])(run)

    def pause(self, run: Orchestrator) -> None:
        """Wait for another `p`, or for an end; other keys still work."""
        run.sinks.say(f"paused at step {run.counters.env_steps:,}: p goes on")
        while not run.stop.requested:
            key = self.keyboard.key(PAUSE_SECONDS)
            if key == "p":
                run.sinks.say("going on")
                return
            if key is not None:
                self.press(run, key)


def evaluate(run: Orchestrator) -> None:
    """An evaluation out of turn. It judges nothing: the best score and metrics.jsonl stay."""
    step = run.counters.env_steps
    try:
        seen = run.evaluate("eval", run.config.evaluation.episodes)
    except NonFiniteError as error:
        run.sinks.warn(f"no evaluation at step {step:,}: {error}")
        return
    mean, std = seen.return_mean, seen.return_std
    run.sinks.say(
        f"evaluated at step {step:,}: return {mean:.4g} ± {std:.2g} ({seen.episodes} episodes)"
    )
    run.timing.append(step, {f"keyed/{name}": each for name, each in seen.summary().items()})


def save(run: Orchestrator) -> None:
    """A checkpoint out of turn."""
    step = run.counters.env_steps
    if step in run.store.steps():  # it may be the best one, with its score
        run.sinks.say(f"step {step:,} is saved already")
    elif run.save():
        run.sinks.say(f"saved at step {step:,}")


def record(run: Orchestrator) -> None:
    """A video of one episode of the policy as it is now."""
    if (file := film(run, "key")) is not None:
        run.sinks.say(f"video: {file}")


def leave(run: Orchestrator) -> None:
    """As the first Ctrl-C does: save here, and end."""
    run.stop.receive(signal.SIGINT, None)


@contextmanager
def listening(run: Orchestrator) -> Iterator[None]:
    """Handle keys while this lasts, if the run is shown in a terminal that can be typed into."""
    if not (run.sinks.watched and sys.stdin is not None and sys.stdin.isatty()):
        yield
        return
    with Keyboard(sys.stdin.fileno()).open() as keyboard:
        run.stop.farewell = keyboard.give_back
        run.add_callback("session/keys", Keys(keyboard))
        run.sinks.say(HELP)
        yield
