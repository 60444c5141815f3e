"""Datasets that others have collected, as trajectories [T, 1, …] of one environment.

A path is one .npz file or a folder of them, each with transitions in time order:

    obs         [T, …]   or obs/camera, obs/arm, … where observations are dicts
    action      [T, …]   as the algorithm's policy would give them
    reward      [T]
    terminated  [T]
    truncated   [T]      may be missing: nothing was cut off
    next_obs    [T, …]   may be missing where obs is [T + 1, …]: one episode with its final frame

`minari:NAME` is a dataset of the Minari library; its actions are brought to the algorithm's units.

A path that does not exist is the name of a dataset of ours: a folder in `datasets/`, or wherever
RL_LAB_DATASETS says. Files may come from anywhere: nothing in them is run, no name in them is a
place to write or read, and what they claim to hold must fit into them and into memory.
"""

import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_lab.buffers.about import fits
from rl_lab.buffers.ram import require_more
from rl_lab.buffers.segments import SUFFIX, opened
from rl_lab.buffers.storage import frame_layout, layout
from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Batch,
)
from rl_lab.core.chunks import Columns
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.core.spec import Box, Dict, EnvSpec
from rl_lab.core.tree import named_leaves

MINARI = "minari:"
ROOT_VARIABLE, ROOT = "RL_LAB_DATASETS", "datasets"


@dataclass(frozen=True)
class Dataset:
    """How many transitions, and a way to read them, file by file."""

    rows: int
    trajectories: Callable[[], Iterator[Batch]]


def datasets_root() -> Path:
    """Where datasets with a name are."""
    return Path(os.environ.get(ROOT_VARIABLE) or ROOT).expanduser()


def find_data(path: str) -> Path:
    """The file or folder behind a path or a name."""
    there, root = Path(path).expanduser(), datasets_root()
    if there.exists() or there.is_absolute() or ".." in there.parts:
        return there
    if (root / there).exists():
        return root / there
    known = [str(each.parent.relative_to(root)) for each in sorted(root.glob("**/dataset.json"))]
    hint = did_you_mean(path, known)
    raise UserError(
        f"{path} is missing: neither a file, nor a folder, nor a name in {root}{hint}"
    ) from FileNotFoundError(path)


def open_dataset(path: str, spec: EnvSpec) -> Dataset:
    """What is behind a path, for an environment that looks like this."""
    found = _minari(path, spec) if path.startswith(MINARI) else _files(find_data(path), spec)
    if found.rows == 0:
        raise UserError(f"{path} has no transitions")
    return found


def _files(path: Path, spec: EnvSpec) -> Dataset:
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path} has no {SUFFIX} files")

    def trajectories() -> Iterator[Batch]:
        for file in files:
            yield as_trajectory(read_arrays(file), spec, str(file))

    rows = sum(len(read_arrays(file, [REWARD])[REWARD]) for file in files)
    return Dataset(rows, trajectories)


def _minari(path: str, spec: EnvSpec) -> Dataset:
    try:
        import minari
    except ImportError:
        raise UserError(f"{path} needs Minari: pip install 'rl-lab[minari]'") from None

    name = path.removeprefix(MINARI)
    try:
        dataset = minari.load_dataset(name)
    except FileNotFoundError:
        raise UserError(f"{name} is not on this machine: minari download {name}") from None

    def trajectories() -> Iterator[Batch]:
        for episode in dataset.iterate_episodes():
            arrays = dict(named_leaves({OBS: episode.observations}))
            arrays[ACTION] = in_units_of(spec, dataset.action_space, episode.actions)
            arrays |= {REWARD: episode.rewards, TERMINATED: episode.terminations}
            arrays[TRUNCATED] = episode.truncations
            yield as_trajectory(arrays, spec, f"{path}, episode {episode.id}")

    return Dataset(int(dataset.total_steps), trajectories)


def in_units_of(spec: EnvSpec, space: Any, action: Array) -> Array:
    """Actions between the bounds of a dataset, between those of the algorithm."""
    own = spec.action
    if not isinstance(own, Box) or not own.bounded or not np.isfinite(space.high).all():
        return action
    share = (action - space.low) / (space.high - space.low)
    scaled: Array = own.low + share * (own.high - own.low)
    return scaled


