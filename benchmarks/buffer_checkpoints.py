"""What a checkpoint costs when a replay buffer is large: only what is new should be written.

    python benchmarks/buffer_checkpoints.py [--sizes 100 1000 4000] [--repeats 3] [--output FILE]

A full uniform replay buffer of each size (in MB) gets 10 MB of new transitions between checkpoints,
which overwrite its oldest ones. Every point is a process of its own: its peak memory is its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.benchmarking.measure import interleave, spread
from rl_lab.benchmarking.report import Report, destination, measured, save
from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.buffers.storage import layout, row_bytes
from rl_lab.cli.bench import Columns, as_text
from rl_lab.cli.printing import warn
from rl_lab.core.batch import ACTION, NEXT_OBS, OBS, RESET, REWARD, TERMINATED, TRUNCATED, Batch
from rl_lab.core.errors import RunError
from rl_lab.core.protocols import BufferSetup
from rl_lab.core.schema import CheckpointConfig
from rl_lab.core.spec import Box, EnvSpec
from rl_lab.records.checkpoint import CheckpointStore

MB = 10**6
SIZES = [100, 1_000, 4_000]
NEW = 10  # MB between two checkpoints
CHECKPOINTS = 8
ENVS, EPISODE = 8, 200  # steps
Found = dict[str, Any]


def box(size: int) -> Box:
    bound = np.ones(size, np.float32)
    return Box((size,), bound.dtype, -bound, bound)


SPEC = EnvSpec("bench", box(376), box(17))  # the sizes of Humanoid-v5's joints
ROW = row_bytes(layout(SPEC))


# ------------------------------------------------- one point, in a process of its own


def point(megabytes: int, checkpoints: int = CHECKPOINTS, new: float = NEW) -> Found:
    """A full buffer of this size: the first checkpoint, later ones, and the way back."""
    config = UniformConfig(capacity=int(megabytes * MB / ROW))
    setup = BufferSetup(SPEC, ENVS, np.random.default_rng(0))
    buffer, source = UniformReplay(config, setup), np.random.default_rng(1)
    steps = max(int(new * MB / ROW / ENVS), 1)
    while len(buffer) < config.capacity // ENVS * ENVS:
        buffer.add(trajectory(source, steps))
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        store = CheckpointStore(Path(folder), CheckpointConfig(keep_last=2))
        first, _ = timed(store, buffer, 0)
        seconds, written = [], []
        for number in range(1, checkpoints + 1):
            buffer.add(trajectory(source, steps))
            spent, size = timed(store, buffer, number)
            seconds.append(spent)
            written.append(size / (steps * ENVS * ROW))
        saving = peak_mb()
        started = time.perf_counter()
        buffer.load_state_dict(store.load()[0]["buffer"])
        restoring = time.perf_counter() - started
    return {
        "seconds": spread(seconds).median,
        "slowest": max(seconds),
        "written_to_new": max(written),
        "first_seconds": first,
        "restore_seconds": restoring,
        "peak_mb": saving,
    }


def trajectory(source: np.random.Generator, steps: int) -> Batch:
    """Random transitions [T, N, …]; all episodes end together."""
    frames = source.random((steps + 1, ENVS, 376), np.float32)
    ended = np.zeros((steps, ENVS), bool)
    ended[EPISODE - 1 :: EPISODE] = True
    return {
        OBS: frames[:-1],
        NEXT_OBS: frames[1:],
        ACTION: source.random((steps, ENVS, 17), np.float32),
        REWARD: source.random((steps, ENVS), np.float32),
        TERMINATED: ended,
        TRUNCATED: np.zeros_like(ended),
        RESET: np.roll(ended, 1, axis=0),
    }


def timed(store: CheckpointStore, buffer: UniformReplay, step: int) -> tuple[float, int]:
    """The seconds of one checkpoint, and the bytes of all files that are new after it."""
    before = set(contents(store.directory))
    started = time.perf_counter()
    store.save(step, {"buffer": buffer.state_dict()})
    spent = time.perf_counter() - started
    after = contents(store.directory)
    return spent, sum(size for file, size in after.items() if file not in before)


def contents(folder: Path) -> dict[tuple[str, int], int]:
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {(str(path), path.stat().st_ino): path.stat().st_size for path in found}


def peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 if sys.platform != "darwin" else 1024**2)  # kilobytes; bytes on a Mac


def fresh(megabytes: int) -> Found:
    """One point, measured in a new process."""
    words = [sys.executable, __file__, "--point", str(megabytes)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{megabytes} MB: {done.stderr.strip().splitlines()[-1]}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


# ---------------------------------------------------------------------- all of them


def bench(sizes: list[int], repeats: int) -> Report:
    samples = interleave({str(size): partial(fresh, size) for size in sizes}, repeats, warn)
    smallest = [each["seconds"] for each in samples[str(sizes[0])]]
    rows = []
    for size in sizes:
        found = samples[str(size)]
        own = [each["seconds"] for each in found]
        middle = {name: spread([each[name] for each in found]).median for name in found[0]}
        row = measured(f"buffer of {size:,} MB", own, (own, smallest))
        rows.append(row | {"megabytes": size} | middle)
    return Report(
        benchmark="buffer_checkpoints",
        title=f"A checkpoint with {NEW} MB of new transitions in a full replay buffer",
        unit="seconds per checkpoint",
        ratio_means=f"to the buffer of {sizes[0]} MB",
        rows=rows,
        settings={"sizes": sizes, "new_mb": NEW, "checkpoints": CHECKPOINTS, "repeats": repeats},
        notes=[
            f"a point is the median of {CHECKPOINTS} checkpoints, every file fsynced",
            "written/new: bytes of all new files to bytes of the new transitions; the worst of all",
            "peak: of the process after its checkpoints, the buffer itself included",
        ],
    )


COLUMNS: Columns = {
    "slowest s": lambda row: round(row["slowest"], 3),
    "written/new": lambda row: round(row["written_to_new"], 3),
    "first s": lambda row: round(row["first_seconds"], 2),
    "restore s": lambda row: round(row["restore_seconds"], 2),
    "peak MB": lambda row: round(row["peak_mb"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of the buffer, in MB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/…")
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)  # how it calls itself
    options = parser.parse_args()
    if options.point:
        print(json.dumps(point(options.point)))
        return
    file = destination("buffer_checkpoints", options.output)
    report = bench(options.sizes, options.repeats)
    print(as_text(report, COLUMNS))
    if file is not None:
        warn(f"written: {', '.join(map(str, save(report, file)))}")


if __name__ == "__main__":
    main()
