"""The benchmark of memories from its request to its report: plan, run, time, write."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from rl_lab.benchmarking.networks.cells import DEFAULT, By, Cell, Tell, plan
from rl_lab.benchmarking.networks.page import write_page
from rl_lab.benchmarking.networks.results import (
    FILE,
    Results,
    begin,
    collect,
    joined,
    read_results,
    with_records,
    write_results,
)
from rl_lab.benchmarking.networks.running import make_benchmark, make_driver, remember
from rl_lab.benchmarking.networks.task_set import SMALLEST, TaskSet, read_set
from rl_lab.benchmarking.networks.timing import time_cells
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.records.commit import make_directory
from rl_lab.tuning.driver import Look, alone

FOLDER = "benchmarks"  # in the folder of all runs
SECONDS = 0.3  # of each measurement of speed


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to compare."""

    set_name: Path
    tasks: Sequence[str] = ()  # all of the set
    memories: Sequence[str] = ()  # all but the ablations
    seeds: tuple[int, ...] = (1, 2, 3)
    match: str = "parameters"
    parameters: int | None = None
    size: str = SMALLEST
    steps: int | None = None
    jobs: int = 1
    name: str = ""
    known: Sequence[Path] = ()  # results of earlier times
    output: Path | None = None
    repeats: int = 5  # rounds of measuring speed; 0: none


@dataclass(frozen=True)
class Ended:
    """What was found, where it is, and the signal that stopped it."""

    results: Results
    folder: Path
    stopped: int | None = None


def run(
    request: Request,
    runs_dir: Path,
    tell: Tell,
    look: Look | None = None,
    *,
    dry_run: bool = False,
) -> Ended | None:
    """Run what is missing and write the report; None for a dry run."""
    if request.match not in (ways := get_args(By)):
        raise UserError(f"--match {request.match}: no such way{did_you_mean(request.match, ways)}")
    earlier = [read_results(file) for file in request.known]
    tasks = requested_tasks(request)
    planned = plan(tasks, request.memories or DEFAULT, cast(By, request.match), tell)
    cells = planned.cells
    if not cells:
        raise UserError("no task of this set can be made here")
    name = request.name or tasks.name + ("" if request.size == SMALLEST else f"-{request.size}")
    folder = runs_dir / FOLDER / name
    file = folder / FILE
    before = read_results(file) if file.exists() else None
    results = begin(name, tasks, cells, request.seeds, planned.skipped, before)
    for each in earlier:
        own = with_records([], each.records, results.cells)
        tell(f"{len(own)} of {len(each.records)} runs are known from {each.name}")
        timing = each.timing if each.machine == results.machine else {}
        results = replace(
            results,
            records=with_records(results.records, own, results.cells),
            timing={
                **{k: v for k, v in timing.items() if _same(k, each, results)},
                **results.timing,
            },
        )
    known = {(each.label, each.seed): each.last for each in results.records}
    wanted = {(each.label, seed) for each in cells for seed in request.seeds}
    tell(f"{len(cells)} cells x {len(request.seeds)} seeds = {len(wanted)} runs, "
         f"{len(wanted & set(known))} known, {request.jobs} at a time")  # fmt: skip
    if dry_run:
        return None
    make_directory(folder)
    benchmark = make_benchmark(name, cells, request.seeds, request.jobs)
    with alone(folder):
        remember(benchmark, folder)  # refused before anything is changed
        write_results(results, file)
        driver = make_driver(benchmark, folder, tell, look, known)
        complete = driver.run()
        results = collect(results, folder)
        write_results(results, file)
        if complete and (untimed := untimed_cells(cells, results)) and request.repeats:
            timing = time_cells(untimed, repeats=request.repeats, seconds=SECONDS, tell=tell)
            results = replace(results, timing={**results.timing, **timing})
        keep(results, folder, request.output)
    return Ended(results, folder, driver.stopped)


def again(place: Path, output: Path | None = None, known: Sequence[Path] = ()) -> Ended:
    """The report of a benchmark's folder, or of a file of results, as things stand.

    With the results of other times or machines that are `known`: what is in the place stays as is.
    """
    folder = place if place.is_dir() else place.parent
    results = read_results(folder / FILE if place.is_dir() else place)
    others = [read_results(file) for file in known]
    if place.is_dir():
        results = collect(results, folder)
        write_results(results, folder / FILE)
    for other in others:
        results = joined(results, other)
    write_page(results, folder)
    copy(results, output)
    return Ended(results, folder)


def keep(results: Results, folder: Path, output: Path | None) -> None:
    """Write the results, their report, and a copy of the results."""
    write_results(results, folder / FILE)
    write_page(results, folder)
    copy(results, output)


def copy(results: Results, output: Path | None) -> None:
    """The results as a file to be kept elsewhere, if one is named."""
    if output is not None:
        make_directory(output.parent)
        write_results(results, output)


def requested_tasks(request: Request) -> TaskSet:
    """The set, as the request changes it."""
    tasks = read_set(request.set_name).sized(request.size).chosen(request.tasks)
    if request.parameters is not None:
        tasks = replace(tasks, parameters=request.parameters)
    if request.steps is not None:
        shorter = {name: replace(each, steps=request.steps) for name, each in tasks.tasks.items()}
        tasks = replace(tasks, tasks=shorter)
    return tasks


def untimed_cells(cells: Sequence[Cell], results: Results) -> list[Cell]:
    """All cells of a task where one was not measured: they are compared in turns."""
    tasks = {each.task for each in cells if each.label not in results.timing}
    return [each for each in cells if each.task in tasks]


def _same(label: str, one: Results, other: Results) -> bool:
    """Whether a cell is configured equally in both."""
    hashes = [
        {f"{cell['task']}-{cell['memory']}": cell["hash"] for cell in each.cells}.get(label)
        for each in (one, other)
    ]
    return hashes[0] is not None and hashes[0] == hashes[1]