def read_arrays(path: Path, names: list[str] | None = None) -> Columns:
    """The arrays of an .npz file, or those with these names; nothing in it is ever run."""
    with opened(path) as archive:
        there = [each.removesuffix(".npy") for each in archive.namelist()]
        for name in names or []:
            if name not in there:
                raise UserError(f"{path} has no '{name}'{did_you_mean(name, there)}")
        return {name: _array_in(archive, name, path) for name in names or there}


def _array_in(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    """One array, if it is as large as its header says and memory has room for it."""
    info = archive.getinfo(f"{name}.npy")
    try:
        with archive.open(info) as file:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0}
            read[(2, 0)] = np.lib.format.read_array_header_2_0
            if version not in read:
                raise ValueError("its version is not known")
            shape, _, kind = read[version](file)
            if kind.hasobject:
                raise ValueError("it holds Python objects, which are never loaded")
            if file.tell() + kind.itemsize * math.prod(shape) != info.file_size:
                raise ValueError("its header does not fit its size")
        require_more(info.file_size, f"{path}: the numbers of '{name}'")
        with archive.open(info) as file:
            found: Array = np.lib.format.read_array(file, allow_pickle=False)
            return found
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged: '{name}': {error}") from error


def as_trajectory(arrays: Columns, spec: EnvSpec, where: str) -> Batch:
    """Arrays [T, …] as what a collector would have brought, [T, 1, …]; `where` is for errors."""
    steps = len(arrays[REWARD])
    arrays = {TRUNCATED: np.zeros(steps, np.bool_), **arrays}
    frames = frame_layout(spec)
    after = {name: name.replace(OBS, NEXT_OBS, 1) for name in frames}
    derived = not set(after.values()) <= set(arrays)
    for name, follower in after.items():
        if follower not in arrays and len(arrays.get(name, ())) == steps + 1:
            arrays[follower], arrays[name] = arrays[name][1:], arrays[name][:-1]
    wanted = layout(spec) | {after[name]: rows for name, rows in frames.items()}
    rows: Columns = {}
    for name, (shape, kind) in wanted.items():
        if name not in arrays:
            raise UserError(f"{where} has no '{name}'{did_you_mean(name, arrays)}")
        found = arrays[name]
        if found.shape != (steps, *shape) or not fits(found.dtype, np.dtype(kind)):
            raise UserError(
                f"{where}: '{name}' is {found.dtype} {list(found.shape)}, "
                f"{spec.id} needs {np.dtype(kind)} {[steps, *shape]}"
            )
        rows[name] = np.ascontiguousarray(found, dtype=kind)
    _check_bounds(rows[ACTION], spec, where)
    begins = np.ones(steps, np.bool_)
    begins[1:] = (rows[TERMINATED] | rows[TRUNCATED])[:-1]
    if derived and begins[1:].any():
        raise UserError(
            f"{where} has several episodes and no '{NEXT_OBS}': their final frames would be "
            "missing; give it, or a file for every episode"
        )
    for name, follower in after.items():  # a file may have gaps
        differs = rows[name][1:] != rows[follower][:-1]
        begins[1:] |= differs.any(axis=tuple(range(1, differs.ndim)))
    tensors = {name: torch.from_numpy(each[:, None]) for name, each in rows.items()}
    batch: Batch = {name: tensors[name] for name in (ACTION, REWARD, TERMINATED, TRUNCATED)}
    batch[RESET] = torch.from_numpy(begins[:, None])
    if isinstance(spec.observation, Dict):
        for key, names in ((OBS, list(frames)), (NEXT_OBS, list(after.values()))):
            batch[key] = {name.removeprefix(f"{key}/"): tensors[name] for name in names}
        return batch
    return batch | {OBS: tensors[OBS], NEXT_OBS: tensors[NEXT_OBS]}


def _check_bounds(action: Array, spec: EnvSpec, where: str) -> None:
    own = spec.action
    if isinstance(own, Box) and own.bounded:
        slack = 1e-4 * (own.high - own.low)  # rounding
        if (action < own.low - slack).any() or (action > own.high + slack).any():
            raise UserError(
                f"{where}: actions go from {action.min():g} to {action.max():g}, the algorithm's "
                f"from {own.low.min():g} to {own.high.max():g}: bring them to these units"
            )
