"""Where metrics and messages are shown. A sink may fail or be absent: training goes on."""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from io import BufferedWriter
from pathlib import Path
from socket import gethostname
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Any

from rl_lab.core.errors import UserError
from rl_lab.records.alerts import Alert
from rl_lab.records.files import own_file
from rl_lab.records.metrics import STEP, iterate_metrics

if TYPE_CHECKING:
    from rl_lab.core.picture import Picture

log = logging.getLogger(__name__)
ALERT = "ALERT"  # how a line about an alert begins
LOUD = ("WARNING", ALERT)  # lines that are shown where all else is quiet
FLUSH_SECONDS = 1.0  # between two moments at which TensorBoard's file is brought up to date


class Sink:
    """One place that shows a run. By itself it shows nothing: override what it can show."""

    watched = False  # a human sits before it, and may press keys

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Show one row of metrics."""

    def draw(self, step: int, pictures: Mapping[str, "Picture"]) -> None:
        """Show pictures of the algorithm, by name."""

    def film(self, step: int, file: Path) -> None:
        """Show a video of the policy."""

    def say(self, message: str) -> None:
        """Show a message to a human, where there is one."""

    def alert(self, alert: Alert) -> None:
        """Pass on that a monitor has fired; what `say` shows has it already."""

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Show how the run ended, as summary.json has it."""

    def close(self) -> None:
        """Show what is still held back and let go."""


class Sinks:
    """Every sink of a run, and its log file. None of them can stop the training."""

    def __init__(self, sinks: Sequence[Sink], log_file: Path | None = None) -> None:
        self.sinks = list(sinks)
        self.log_file = log_file
        self._unheard: list[str] | None = None if sinks else []  # from before there was a sink

    def attach(self, log_file: Path | None, sinks: Sequence[Sink]) -> None:
        """Show the run here too. Messages from before there was a sink are repeated."""
        unlogged = self.log_file is None
        self.log_file = log_file
        self.sinks += sinks
        unheard, self._unheard = self._unheard or [], None
        for message in unheard:
            if unlogged:
                self._log(message)
            self._tell(message)

    def add(self, make: Callable[[], Sink]) -> None:
        """One more sink; if it cannot even be made, that is reported and training goes on."""
        try:
            self.sinks.append(make())
        except Exception as error:  # noqa: BLE001 - third-party code; no display is worth a run
            self.say(f"WARNING: a sink could not be started: {_reason(error)}")

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Show one row everywhere."""
        self._each(lambda sink: sink.write(step, row))

    def draw(self, step: int, pictures: Mapping[str, "Picture"]) -> None:
        """Show pictures everywhere."""
        self._each(lambda sink: sink.draw(step, pictures))

    def film(self, step: int, file: Path) -> None:
        """Show a video everywhere."""
        self._each(lambda sink: sink.film(step, file))

    @property
    def watched(self) -> bool:
        """Whether a human sits before one of them."""
        return any(sink.watched for sink in self.sinks)

    def say(self, message: str) -> None:
        """Tell the human, and put a line with the time into the log file."""
        self._log(message)
        if self._unheard is not None:
            self._unheard.append(message)
        self._tell(message)

    def warn(self, message: str) -> None:
        """Say that something is wrong: also shown where all else is quiet."""
        self.say(f"WARNING: {message}")

    def alert(self, alert: Alert) -> None:
        """A monitor has fired: a line for the human, and whatever else the sinks do about it."""
        self.say(f"{ALERT} {alert.text}")
        self._each(lambda sink: sink.alert(alert))

    def log(self, message: str) -> None:
        """Put a message with the time into the log file, and nowhere else."""
        self._log(message)

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Show everywhere how the run ended."""
        self._each(lambda sink: sink.summarize(summary))

    def close(self) -> None:
        """Close every sink, once."""
        self._each(lambda sink: sink.close())
        self.sinks = []

    def _tell(self, message: str) -> None:
        self._each(lambda sink: sink.say(message))

    def _each(self, call: Callable[[Sink], None]) -> None:
        for sink in list(self.sinks):
            try:
                call(sink)
            except Exception as error:  # noqa: BLE001 - third-party code; no display is worth a run
                if sink in self.sinks:  # else it failed again while its own failure was reported
                    self.sinks.remove(sink)
                    with suppress(Exception):  # it has failed already; its threads should go
                        sink.close()
                    self.say(f"WARNING: {type(sink).__name__} is off from here: {_reason(error)}")

    def _log(self, message: str) -> None:
        if self.log_file is None:
            return
        moment = datetime.now().astimezone().isoformat(timespec="seconds")
        text = message.replace("\n", "\n  ")
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log_file, "a", encoding="utf-8", opener=own_file) as file:
                file.write(f"{moment} {text}\n")
        except OSError as error:
            self.log_file = None
            self.say(f"WARNING: the log file is off from here: {_reason(error)}")


