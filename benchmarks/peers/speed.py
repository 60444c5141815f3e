"""Steady-state speed of this library and of others, in turns, with equal settings."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.peers.contestants import CONTESTANTS, OURS, PLAIN
from benchmarks.peers.settings import SETTINGS, Job, Timed
from benchmarks.peers.worker import RESULT
from rl_lab.benchmarking.measure import Samples, Tell, interleave, silent, spread
from rl_lab.benchmarking.report import Report, absent, measured
from rl_lab.core.errors import RunError, UserError, did_you_mean
from rl_lab.envs.make import find
from rl_lab.envs.process import usable_cores
from rl_lab.records.commit import write_atomically

ADVICE = "not installed: pip install 'rl-lab[peers]'"
CHECKOUT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """One training: what it said, and what it took from the command to the end."""

    timed: Timed
    total_seconds: float


def bench_peers(
    *,
    env: str | None,
    settings: str,
    steps: int,
    repeats: int,
    compile: bool,
    names: Sequence[str] = (),
    threads: int = 1,
    script: str | None = None,
    cpu: bool = False,
    tell: Tell = silent,
) -> Report:
    """Steady-state speed of everyone who is installed, and how often it fits into ours."""
    chosen, job = invited(names), planned(env, settings, steps, compile, threads)
    job = replace(job, script=script, cpu=cpu)
    samples, problems = contest(chosen, job, trained, repeats, tell)
    rows = [
        absent(name, problems[name])
        if name in problems
        else _row(name, _whole(samples[name]), _whole(samples[OURS]))
        for name in chosen
    ]
    return Report(
        benchmark=f"peers-{settings}",
        title=f"{job.values.algorithm.upper()} on {job.env}, {settings} settings, "
        f"{job.steps:,} steps, {in_words(job.threads)}",
        unit="environment steps/s" + " of CPU" * cpu,
        ratio_means=f"{OURS} is this many times as fast",
        rows=rows,
        settings={**asdict(job), "values": asdict(job.values), "repeats": repeats},
        notes=_notes(rows),
    )


def invited(names: Sequence[str]) -> list[str]:
    """Us, and these others; all others if none is named."""
    for name in names:
        if name not in CONTESTANTS:
            raise UserError(
                f"--peer {name}: there is no such peer{did_you_mean(name, CONTESTANTS)}"
            )
    return [each for each in CONTESTANTS if each == OURS or not names or each in names]


def planned(env: str | None, settings: str, steps: int, compile: bool, threads: int) -> Job:
    """The training that everyone is asked for, if it makes sense."""
    if settings not in SETTINGS:
        hint = did_you_mean(settings, SETTINGS)
        raise UserError(f"--settings {settings}: there are no such settings{hint}")
    values = SETTINGS[settings]
    least = (values.warm_up - 1) * values.rows
    if steps < least:
        raise UserError(
            f"--steps {steps}: a rollout has {values.rows} steps, and the first ones are not "
            f"counted; give at least {least}"
        )
    id = env or values.env
    find(id)
    if threads > usable_cores():
        raise UserError(f"--threads {threads}: there are {usable_cores()} cores")
    rollouts = -(-steps // values.rows)
    return Job(env=id, settings=settings, rollouts=rollouts, compile=compile, threads=threads)


def in_words(threads: int) -> str:
    """For a title."""
    return "one thread" if threads == 1 else f"{threads} threads"


def contest(
    names: Sequence[str], job: Job, run: Callable[[str, Job], T], repeats: int, tell: Tell
) -> tuple[Samples[T | None], dict[str, str]]:
    """One result per round of everyone who can take part, and why the others cannot."""
    jobs: dict[str, Callable[[], T | None]] = {}
    problems: dict[str, str] = {}
    for name in names:
        contestant = CONTESTANTS.get(name, CONTESTANTS[OURS])  # we may take part in several ways
        if obstacle := contestant.obstacle(job):
            problems[name] = obstacle
        elif contestant.installed:
            jobs[name] = partial(_attempt, name, job, run, count(), problems)
        else:
            problems[name] = ADVICE
    return interleave(jobs, repeats, tell), problems


def _attempt(
    name: str,
    job: Job,
    run: Callable[[str, Job], T],
    seeds: Iterator[int],
    problems: dict[str, str],
) -> T | None:
    """One training, on the next seed; a peer that fails says so in its row, the others go on."""
    if name in problems:
        return None
    try:
        return run(name, replace(job, seed=next(seeds)))
    except RunError as error:
        if name == OURS:
            raise
        problems[name] = f"failed: {error}"
        return None


def trained(name: str, job: Job) -> Measured:
    """One training in a new interpreter, imports included in its total time."""
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        file = Path(folder) / "job.json"
        write_atomically(file, json.dumps({"contestant": name, "job": asdict(job)}).encode())
        words = ["-m", "benchmarks.peers.worker", str(file)]
        _, seconds = timed(name, words, job.threads)
        return Measured(Timed(**json.loads(file.with_name(RESULT).read_text())), seconds)


def timed(name: str, words: Sequence[str], threads: int) -> tuple[str, float]:
    """What a new interpreter with these words printed, and the seconds that it took in all.

    Everyone has as many threads as cores: some libraries do not care what they are told.
    """
    limits = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)
    )
    limits["JAX_PLATFORMS"] = "cpu"
    searched = [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]  # for benchmarks.peers.worker
    limits["PYTHONPATH"] = os.pathsep.join(filter(None, searched))
    if threads == 1:
        limits["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | limits,
        preexec_fn=partial(_take_cores, threads),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunError(f"{name}: {lines[-1]}")
    return done.stdout, seconds


def _take_cores(count: int) -> None:
    """Keep this process on so many cores, where the system can (Linux)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def _whole(samples: Sequence[Measured | None]) -> list[Measured]:
    return [each for each in samples if each is not None]


def _row(name: str, own: Sequence[Measured], ours: Sequence[Measured]) -> dict[str, Any]:
    speeds = [each.timed.steps_per_second for each in own]
    our_speeds = [each.timed.steps_per_second for each in ours]
    return measured(name, speeds, (our_speeds, speeds)) | {
        "about": CONTESTANTS[name].about,
        "total_seconds": spread([each.total_seconds for each in own]).median,
        "first_return": spread([each.timed.first_return for each in own]).median,
        "last_return": spread([each.timed.last_return for each in own]).median,
        "learned": sum(each.timed.learned for each in own),
        "runs": len(own),
    }


def _notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    notes = [
        f"'{PLAIN}' is our own plain loop in the usual single-file style, 'jax' our own program",
        "total_seconds includes imports and compiling; steps/s leaves the first rollouts out",
    ]
    idle = [row["name"] for row in rows if row.get("runs", 0) != row.get("learned", 0)]
    if idle:
        notes.append(f"not every run learned ({', '.join(idle)}): speed without learning is worth "
                     "nothing; give more --steps")  # fmt: skip
    return notes
