"""Recorded episodes in a run's folder: arrays in safetensors, frames as PNG, and a manifest.

    recordings/step_000000050176-seed_0/
      manifest.json                 what was played, by which checkpoint, and a checksum per file
      episode_000.safetensors       one array per name, a row per step
      episode_000.frames            PNG files, one after the other; `frame_offset` says where

A recording may come from anywhere: names are checked, sizes are bounded, nothing is imported.
"""

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.core.errors import UserError
from rl_lab.records.commit import CorruptCheckpoint, commit_files, read_manifest, remove
from rl_lab.records.files import open_to_read
from rl_lab.records.run_directory import RunDirectory

Array = NDArray[Any]  # not from core.batch: a page that lists recordings needs no torch

FOLDER = "recordings"
EPISODES = "episodes"  # the field of a manifest
FRAME_OFFSET = "frame_offset"
MOST_EPISODES = 1000
MOST_BYTES = 1 << 30  # of one episode's arrays
_NAME = re.compile(r"step_\d{12}-seed_\d{1,20}(-sampled)?")


@dataclass(frozen=True)
class Episode:
    """One episode that was played: what it came to, its arrays, its frames as PNG."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, Array]  # [L] or [L + 1], a row per step
    frames: list[bytes]


def recording_name(step: int, seed: int, *, sampled: bool) -> str:
    """The same checkpoint, seed and way to act are the same recording."""
    return f"step_{step:012d}-seed_{seed}{'-sampled' if sampled else ''}"


def write_recording(
    run: RunDirectory, name: str, facts: Mapping[str, Any], episodes: list[Episode]
) -> Path:
    """Write a recording; one of the same name is replaced."""
    from safetensors.numpy import save

    payload: dict[str, bytes] = {}
    for number, episode in enumerate(episodes):
        arrays = {key: np.ascontiguousarray(value) for key, value in episode.arrays.items()}
        if episode.frames:
            ends = np.cumsum([0, *map(len, episode.frames)], dtype=np.int64)
            arrays[FRAME_OFFSET] = ends
            payload[frames_file(number)] = b"".join(episode.frames)
        payload[arrays_file(number)] = save(arrays)
    folder = run.path / FOLDER / name
    if folder.exists():
        remove(folder)
    manifest = {**facts, EPISODES: [dict(each.facts) for each in episodes]}
    commit_files(folder, payload, manifest=manifest)
    return folder


def arrays_file(number: int) -> str:
    """The arrays of an episode."""
    return f"episode_{number:03d}.safetensors"


def frames_file(number: int) -> str:
    """The pictures of an episode."""
    return f"episode_{number:03d}.frames"


def list_recordings(run: RunDirectory) -> list[dict[str, Any]]:
    """What was recorded of a run, by name; damaged ones are left out."""
    folder = run.path / FOLDER
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    found = []
    for name in sorted(names):
        try:
            found.append({"name": name, **read_recording(run, name)})
        except UserError:
            continue
    return found


def read_recording(run: RunDirectory, name: str) -> dict[str, Any]:
    """What a recording says about itself and its episodes."""
    folder = run.path / FOLDER / name
    if not _NAME.fullmatch(name) or not folder.is_dir():
        raise UserError(f"run {run.id} has no recording '{name[:80]}'")
    try:
        manifest = read_manifest(folder)
    except CorruptCheckpoint as error:
        raise UserError(f"recording {name} is damaged: {error}") from error
    episodes = manifest.get(EPISODES)
    if not isinstance(episodes, list) or len(episodes) > MOST_EPISODES:
        raise UserError(f"recording {name} is damaged: it lists no episodes")
    if not all(isinstance(each, dict) for each in episodes):
        raise UserError(f"recording {name} is damaged: an episode is no object")
    return {key: value for key, value in manifest.items() if key not in ("files", "sha256")}


def read_arrays(run: RunDirectory, name: str, number: int) -> dict[str, Array]:
    """All arrays of an episode."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = _file(run, name, number, arrays_file(number))
    try:
        with open_to_read(path) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise OSError(errno.EFBIG, "it is too large")
        return load(data)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UserError(f"recording {name}: {path.name} is damaged: {error}") from error


def read_row(run: RunDirectory, name: str, number: int, key: str, row: int) -> Array:
    """One row of one array, without reading the others."""
    from safetensors import SafetensorError, safe_open

    path = _file(run, name, number, arrays_file(number))
    try:
        with safe_open(path, "numpy") as file:
            if key not in file.keys():  # noqa: SIM118 - it is no mapping
                raise UserError(f"recording {name} has no '{key[:80]}'")
            rows = file.get_slice(key)
            if not 0 <= row < rows.get_shape()[0]:
                raise UserError(f"recording {name}: '{key}' has no step {row}")
            found: Array = np.asarray(rows[row])
            return found
    except (SafetensorError, OSError, ValueError, IndexError) as error:
        raise UserError(f"recording {name}: {path.name} is damaged: {error}") from error


def read_frames(run: RunDirectory, name: str, number: int) -> list[bytes]:
    """Every frame of an episode as PNG."""
    ends = read_arrays(run, name, number).get(FRAME_OFFSET, np.zeros(1)).tolist()
    return [_piece(run, name, number, *each) for each in pairwise(ends)]


def read_frame(run: RunDirectory, name: str, number: int, index: int) -> bytes:
    """One frame as PNG."""
    first = int(read_row(run, name, number, FRAME_OFFSET, index))
    last = int(read_row(run, name, number, FRAME_OFFSET, index + 1))
    return _piece(run, name, number, first, last)


def _piece(run: RunDirectory, name: str, number: int, first: int, last: int) -> bytes:
    path = _file(run, name, number, frames_file(number))
    try:
        with open_to_read(path) as file:
            if not 0 <= first <= last <= path.stat().st_size:
                raise OSError(errno.EINVAL, "a frame lies outside of the file")
            file.seek(first)
            return file.read(last - first)
    except OSError as error:
        raise UserError(f"recording {name}: {path.name} is damaged: {error.strerror}") from error


def _file(run: RunDirectory, name: str, number: int, file: str) -> Path:
    """A file of an episode; it must be a plain file of the recording itself."""
    read_recording(run, name)
    path = run.path / FOLDER / name / file
    if path.is_symlink() or not path.is_file():
        raise UserError(f"recording {name} has no episode {number}, or no frames of it")
    return path
