"""Datasets in LeRobot's layout of parquet files, in and out, with pyarrow alone.

    meta/info.json             features, counts, where an episode's file is
    meta/episodes.jsonl        index and length of every episode
    meta/tasks.jsonl           one task: the environment's id
    data/chunk-000/episode_000000.parquet

That layout has one row for a frame that was acted on, and none for the last frame. Ours adds
`next.observation.state`, `next.terminated` and `next.truncated`, so that nothing is lost. Files
without them lose the last transition of each episode: nobody knows where it led to.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.about import action_space, actions_of
from rl_lab.buffers.segments import write_durably
from rl_lab.buffers.storage import layout
from rl_lab.buffers.walk import Episode
from rl_lab.core.batch import ACTION, OBS, Array
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, EnvSpec
from rl_lab.datasets.folder import Tell, silent
from rl_lab.datasets.sources import INHERITED, Source, actions_like, unbounded
from rl_lab.records.files import read_bounded

VERSION = "v2.1"
CHUNK = 1000  # episodes in a folder
STATE, NEXT_STATE = "observation.state", "next.observation.state"
FILE = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
FPS = 50
MOST_TEXT = 2**28  # bytes of a list of episodes


def library() -> tuple[Any, Any]:
    """pyarrow and its reader of parquet files, or how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet

        return pyarrow, pyarrow.parquet
    except ImportError:
        raise UserError("this needs pyarrow: pip install 'rl-lab[lerobot]'") from None


