"""`--until RETURN`: how long a user waits for a policy that reaches a return and keeps it.

Everyone is timed from the start of its interpreter to its end, which comes as soon as evaluations
in a row have reached the return: imports, compiling, training and evaluations, whoever does them.
We take part by the command line, with the folder, the rows and the checkpoints of any other run.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.contestants import CONTESTANTS, OURS, our_command
from benchmarks.peers.settings import IN_A_ROW, JUDGED, Job, Timed
from benchmarks.peers.speed import (
    Measured,
    contest,
    in_words,
    invited,
    planned,
    timed,
    trained,
)
from rl_lab.benchmarking.measure import Tell, silent, spread
from rl_lab.benchmarking.report import Report, absent, measured
from rl_lab.core.errors import UserError
from rl_lab.records.metrics import read_metrics

COMPILED = f"{OURS}, compiled"
EVALUATIONS = 10  # in the whole training, unless told otherwise


def bench_until(
    goal: float,
    *,
    env: str | None,
    settings: str,
    steps: int,
    every: int | None,
    repeats: int,
    compile: bool,
    names: Sequence[str] = (),
    threads: int = 1,
    tell: Tell = silent,
) -> Report:
    """Seconds from the command to a sustained return, and how many times as long as ours."""
    chosen, job = invited(names), planned(env, settings, steps, False, threads)
    job = replace(job, until=goal, every=every or max(steps // EVALUATIONS, 1))
    if job.every * IN_A_ROW > job.steps:
        raise UserError(f"--every {job.every}: {IN_A_ROW} evaluations do not fit into {job.steps} "
                        "steps; write less, or give more --steps")  # fmt: skip
    if compile:
        chosen.insert(1, COMPILED)
    samples, problems = contest(chosen, job, sought, repeats, tell)
    rows = [
        absent(name, problems[name])
        if name in problems
        else _row(name, samples[name], samples[OURS], job)
        for name in chosen
    ]
    return Report(
        benchmark=f"until-{settings}",
        title=f"PPO on {job.env} to a return of {goal:g}, {settings} settings, at most "
        f"{job.steps:,} steps, {in_words(job.threads)}",
        unit="seconds from the command to its end",
        ratio_means=f"{OURS} is this many times as fast, in the rounds in which both arrived",
        rows=rows,
        settings={**asdict(job), "values": asdict(job.values), "repeats": repeats},
        notes=[
            f"arrived: {IN_A_ROW} evaluations in a row of {JUDGED} episodes without chance, one "
            f"every {job.every:,} steps; everyone's evaluations are in its time",
            "medians are over the rounds that arrived: look at the last column first",
        ],
    )


def sought(name: str, job: Job) -> Measured:
    """One training until it arrives or its steps are used up."""
    if name not in (OURS, COMPILED):
        return trained(name, job)
    return commanded(name, replace(job, compile=name == COMPILED))


def commanded(name: str, job: Job) -> Measured:
    """The same by `rl-lab train`, in a new interpreter."""
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        words = ["-m", "rl_lab", *our_command(job), "--runs-dir", folder, "--json"]
        printed, seconds = timed(name, words, job.threads)
        summary = json.loads(printed)
        rows = read_metrics(Path(summary["path"]) / "metrics.jsonl")
    scores = [row["eval/return_mean"] for row in rows if "eval/return_mean" in row]
    assert job.until is not None
    nan = float("nan")  # it is not asked how fast the steady state is
    return Measured(
        Timed(
            steps_per_second=nan,
            first_return=nan,
            first_spread=nan,
            last_return=scores[-1],
            steps=summary["env_steps"],
            reached=min(scores[-IN_A_ROW:]) >= job.until and len(scores) >= IN_A_ROW,
        ),
        seconds,
    )


def _row(
    name: str, own: Sequence[Measured | None], ours: Sequence[Measured | None], job: Job
) -> dict[str, Any]:
    arrived = [each for each in own if each is not None and each.timed.reached]
    if not arrived:
        return absent(name, f"never arrived within {job.steps:,} steps (0 of {len(own)})")
    both = [
        (mine.total_seconds, other.total_seconds)
        for mine, other in zip(own, ours, strict=True)
        if mine is not None and other is not None and mine.timed.reached and other.timed.reached
    ]
    seconds = [each.total_seconds for each in arrived]
    compared = ([mine for mine, _ in both], [other for _, other in both])
    return measured(name, seconds, compared) | {
        "about": CONTESTANTS[OURS if name == COMPILED else name].about,
        "steps": spread([each.timed.steps for each in arrived]).median,
        "reached": len(arrived),
        "rounds": len(own),
    }