class TensorBoardSink(Sink):
    """Scalars for TensorBoard. A resumed run replaces the future that was lost."""

    def __init__(
        self, folder: Path, purge_step: int | None = None, metrics_file: Path | None = None
    ) -> None:
        """`purge_step` is the step that a run resumes from: what was shown from there on is hidden.

        The rows of that very step which `metrics_file` still has are shown again. In an offline
        phase all rows have one step, and only the file knows which of them are from before.
        """
        self.folder = folder
        self.purge_step = purge_step
        rows = () if metrics_file is None else iterate_metrics(metrics_file)
        self._kept = [row for row in rows if row.pop(STEP) == purge_step]
        self._file: BufferedWriter | None = None
        self._flushed = -math.inf

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """One scalar per metric; a killed run loses the rows of its last second."""
        if self._file is None:
            self._file = self._open()
        self._write_row(self._file, step, row)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def film(self, step: int, file: Path) -> None:
        """A moving picture beside the scalars: TensorBoard shows GIFs, and no MP4."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        from rl_lab.display.video import as_gif

        try:
            data, width, height = as_gif(file)
        except (ImportError, OSError, SubprocessError) as error:  # scalars are shown all the same
            log.warning("TensorBoard shows no video: %s", _reason(error), extra={"once": "gif"})
            return
        if self._file is None:
            self._file = self._open()
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
        tag = file.stem.rpartition("-")[0] or file.stem
        _write_event(
            self._file, step=step, summary=Summary(value=[Summary.Value(tag=tag, image=image)])
        )

    def close(self) -> None:
        """Close the event file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> BufferedWriter:
        try:
            from tensorboard.compat.proto.event_pb2 import SessionLog
        except ImportError as error:  # it is optional, and slow to import
            raise UserError("tensorboard is not installed: pip install tensorboard") from error
        file = self._new_file()
        _write_event(file, file_version="brain.Event:2")
        if self.purge_step is not None:
            # Readers forget every step >= that of a START event.
            start = SessionLog(status=SessionLog.START)
            _write_event(file, step=self.purge_step, session_log=start)
            for row in self._kept:
                self._write_row(file, self.purge_step, row)
        return file

    def _new_file(self) -> BufferedWriter:
        """TensorBoard reads files by name: a later one has a later second, whatever the clock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        second = int(time.time())
        for path in self.folder.glob("events.out.tfevents.*"):
            before = path.name.split(".")[3]
            second = max(second, int(before) + 1 if before.isdecimal() else 0)
        name = f"events.out.tfevents.{second:010d}.{gethostname()}.{os.getpid()}.0"
        return (self.folder / name).open("xb")

    def _write_row(self, file: BufferedWriter, step: int, row: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        # One event for the whole row: a quarter of the time that one for each metric would take.
        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        _write_event(file, step=step, summary=Summary(value=values))


def _write_event(file: BufferedWriter, **fields: object) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    RecordWriter(file).write(Event(wall_time=time.time(), **fields).SerializeToString())


def _reason(error: Exception) -> str:
    """The error in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
