"""What a benchmark of memories has found: a record for each run, and what they say together."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.analysis.curves import Curve, read_curves, thinned
from rl_lab.analysis.statistics import interval
from rl_lab.benchmarking.networks.cells import MEMORIES, Cell
from rl_lab.benchmarking.networks.task_set import TaskSet
from rl_lab.core.errors import UserError
from rl_lab.records.commit import write_atomically
from rl_lab.records.files import read_object
from rl_lab.records.metrics import plain
from rl_lab.records.provenance import provenance
from rl_lab.records.run_directory import RunDirectory
from rl_lab.tuning.jobs import find, is_finished

FORMAT = 1
RETURN = "eval/return_mean"
FILE = "results.json"  # in a benchmark's folder


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run."""

    task: str
    memory: str
    seed: int
    cell: str  # hash of its configuration
    steps: int
    last: float  # return of the final policy, in the test on its own seeds
    best: float  # and of the policy that was best in the evaluations
    curve: list[list[float]]  # evaluations: step, return
    ram_gb: float | None = None
    decision_mflops: float | None = None  # of one decision of one environment
    wall_seconds: float | None = None
    commit: str | None = None  # of the code that ran
    changed: bool = False  # whether that code had changes since

    @property
    def label(self) -> str:
        """The cell it belongs to."""
        return f"{self.task}-{self.memory}"

    def reached(self, threshold: float | None) -> float | None:
        """The step of the first evaluation at or above a return; None if there is none."""
        if threshold is None:
            return None
        return next((step for step, value in self.curve if value >= threshold), None)


@dataclass(frozen=True)
class Results:
    """Everything that a report needs."""

    name: str
    title: str
    seeds: list[int]
    tasks: dict[str, dict[str, Any]]  # name -> threshold, steps, published, published_steps
    cells: list[dict[str, Any]]  # task, memory, title, width, parameters, state_bytes, hash
    records: list[Record]
    timing: dict[str, dict[str, Any]] = field(default_factory=dict)  # label -> numbers
    skipped: dict[str, str] = field(default_factory=dict)  # task -> why
    machine: dict[str, Any] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """Runs without a result, as `task memory seed`."""
        done = {(each.label, each.seed) for each in self.records}
        return [
            f"{cell['task']} {cell['memory']} {seed}"
            for cell in self.cells
            for seed in self.seeds
            if (f"{cell['task']}-{cell['memory']}", seed) not in done
        ]


@dataclass(frozen=True)
class Row:
    """A task with a memory, over seeds."""

    task: str
    memory: str
    title: str
    seeds: int
    last: float | None
    last_interval: tuple[float, float] | None
    best: float | None
    best_interval: tuple[float, float] | None
    reached: int  # seeds that reached the threshold
    steps_to_threshold: float | None  # median over those
    parameters: int
    state_bytes: int
    ram_gb: float | None
    decision_mflops: float | None
    timing: Mapping[str, float]  # medians: steps_per_second, update_ms, latency_ms


def begin(
    name: str,
    tasks: TaskSet,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    skipped: Mapping[str, str],
    before: Results | None,
) -> Results:
    """Results without a new run; with those `before`, where their configuration is the same."""
    facts = {
        task: {
            "steps": each.steps,
            "threshold": each.threshold,
            "published": dict(each.published),
            "published_steps": each.published_steps,
        }
        for task, each in tasks.tasks.items()
    }
    keys = ("task", "memory", "width", "parameters", "state_bytes", "hash")
    own = {
        each.label: {key: getattr(each, key) for key in keys}
        | {"title": MEMORIES[each.memory].title}
        for each in cells
    }
    if before is None:
        return Results(name, tasks.title or tasks.name, list(seeds), facts, [*own.values()], [],
                       skipped=dict(skipped), machine=machine())  # fmt: skip
    old = {f"{each['task']}-{each['memory']}": each for each in before.cells}
    merged = {**old, **own}
    same = {label for label, each in merged.items() if old.get(label) == each}
    return Results(
        name=name,
        title=tasks.title or tasks.name,
        seeds=sorted({*before.seeds, *seeds}),
        tasks={**before.tasks, **facts},
        cells=list(merged.values()),
        records=with_records([], before.records, merged.values()),
        timing={label: each for label, each in before.timing.items() if label in same},
        skipped={**{k: v for k, v in before.skipped.items() if k not in facts}, **skipped},
        machine=machine(),
    )


def with_records(
    records: Sequence[Record], more: Sequence[Record], cells: Iterable[Mapping[str, Any]]
) -> list[Record]:
    """Both, each run once, and only of these very configurations; in the order of the cells."""
    hashes = {f"{each['task']}-{each['memory']}": each["hash"] for each in cells}
    found = {(each.label, each.seed): each for each in [*more, *records]}
    order = {label: place for place, label in enumerate(hashes)}
    kept = [each for each in found.values() if hashes.get(each.label) == each.cell]
    return sorted(kept, key=lambda each: (order[each.label], each.seed))


def joined(one: Results, other: Results) -> Results:
    """Both; where a cell, a run or a task is in both, as it is in `one`.

    What the other has of a cell that is configured otherwise in `one` is left out, and so are its
    speeds if they were measured on another machine.
    """
    own = {f"{each['task']}-{each['memory']}": each for each in one.cells}
    more = {f"{each['task']}-{each['memory']}": each for each in other.cells}
    cells = {**more, **own}
    here = other.timing if other.machine == one.machine else {}
    there = {each["task"] for each in cells.values()}
    speeds = {label: each for label, each in here.items() if cells.get(label) == more.get(label)}
    return replace(
        one,
        seeds=sorted({*one.seeds, *other.seeds}),
        tasks={**other.tasks, **one.tasks},
        cells=[cells[label] for label in [*own, *(each for each in more if each not in own)]],
        records=with_records(one.records, other.records, cells.values()),
        timing={**speeds, **one.timing},
        skipped={k: v for k, v in (other.skipped | one.skipped).items() if k not in there},
    )