def write_lerobot(source: Source, folder: Path, tell: Tell = silent) -> None:
    """A new folder in that layout."""
    pyarrow, parquet = library()
    observation = source.spec.observation
    if not isinstance(observation, Box) or len(observation.shape) != 1:
        raise UserError(f"{source.where}: LeRobot's layout takes observations that are one vector")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} exists: choose another name, or delete it")
    lengths: list[int] = []
    total = 0
    for number, episode in enumerate(source.episodes()):
        rows = len(episode)
        terminated, truncated = episode.flags()
        state = episode.frames[OBS]
        steps = np.arange(rows)
        columns = {
            STATE: _lists(pyarrow, state[:-1]),
            ACTION: _lists(pyarrow, episode.action.reshape(rows, -1)),
            "next.reward": pyarrow.array(episode.reward),
            "next.done": pyarrow.array(steps == rows - 1),
            NEXT_STATE: _lists(pyarrow, state[1:]),
            "next.terminated": pyarrow.array(terminated),
            "next.truncated": pyarrow.array(truncated),
            "timestamp": pyarrow.array((steps / FPS).astype(np.float32)),
            "frame_index": pyarrow.array(steps),
            "episode_index": pyarrow.array(np.full(rows, number)),
            "index": pyarrow.array(total + steps),
            "task_index": pyarrow.array(np.zeros(rows, np.int64)),
        }
        file = folder / FILE.format(episode_chunk=number // CHUNK, episode_index=number)
        file.parent.mkdir(parents=True, exist_ok=True)
        table = pyarrow.table(columns)
        write_durably(file, partial(parquet.write_table, table))
        lengths.append(rows)
        total += rows
        tell(number + 1, 0)
    if not lengths:
        raise UserError(f"{source.where} has no whole episode")
    _write_meta(source, folder, lengths, total)


def _lists(pyarrow: Any, rows: Array) -> Any:
    """[L, D] as a column of lists of D numbers."""
    flat = pyarrow.array(np.ascontiguousarray(rows).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def _write_meta(source: Source, folder: Path, lengths: list[int], total: int) -> None:
    kinds = layout(source.spec)
    size = int(np.prod(kinds[ACTION][0])) if kinds[ACTION][0] else 1
    state, action = np.dtype(kinds[OBS][1]).name, np.dtype(kinds[ACTION][1]).name

    def feature(kind: str, count: int) -> dict[str, Any]:
        return {"dtype": kind, "shape": [count], "names": None}

    (width,) = kinds[OBS][0]
    features = {
        STATE: feature(state, width),
        ACTION: feature(action, size),
        "next.reward": feature("float32", 1),
        "next.done": feature("bool", 1),
        NEXT_STATE: feature(state, width),
        "next.terminated": feature("bool", 1),
        "next.truncated": feature("bool", 1),
        "timestamp": feature("float32", 1),
        **{
            name: feature("int64", 1)
            for name in ("frame_index", "episode_index", "index", "task_index")
        },
    }
    info = {
        "codebase_version": VERSION,
        "robot_type": "simulated",
        "fps": FPS,
        "total_episodes": len(lengths),
        "total_frames": total,
        "total_tasks": 1,
        "total_videos": 0,
        "total_chunks": -(-len(lengths) // CHUNK),
        "chunks_size": CHUNK,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": FILE,
        "video_path": None,
        "features": features,
        "rl_lab": {
            "environment": source.spec.id,
            "columns": {
                name: {"shape": list(shape), "dtype": np.dtype(kind).name}
                for name, (shape, kind) in kinds.items()
            },
            "actions": actions_of(source.actions),
            "facts": source.facts,
        },
    }
    tasks = [{"task_index": 0, "task": source.spec.id}]
    episodes = [
        {"episode_index": number, "tasks": [source.spec.id], "length": length}
        for number, length in enumerate(lengths)
    ]
    meta = folder / "meta"
    meta.mkdir(exist_ok=True)
    for name, lines in (("tasks.jsonl", tasks), ("episodes.jsonl", episodes)):
        _write_text(meta / name, "".join(json.dumps(line) + "\n" for line in lines))
    _write_text(meta / "info.json", json.dumps(info, indent=1))  # last: now it is whole


def _write_text(path: Path, text: str) -> None:
    write_durably(path, lambda sink: sink.write(text.encode()))


def read_lerobot(folder: Path) -> Source:
    """The episodes of such a folder; of another writer's, as far as its columns go."""
    library()
    try:
        info = json.loads(read_bounded(folder / "meta" / "info.json"))
        text = read_bounded(folder / "meta" / "episodes.jsonl", MOST_TEXT)
        listed = [int(json.loads(line)["episode_index"]) for line in text.splitlines() if line]
        size = int(info["chunks_size"])
        version = str(info["codebase_version"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{folder} is damaged: meta/: {error}") from error
    if not version.startswith("v2"):
        raise UserError(f"{folder} has LeRobot's layout {version}, known is v2")
    if not listed:
        raise UserError(f"{folder} has no episodes")
    # Not `data_path`: a name in a file is no place to read from.
    files = [
        folder / FILE.format(episode_chunk=number // max(size, 1), episode_index=number)
        for number in listed
    ]
    found = info.get("rl_lab")
    own: dict[str, Any] = found if isinstance(found, dict) else {}
    first = _read(files[0], None)
    kind = first.frames[OBS].dtype
    observation = unbounded(first.frames[OBS].shape[1:], kind)
    actions = action_space(own, folder / "meta" / "info.json") if own.get("columns") else None
    if actions is None:
        actions = actions_like([_read(file, None).action for file in files])
    spec = EnvSpec(str(own.get("environment", folder.name)), observation, actions)

    def episodes() -> Iterator[Episode]:
        for file in files:
            yield _read(file, spec)

    told = own.get("facts")
    facts = (
        {name: told[name] for name in INHERITED if name in told} if isinstance(told, dict) else {}
    )
    return Source(str(folder), spec, actions, episodes, facts)


def _read(file: Path, spec: EnvSpec | None) -> Episode:
    pyarrow, parquet = library()
    try:
        table = parquet.read_table(file, memory_map=False)
        there = set(table.column_names)
        for name in (STATE, ACTION, "next.reward"):
            if name not in there:
                raise UserError(f"{file} has no '{name}'")
        state, action = (_rows(table[name]) for name in (STATE, ACTION))
        reward = table["next.reward"].to_numpy().astype(np.float32)
        if NEXT_STATE in there:
            frames = np.concatenate([state, _rows(table[NEXT_STATE])[-1:]])
        else:  # where the last step led to is not known
            frames, action, reward = state, action[:-1], reward[:-1]
        ended = "next.terminated" in there and bool(table["next.terminated"][-1].as_py())
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{file} is damaged: {str(error).partition(chr(10))[0]}") from error
    if action.shape[1:] == (1,) and action.dtype.kind in "iu":
        action = action[:, 0]
    if spec is not None:
        (shape, kind) = layout(spec)[ACTION]
        action = action.reshape(len(action), *shape).astype(kind)
    return Episode({OBS: frames}, action, reward, ended)


def _rows(column: Any) -> Array:
    """A column of lists, all equally long, as [L, D]."""
    whole = column.combine_chunks()
    flat: Array = whole.flatten().to_numpy(zero_copy_only=False)
    if len(whole) == 0 or flat.size % len(whole):
        raise UserError("a column of lists is not equally long everywhere")
    return flat.reshape(len(whole), -1)
