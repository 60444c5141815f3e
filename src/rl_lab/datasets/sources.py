"""Where episodes come from: our own folders, plain .npz files, Minari, LeRobot. All look alike."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.about import action_space
from rl_lab.buffers.datasets import MINARI, as_trajectory, find_data, read_arrays
from rl_lab.buffers.disk_ring import ABOUT
from rl_lab.buffers.segments import SUFFIX
from rl_lab.buffers.storage import Ring
from rl_lab.buffers.walk import Episode, episodes_of
from rl_lab.core.batch import ACTION, OBS, REWARD, Array
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec, MultiDiscrete, Space
from rl_lab.datasets.folder import Folder

INHERITED = ("behavior", "environment_options", "provenance", "references")


@dataclass(frozen=True)
class Source:
    """Episodes, and what is known of them."""

    where: str
    spec: EnvSpec
    actions: Space  # with the environment's own bounds
    episodes: Callable[[], Iterator[Episode]]
    facts: dict[str, Any] = field(default_factory=dict)


def open_source(name: str) -> Source:
    """What is behind a name, a path, or `minari:NAME`."""
    if name.startswith(MINARI):
        from rl_lab.datasets.minari import read_minari

        return read_minari(name)
    path = find_data(name)
    if (path / ABOUT).exists():
        return own_source(Folder.open(name))
    if (path / "meta" / "info.json").exists():
        from rl_lab.datasets.lerobot import read_lerobot

        return read_lerobot(path)
    return _plain(path)


def own_source(folder: Folder) -> Source:
    """A dataset of ours; also of a disk buffer, whose actions are those of its policy."""
    facts = {name: folder.about[name] for name in INHERITED if name in folder.about}
    bounds = action_space(folder.about, folder.path / ABOUT) or folder.spec.action
    return Source(str(folder.path), folder.spec, bounds, folder.episodes, facts)


def _plain(path: Path) -> Source:
    """.npz files; what they do not say is read from the numbers."""
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path} has no {SUFFIX} files")
    spec = _guessed(path, files)

    def episodes() -> Iterator[Episode]:
        for file in files:
            trajectory = as_trajectory(read_arrays(file), spec, str(file))
            ring = Ring(spec, len(trajectory[REWARD]), 1)
            ring.add(trajectory)
            ring.end()
            yield from episodes_of(ring)

    return Source(str(path), spec, spec.action, episodes)


def _guessed(path: Path, files: list[Path]) -> EnvSpec:
    arrays = read_arrays(files[0])
    if ACTION not in arrays or REWARD not in arrays:
        missing = ACTION if ACTION not in arrays else REWARD
        raise UserError(f"{files[0]} has no '{missing}'")
    parts: dict[str, Space] = {
        name: unbounded(rows.shape[1:], rows.dtype)
        for name, rows in arrays.items()
        if name.partition("/")[0] == OBS
    }
    if not parts:
        raise UserError(f"{files[0]} has no '{OBS}'")
    named = {name.removeprefix(f"{OBS}/"): each for name, each in parts.items()}
    observation = parts[OBS] if OBS in parts else Dict(named)
    highest = [read_arrays(file, [ACTION])[ACTION] for file in files]
    return EnvSpec(path.stem, observation, actions_like(highest))


def unbounded(shape: tuple[int, ...], kind: np.dtype[Any]) -> Box:
    """A Box of numbers of this type."""
    kind = np.dtype(np.float32) if kind.kind == "f" and kind.itemsize < 4 else np.dtype(kind)
    if kind.kind == "f":
        low, high = -np.inf, np.inf
    else:
        low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return Box(shape, kind, np.full(shape, low, kind), np.full(shape, high, kind))


def actions_like(arrays: list[Array]) -> Space:
    """The smallest space that has all of these actions [L, …]; a Box has no bounds."""
    first = arrays[0]
    if first.dtype.kind == "f":
        return unbounded(first.shape[1:], np.dtype(np.float32))
    most = np.max([each.reshape(len(each), -1).max(0) for each in arrays if len(each)], 0) + 1
    if first.ndim == 1:
        return Discrete(int(most[0]))
    return MultiDiscrete(tuple(int(each) for each in most))