def collect(results: Results, folder: Path) -> Results:
    """With what the finished runs in a benchmark's folder say."""
    found = []
    for cell in results.cells:
        for seed in results.seeds:
            run = find(folder, f"{results.name}-{cell['task']}-{cell['memory']}-s{seed}")
            if run is not None and is_finished(run):
                found.append(record_of(run, cell, seed))
    there = [each for each in found if each is not None]
    return replace(results, records=with_records(there, results.records, results.cells))


def record_of(run: RunDirectory, cell: Mapping[str, Any], seed: int) -> Record | None:
    """What a finished run found; None if it has no evaluation or no test."""
    summary = run.read_summary()
    test = summary.get("test") or {}
    curve = read_curves(run.metrics_file, [RETURN]).get(RETURN)
    if curve is None or "last" not in test:
        return None
    git, costs = _git(run), summary.get("efficiency") or {}
    return Record(
        task=cell["task"],
        memory=cell["memory"],
        seed=seed,
        cell=cell["hash"],
        steps=int(summary["env_steps"]),
        last=test["last"]["return_mean"],
        best=test.get("best", test["last"])["return_mean"],
        curve=_points(thinned(curve)),
        ram_gb=costs.get("sys/ram_gb"),
        decision_mflops=costs.get("sys/decision_mflops"),
        wall_seconds=summary.get("wall_time"),
        commit=(git.get("sha") or "")[:12] or None,
        changed=bool(git.get("dirty")),
    )


def rows(results: Results) -> list[Row]:
    """One for each cell, in their order."""
    found = []
    for cell in results.cells:
        task, memory = cell["task"], cell["memory"]
        own = [each for each in results.records if (each.task, each.memory) == (task, memory)]
        threshold = results.tasks[task].get("threshold")
        steps = [step for each in own if (step := each.reached(threshold)) is not None]
        last = np.array([each.last for each in own])
        best = np.array([each.best for each in own])
        ram = [each.ram_gb for each in own if each.ram_gb is not None]
        mflops = [each.decision_mflops for each in own if each.decision_mflops is not None]
        timing = results.timing.get(f"{task}-{memory}", {})
        found.append(
            Row(
                task=task,
                memory=memory,
                title=cell["title"],
                seeds=len(own),
                last=_mean(last),
                last_interval=interval([last]) if len(own) else None,
                best=_mean(best),
                best_interval=interval([best]) if len(own) else None,
                reached=len(steps),
                steps_to_threshold=float(np.median(steps)) if steps else None,
                parameters=cell["parameters"],
                state_bytes=cell["state_bytes"],
                ram_gb=max(ram, default=None),
                decision_mflops=max(mflops, default=None),
                timing={name: each["median"] for name, each in timing.items()},
            )
        )
    return found


def machine() -> dict[str, Any]:
    """Where it was measured."""
    facts = provenance([])
    return {key: facts[key] for key in ("packages", "python", "platform", "cpu", "cpu_count")}


def to_tree(results: Results) -> dict[str, Any]:
    """As plain data."""
    own = {"format": FORMAT, "benchmark": "networks", "missing": results.missing()}
    return plain(own | asdict(results))


def write_results(results: Results, file: Path) -> None:
    """As JSON, a line for each run: differences between two versions can be read."""
    tree = to_tree(results)
    lists = {"records": tree.pop("records"), "cells": tree.pop("cells")}
    text = json.dumps(tree, indent=2, ensure_ascii=False)[:-2]
    for key, each in lists.items():
        inside = ",\n    ".join(json.dumps(one, ensure_ascii=False) for one in each)
        text += f',\n  "{key}": [\n    {inside}\n  ]'
    try:
        write_atomically(file, f"{text}\n}}\n".encode())
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error


def read_results(file: Path) -> Results:
    """The same from a file; `UserError` if it is not one."""
    try:
        tree = read_object(file)
    except FileNotFoundError as error:
        raise UserError(f"there is no file {file}") from error
    if tree.get("benchmark") != "networks" or tree.get("format") != FORMAT:
        raise UserError(f"{file} is not a result of bench networks of format {FORMAT}")
    try:
        known = {key: tree[key] for key in Results.__dataclass_fields__}
        return Results(**known | {"records": [Record(**each) for each in tree["records"]]})
    except (KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged: {error}") from error


def curve_of(record: Record) -> Curve:
    """The evaluations of a run."""
    points = np.array(record.curve, dtype=np.float64).reshape(-1, 2)
    return Curve(points[:, 0].astype(np.int64), points[:, 1])


def _points(curve: Curve) -> list[list[float]]:
    pairs = zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
    return [[step, round(value, 4)] for step, value in pairs]


def _git(run: RunDirectory) -> dict[str, Any]:
    try:
        return read_object(run.provenance_file).get("git") or {}
    except (OSError, UserError):  # nothing depends on it
        return {}


def _mean(values: "np.ndarray[Any, np.dtype[np.float64]]") -> float | None:
    return float(values.mean()) if len(values) else None
