"""Weights & Biases as a sink: rows go to a process of its own, which cannot disturb the training.

The trainer never waits: rows are lines of JSON in a pipe, and a bounded queue before it. An `init`
that raises, hangs or dies costs one warning; the process never outlives the run.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from rl_lab.core.errors import UserError
from rl_lab.display.sinks import Sink
from rl_lab.records.alerts import Alert
from rl_lab.records.metrics import plain

INSTALL = "wandb is not installed: pip install 'rl-lab[wandb]'"
SILENT = "wandb.init gave no answer"
ORPHAN_SECONDS = 20.0  # to finish after the trainer was killed; then the process goes too
STEP_AXIS = "env_steps"  # the x axis of every chart


def choose_mode(wanted: str, variables: Mapping[str, str], home: Path) -> tuple[str, str]:
    """`online`, `offline` or `disabled`, and why. Decided before W&B is asked for anything."""
    if wanted != "auto":
        return wanted, "logging.wandb.mode"
    if variables.get("WANDB_MODE") in ("online", "offline", "disabled"):
        return variables["WANDB_MODE"], "WANDB_MODE"
    if variables.get("WANDB_API_KEY"):
        return "online", "WANDB_API_KEY is set"
    host = urlparse(variables.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    file = Path(variables["NETRC"]) if "NETRC" in variables else home / ".netrc"
    try:
        known = netrc(str(file)).hosts
    except (OSError, NetrcParseError, UnicodeDecodeError):
        known = {}
    if host in known:
        return "online", f"logged in to {host}"
    return "offline", "no login was found"


class WandbSink(Sink):
    """A W&B run in a child process. Whatever happens there, `write` returns at once."""

    queue_rows = 2_000  # held back while the process is busy; more are dropped and counted
    init_seconds = 90.0  # until `init` must have answered
    close_seconds = 15.0  # for the last rows to arrive, at the end of a run

    def __init__(
        self, options: Mapping[str, Any], *, tell: Callable[[str], None] = lambda message: None
    ) -> None:
        """`options` are arguments of `wandb.init`; JSON must be able to hold them."""
        found = find_spec("wandb")
        if found is None or found.origin is None:  # a folder called wandb/ is no package
            raise UserError(INSTALL)
        self.tell = tell
        self.dropped = 0
        self.ready = False
        self._deadline = time.monotonic() + self.init_seconds
        self._queue: deque[bytes] = deque()
        self._answers = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rl_lab.display.wandb_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
            start_new_session=True,  # Ctrl-C is for the trainer, which then closes this
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._rows, self._said = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._rows, False)
        os.set_blocking(self._said, False)
        self._put({"init": dict(options)})

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Hand the row over, or keep it for later, or count it as dropped. Never waits."""
        self._put({"row": {STEP_AXIS: step, **row}})
        self._listen()
        if not self.ready and time.monotonic() > self._deadline:
            raise self._failed(SILENT)

    def film(self, step: int, file: Path) -> None:
        """The video, by its name: the process reads the file."""
        self._put(
            {"video": {"step": step, "file": str(file), "name": file.stem.rpartition("-")[0]}}
        )

    def alert(self, alert: Alert) -> None:
        """An alert there, which W&B sends on by mail or Slack as its user has chosen."""
        self._put({"alert": {"title": alert.monitor, "text": alert.text}}, always=True)

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """How the run stands at its end."""
        self._put({"summary": plain(dict(summary))}, always=True)

    def close(self) -> None:
        """Let the last rows arrive, for a limited time; then the process is gone in any case."""
        if self._process.returncode is not None:
            return
        until = time.monotonic() + self.close_seconds
        try:
            self._drain(until)
            assert self._process.stdin is not None
            self._process.stdin.close()
            code = self._process.wait(max(until - time.monotonic(), 0.0))
            self._listen()
            if code:
                raise self._ended()
        except subprocess.TimeoutExpired:
            late = f"it was not done {self.close_seconds:g} s after the run: see its wandb/ folder"
            raise self._failed(late if self.ready else SILENT) from None
        finally:
            self._end()
        if self.dropped:
            lost = f"{self.dropped} rows were dropped because it was slow; metrics.jsonl has all"
            self.tell(f"WARNING: W&B: {lost}")

    def _put(self, message: Mapping[str, Any], *, always: bool = False) -> None:
        if len(self._queue) < self.queue_rows or always:
            self._queue.append(json.dumps(message).encode() + b"\n")
        else:
            self.dropped += 1
        self._send()

    def _send(self) -> None:
        """As much of the queue as the pipe takes now."""
        try:
            while self._queue:
                line = self._queue[0]
                sent = os.write(self._rows, line)
                if sent < len(line):
                    self._queue[0] = line[sent:]
                else:
                    self._queue.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._listen()  # it may have sent the reason
            raise self._ended() from None

    def _drain(self, until: float) -> None:
        """All of the queue; `TimeoutExpired` if that takes too long."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._rows, selectors.EVENT_WRITE)
            while self._queue:
                if not selector.select(max(until - time.monotonic(), 0.0)):
                    raise subprocess.TimeoutExpired(self._process.args, self.close_seconds)
                self._send()

    def _listen(self) -> None:
        """What the process has answered so far; raises if that is a failure."""
        try:
            while chunk := os.read(self._said, 65536):
                self._answers += chunk
        except BlockingIOError:
            pass
        *lines, self._answers = self._answers.split(b"\n")
        for answer in map(json.loads, lines):
            if "error" in answer:
                raise self._failed(str(answer["error"]))
            self.ready = True
            if answer["url"]:
                self.tell(f"W&B: {answer['url']}")

    def _ended(self) -> UserError:
        """The process went away by itself, without a word."""
        with suppress(subprocess.TimeoutExpired):  # a moment, for its exit code
            self._process.wait(1.0)
        return self._failed(f"the W&B process ended with exit code {self._process.returncode}")

    def _failed(self, reason: str) -> UserError:
        """End the process; an error to raise."""
        self._end()
        return UserError(reason)

    def _end(self) -> None:
        """Kill the process if it is still there, and let go of the pipes."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
