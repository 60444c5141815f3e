"""Recorded episodes as data for the inspector, and processes that record new ones."""

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any, NamedTuple

import numpy as np

from rl_lab.core.errors import UserError
from rl_lab.display.png import decode_png, encode_png
from rl_lab.records.formatting import visible
from rl_lab.records.recordings import FRAME_OFFSET, Array, read_arrays, read_frames, read_row
from rl_lab.records.run_directory import RunDirectory

MOST_SHOWN = 64  # numbers of one part of an observation, of one step
MOST_NUMBERS = 4_000_000  # of one episode
PICTURE_AXES, SMALLEST = 3, 8  # [C, H, W]: as many pixels at least are a picture
GAP = 2  # pixels between the frames of a stack
MOST_RECORDERS = 2
OUTPUT_BYTES = 4096


def episode(run: RunDirectory, name: str, number: int) -> dict[str, Any]:
    """Every number of an episode: lists by name, and the names of what is shown as pictures."""
    arrays = read_arrays(run, name, number)
    frames = len(arrays.pop(FRAME_OFFSET, [0])) - 1
    numbers: dict[str, Any] = {}
    pictures, cut, total = [], {}, 0
    for key, rows in sorted(arrays.items()):
        if is_picture(rows[:1]):
            pictures.append(key)
            continue
        flat = rows.reshape(len(rows), -1)
        if flat.shape[1] > MOST_SHOWN:
            cut[key] = flat.shape[1]
        shown = flat[:, :MOST_SHOWN]
        total += shown.size
        if total > MOST_NUMBERS:
            raise UserError(f"recording {name}: episode {number} has too many numbers for a page")
        numbers[key] = _plain(shown if rows.ndim > 1 else rows)
    return {"numbers": numbers, "pictures": pictures, "cut": cut, "frames": frames}


def is_picture(rows: Array) -> bool:
    """Whether rows [L, C, H, W] are pictures, or a stack of gray ones."""
    return rows.ndim == PICTURE_AXES + 1 and min(rows.shape[2:]) >= SMALLEST


def picture(run: RunDirectory, name: str, number: int, key: str, step: int) -> bytes:
    """A part of an observation as PNG: in color, or the frames of a stack side by side."""
    row = read_row(run, name, number, key, step)
    if not is_picture(row[None]):
        raise UserError(f"recording {name}: '{key[:80]}' is no picture")
    if row.dtype != np.uint8:  # in [0, 1]
        row = (np.nan_to_num(row).clip(0.0, 1.0) * 255).round().astype(np.uint8)
    if len(row) == 3:
        return encode_png(np.ascontiguousarray(row.transpose(1, 2, 0)))
    padded = np.pad(row, ((0, 0), (0, 0), (0, GAP)))
    strip = padded.transpose(1, 0, 2).reshape(row.shape[1], -1)[:, :-GAP, None]
    return encode_png(np.ascontiguousarray(strip))


def film(run: RunDirectory, name: str, number: int, fps: float) -> tuple[str, bytes]:
    """All frames of an episode as a film: its ending, and its bytes."""
    from rl_lab.display.video import film_suffix, whole_film  # here: the page needs no torch

    frames = [decode_png(each) for each in read_frames(run, name, number)]
    if not frames:
        raise UserError(f"recording {name}: the environment draws nothing, so there is no film")
    suffix = film_suffix()
    return suffix, whole_film(frames, suffix, min(max(fps, 1.0), 120.0))


def _plain(rows: Array) -> list[Any]:
    """Lists of JSON: seven digits, and null where a number is not finite."""
    if rows.dtype.kind in "iub":
        found: list[Any] = rows.tolist()
        return found
    values = [
        float(f"{value:.7g}") if math.isfinite(value) else None for value in rows.ravel().tolist()
    ]
    if rows.ndim == 1:
        return values
    width = rows.shape[1]
    return [values[start : start + width] for start in range(0, len(values), width)]


# ------------------------------------------------------------------------------------ recording


class Recorder(NamedTuple):
    """A process that records, and the file of its messages: a full pipe would stop it."""

    process: subprocess.Popen[bytes]
    messages: IO[bytes]


@dataclass
class Recorders:
    """Processes that record, by the folder of their run. They die with the server."""

    root: Path
    running: dict[str, Recorder] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # why the last one of a run did
    lock: Lock = field(default_factory=Lock)

    def start(self, run: RunDirectory, asked: Mapping[str, Any]) -> None:
        """`rl-lab record` of a checkpoint, in a process of its own that trusts no foreign run."""
        words = command(run, asked)
        with self.lock:
            self._collect()
            if run.path.name in self.running:
                raise UserError("this run is being recorded already")
            if len(self.running) >= MOST_RECORDERS:
                raise UserError(f"{MOST_RECORDERS} recordings at a time are enough")
            self.failed.pop(run.path.name, None)
            messages = TemporaryFile()  # noqa: SIM115 - it is open while the process runs
            process = subprocess.Popen(
                [sys.executable, "-m", "rl_lab", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages,
            )
            self.running[run.path.name] = Recorder(process, messages)

    def state(self, run: RunDirectory) -> dict[str, Any]:
        """Whether a run is being recorded, and what went wrong the last time."""
        with self.lock:
            self._collect()
            name = run.path.name
            return {"recording": name in self.running, "error": self.failed.get(name)}

    def stop(self) -> None:
        """End all of them."""
        with self.lock:
            for each in self.running.values():
                each.process.terminate()
            for each in self.running.values():
                each.process.wait(timeout=30)
                each.messages.close()
            self.running.clear()

    def _collect(self) -> None:
        for name, (process, messages) in list(self.running.items()):
            if process.poll() is not None:
                del self.running[name]
                with messages:
                    messages.seek(max(messages.seek(0, os.SEEK_END) - OUTPUT_BYTES, 0))
                    said = messages.read().decode(errors="replace").strip()
                if process.returncode:
                    last = said.splitlines()[-1] if said else f"exit code {process.returncode}"
                    self.failed[name] = visible(last.removeprefix("error: "))


def command(run: RunDirectory, asked: Mapping[str, Any]) -> list[str]:
    """The words that record what a page asks for; a `UserError` if it asks for something odd."""
    limits = {"step": 10**15, "episodes": 100, "seed": 2**32, "max_steps": 100_000}
    numbers = {key: asked[key] for key in limits if asked.get(key) is not None}
    for key, value in numbers.items():
        least = 0 if key in ("step", "seed") else 1
        if type(value) is not int or not least <= value <= limits[key]:
            raise UserError(f"{key} must be a whole number from {least} to {limits[key]:,}")
    if unknown := sorted(set(asked) - {*limits, "sample"}):
        raise UserError(f"there is no '{str(unknown[0])[:80]}' to ask for")
    # The absolute path of its folder: a name that begins with a dash would be an option.
    which = f":{numbers.pop('step')}" if "step" in numbers else ""
    words = ["record", f"{run.path.resolve()}{which}", "--runs-dir", str(run.path.resolve().parent)]
    for key, value in numbers.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    return [*words, "--sample"] if asked.get("sample") is True else words
