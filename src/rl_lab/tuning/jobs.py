"""The runs of a sweep: one process for each, which is continued when it was killed.

A run is found again by its name, so nothing has to be remembered: what is finished is not run
again, what was killed is resumed bit for bit, what never began is begun.
"""

import fcntl
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl_lab.core.errors import UserError
from rl_lab.records.metrics import iterate_metrics
from rl_lab.records.run_directory import RunDirectory, folder_name
from rl_lab.tuning.processes import TRAIN, launch
from rl_lab.tuning.sweep_file import Objective, Sweep
from rl_lab.tuning.tuner import Suggestion

FINISHED = "finished"
RESAMPLES = 2_000  # of the bootstrap
MOST_DEATHS = 20  # of one run, by signals: then something kills it again and again


class Pair(NamedTuple):
    """One run of a sweep: a trial with a seed."""

    trial: Suggestion
    seed: int


@dataclass
class Job:
    """A process that is at work on a pair."""

    pair: Pair
    process: subprocess.Popen[bytes]
    slot: int
    log: Path


def run_name(sweep: Sweep, pair: Pair) -> str:
    """What the run of a pair is called: the same whenever it is asked for."""
    return f"{sweep.name}-{sweep.label(pair.trial)}-s{pair.seed}"


def find(root: Path, name: str) -> RunDirectory | None:
    """The run of this name, if it has begun; of several (there should be one) a finished one."""
    found = [
        run
        for path in sorted(root.glob(f"{folder_name(name)}-????????-??????-??????"))
        if (run := RunDirectory(path)).config_file.exists()
    ]
    return next((run for run in found if is_finished(run)), found[-1] if found else None)


def is_finished(run: RunDirectory) -> bool:
    """Whether there is nothing left to do."""
    try:
        return run.read_summary().get("status") == FINISHED
    except UserError:  # a summary that cannot be read: the run writes it again
        return False


def is_held(run: RunDirectory) -> bool:
    """Whether a process is still at it: one of a driver that was killed saves before it ends."""
    try:
        descriptor = os.open(run.lock_file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def command(sweep: Sweep, pair: Pair, root: Path, overrides: Sequence[str]) -> list[str]:
    """The words that begin the run of a pair, or continue it."""
    if (run := find(root, run_name(sweep, pair))) is not None:
        return [*TRAIN, "--resume", str(run.path), "--runs-dir", str(root), "-q"]
    start = sweep.experiment(pair.trial.settings)[0]
    base = ["--config", start] if start.endswith((".yaml", ".yml")) else [start]
    own = ["--seed", str(pair.seed), "--runs-dir", str(root), "-q"]
    return [*TRAIN, *base, f"experiment.name={run_name(sweep, pair)}", *overrides, *own]


def start(
    sweep: Sweep, pair: Pair, root: Path, overrides: Sequence[str], slot: int, log: Path
) -> Job:
    """A process of its own, on cores of its own; it saves and ends if this process dies."""
    words = command(sweep, pair, root, overrides)
    with log.open("ab") as output:
        process = launch(
            words, slot=slot, threads=sweep.threads, stdout=output, stderr=subprocess.STDOUT
        )
    return Job(pair, process, slot, log)


def curve(run: RunDirectory, metric: str) -> dict[int, float]:
    """A metric by environment step."""
    rows = iterate_metrics(run.metrics_file)
    return {int(row["step"]): float(row[metric]) for row in rows if metric in row}


def latest(run: RunDirectory, metric: str) -> tuple[int, float | None]:
    """How far a run has come, and the metric as it was last measured."""
    step, found = 0, None
    for row in iterate_metrics(run.metrics_file):
        step, found = int(row["step"]), row.get(metric, found)
    return step, found


def value(run: RunDirectory, objective: Objective) -> float | None:
    """What a finished run is worth; None if it never measured that."""
    values = list(curve(run, objective.metric).values())
    if not values:
        return None
    if objective.of == "last":
        return values[-1]
    return max(values) if objective.direction == "max" else min(values)


def interval(values: Sequence[float], objective: Objective) -> tuple[float, float] | None:
    """The 95 % percentile bootstrap of `together` over seeds; None for a single one."""
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.percentile([together(each, objective) for each in drawn.tolist()], [2.5, 97.5])
    return float(low), float(high)


def together(values: Sequence[float], objective: Objective) -> float:
    """What a trial is worth: the mean over its seeds, or that of their middle half."""
    ordered = sorted(values)
    cut = len(ordered) // 4 if objective.across == "iqm" else 0
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)
