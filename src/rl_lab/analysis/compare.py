"""Runs against each other: what each group reached, how sure that is, and who is better."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_lab.analysis import statistics
from rl_lab.analysis.curves import Curve, candidates, metric_of, read_curves
from rl_lab.analysis.groups import Group, Run, group_runs, group_warnings
from rl_lab.analysis.statistics import Interval
from rl_lab.core.errors import UserError
from rl_lab.display.metric_style import Display

Array = npt.NDArray[np.float64]
Scale = tuple[float, float]  # the scores of a task that count as 0 and 1
SHARES = (0.25, 0.5, 0.75)  # of the shortest run of a task: where curves are compared


@dataclass(frozen=True)
class Reached:
    """What a group had reached by a step; None if a run had no value yet."""

    label: str
    step: int
    value: float | None


@dataclass(frozen=True, eq=False)
class Cell:
    """One metric of one group. A number is the mean over its runs, unless noted otherwise."""

    task: str
    method: str
    runs: list[str]
    unfinished: list[str]  # those of them that are still running, or stopped before their end
    parents: list[str]  # of those that are forks, each once
    seeds: list[int | None]
    curves: list[Curve]
    final: float
    final_interval: Interval | None
    iqm: float
    iqm_interval: Interval | None
    best: float | None  # of each run's curve, where one direction is good
    at: list[Reached]
    test: float | None  # of the final test, on seeds that no evaluation saw
    wall_time: float | None  # seconds

    @property
    def finals(self) -> Array:
        """The last value of each run."""
        return np.array([curve.final for curve in self.curves])


@dataclass(frozen=True)
class Missing:
    """A group of which no run has the metric; what else is known of it."""

    task: str
    method: str
    runs: list[str]
    test: float | None
    wall_time: float | None


@dataclass(frozen=True, eq=False)
class Table:
    """One metric of all groups."""

    asked: str
    metric: str
    better: str | None  # higher | lower
    cells: list[Cell]
    missing: list["Missing"]


@dataclass(frozen=True)
class Aggregate:
    """One method over all its tasks, in normalized scores."""

    method: str
    tasks: int
    runs: int
    iqm: float
    iqm_interval: Interval | None
    mean: float
    mean_interval: Interval | None
    optimality_gap: float
    optimality_gap_interval: Interval | None


@dataclass(frozen=True)
class Pair:
    """Two methods on the tasks that both have."""

    first: str
    second: str
    probability: float  # that a run of the first is better than one of the second
    interval: Interval | None
    pairs: int  # runs of the same task and seed
    p_value: float | None
    corrected: float | None  # for the number of tests made


@dataclass(frozen=True, eq=False)
class Comparison:
    """Everything there is to say. The first table is the main one: scores and pairs come of it."""

    tables: list[Table]
    scales: dict[str, Scale]
    aggregates: list[Aggregate]  # none where no scale is given and runs are of one task or equal
    pairs: list[Pair]
    warnings: list[str]

    @property
    def main(self) -> Table:
        """The table of the metric that was asked for first."""
        return self.tables[0]

    def to_tree(self) -> dict[str, Any]:
        """As JSON."""
        tables = [
            {
                "asked": table.asked,
                "metric": table.metric,
                "better": table.better,
                "groups": [_cell_tree(cell) for cell in table.cells],
                "missing": [asdict(each) for each in table.missing],
            }
            for table in self.tables
        ]
        return {
            "metrics": tables,
            "scales": {task: list(scale) for task, scale in self.scales.items()},
            "aggregates": [asdict(each) for each in self.aggregates],
            "pairs": [asdict(each) for each in self.pairs],
            "warnings": self.warnings,
        }


def compare(
    runs: Sequence[Run],
    *,
    keys: Sequence[str] = (),
    metrics: Sequence[str] = ("reward",),
    at: Sequence[int] = (),
    scales: Mapping[str, Scale] | None = None,
    display: Display,
) -> Comparison:
    """Group the runs and compare them. `at` are steps; `scales` say which scores are 0 and 1."""
    names = [name for asked in metrics for name in candidates(asked)]
    curves: dict[Run, dict[str, Curve]] = {}
    warnings: list[str] = []
    for run in runs:
        # The rows of a fork before its first step are its parent's: not what it has reached.
        start = run.parent.step if run.parent else 0
        try:
            curves[run] = read_curves(run.directory.metrics_file, names, start=start)
        except UserError as error:
            if len(runs) == 1:
                raise
            warnings.append(f"run {run.id} is left out, it is damaged: {error}")
    runs = list(curves)
    if not runs:
        raise UserError(warnings[0])
    groups = group_runs(runs, keys)
    for asked in metrics:
        if not any(name in found for name in candidates(asked) for found in curves.values()):
            metric_of(asked, [read_curves(runs[0].directory.metrics_file)])  # says what there is
    warnings += [line for group in groups for line in group_warnings(group)]
    tables = [_table(asked, groups, curves, at, display, warnings) for asked in metrics]
    main = tables[0]
    warnings += _uneven(main)
    known = _scales(main, scales or {})
    scores = normalized(main, known)
    return Comparison(
        tables=tables,
        scales=known,
        aggregates=[_aggregate(method, scores[method]) for method in scores]
        if scales or _spans_tasks(known)
        else [],
        pairs=_pairs(main, scores),
        warnings=warnings,
    )


def _table(
    asked: str,
    groups: Sequence[Group],
    curves: Mapping[Run, Mapping[str, Curve]],
    at: Sequence[int],
    display: Display,
    warnings: list[str],
) -> Table:
    metric = metric_of(asked, list(curves.values()))
    better = display[metric].better
    having = [[run for run in group.runs if metric in curves[run]] for group in groups]
    for group, with_it in zip(groups, having, strict=True):
        if lacking := [run.id for run in group.runs if run not in with_it]:
            warnings.append(f"{group.title}: left out, as it has no {metric}: {', '.join(lacking)}")
    ends = {
        task: min(
            int(curves[run][metric].steps[-1])
            for with_it in having
            for run in with_it
            if run.task == task
        )
        for task in dict.fromkeys(run.task for with_it in having for run in with_it)
    }
    cells = []
    for group, with_it in zip(groups, having, strict=True):
        if with_it:
            steps = {str(step): step for step in at}
            steps = steps or {f"{share:.0%}": int(share * ends[group.task]) for share in SHARES}
            own = [curves[run][metric] for run in with_it]
            cells.append(_cell(group, with_it, own, steps, metric, better))
    missing = [
        Missing(
            *(group.task, group.method, [run.id for run in group.runs]),
            *(_test(group.runs, metric), _wall_time(group.runs)),
        )
        for group, with_it in zip(groups, having, strict=True)
        if not with_it
    ]
    return Table(asked, metric, better, cells, missing)


def _cell(
    group: Group,
    runs: Sequence[Run],
    curves: list[Curve],
    steps: Mapping[str, int],
    metric: str,
    better: str | None,
) -> Cell:
    finals = np.array([curve.final for curve in curves])
    bests = [curve.values.max() if better == "higher" else curve.values.min() for curve in curves]
    return Cell(
        task=group.task,
        method=group.method,
        runs=[run.id for run in runs],
        unfinished=[run.id for run in runs if run.summary.get("status") != "finished"],
        parents=list(dict.fromkeys(run.parent.id for run in runs if run.parent)),
        seeds=[run.seed for run in runs],
        curves=curves,
        final=float(finals.mean()),
        final_interval=statistics.interval([finals]),
        iqm=float(statistics.iqm(finals)),
        iqm_interval=statistics.interval([finals], statistics.iqm),
        best=float(np.mean(bests)) if better else None,
        at=[
            Reached(label, step, _mean([curve.at(step) for curve in curves]))
            for label, step in steps.items()
        ],
        test=_test(runs, metric),
        wall_time=_wall_time(runs),
    )


def _test(runs: Sequence[Run], metric: str) -> float | None:
    """The mean of the final tests, which measure returns."""
    if not metric.endswith("/return_mean"):
        return None
    found = [(run.summary.get("test") or {}).get("last", {}).get("return_mean") for run in runs]
    return _mean(found)


def _wall_time(runs: Sequence[Run]) -> float | None:
    times = [run.summary.get("wall_time") for run in runs]
    return _mean([time for time in times if time is not None])


def _mean(values: Sequence[float | None]) -> float | None:
    """None if one of them is not known: the others would be another group."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _uneven(table: Table) -> list[str]:
    """Methods on different tasks, and runs that ended at different steps, had different chances."""
    lines = []
    tasks: dict[str, set[str]] = {}
    for cell in table.cells:
        tasks.setdefault(cell.method, set()).add(cell.task)
    if len({frozenset(each) for each in tasks.values()}) > 1:
        lines.append("not every method has every task: their scores over all tasks say little")
    for task in dict.fromkeys(cell.task for cell in table.cells):
        ends = {int(c.steps[-1]) for cell in table.cells if cell.task == task for c in cell.curves}
        if len(ends) > 1:
            lines.append(
                f"{task}: runs end between step {min(ends):,} and {max(ends):,}; compare them at "
                "the same step with --at"
            )
    return lines


def _scales(table: Table, given: Mapping[str, Scale]) -> dict[str, Scale]:
    """What was given, else from the worst to the best run of a task."""
    scales = {}
    for task in dict.fromkeys(cell.task for cell in table.cells):
        finals = np.concatenate([cell.finals for cell in table.cells if cell.task == task])
        low, high = float(finals.min()), float(finals.max())
        scales[task] = given.get(task, (high, low) if table.better == "lower" else (low, high))
    if unknown := sorted(set(given) - set(scales)):
        raise UserError(f"--scale: no run of {', '.join(unknown)} is compared here")
    return scales


def _spans_tasks(scales: Mapping[str, Scale]) -> bool:
    """Scores from the worst to the best run say something over several tasks only."""
    return len(scales) > 1 and any(low != high for low, high in scales.values())


def normalized(table: Table, scales: Mapping[str, Scale]) -> dict[str, dict[str, Array]]:
    """Method -> task -> the runs' final values as scores: 0 and 1 are the ends of the scale."""
    scores: dict[str, dict[str, Array]] = {}
    for cell in table.cells:
        low, high = scales[cell.task]
        width = high - low or 1.0  # all the same: everybody has 0
        scores.setdefault(cell.method, {})[cell.task] = (cell.finals - low) / width
    return scores


def _aggregate(method: str, by_task: Mapping[str, Array]) -> Aggregate:
    scores = list(by_task.values())
    values = statistics.pooled(scores)
    return Aggregate(
        method=method,
        tasks=len(scores),
        runs=len(values),
        iqm=float(statistics.iqm(values)),
        iqm_interval=statistics.interval(scores, statistics.iqm),
        mean=float(values.mean()),
        mean_interval=statistics.interval(scores),
        optimality_gap=float(statistics.optimality_gap(values)),
        optimality_gap_interval=statistics.interval(scores, statistics.optimality_gap),
    )


def _pairs(table: Table, scores: Mapping[str, Mapping[str, Array]]) -> list[Pair]:
    """Every two methods that share a task, the better one first; p-values by Holm's correction."""
    if table.better is None:
        return []
    by_seed = _by_seed(table, scores)
    found = []
    for one, other in combinations(scores, 2):
        tasks = [task for task in scores[one] if task in scores[other]]
        if not tasks:
            continue
        ours, theirs = ([scores[name][task] for task in tasks] for name in (one, other))
        if statistics.probability_of_improvement(ours, theirs) < 0.5:
            one, other, ours, theirs = other, one, theirs, ours
        shared = [key for key in by_seed[one] if key in by_seed[other]]
        gaps = np.array([by_seed[one][key] - by_seed[other][key] for key in shared])
        found.append(
            Pair(
                first=one,
                second=other,
                probability=statistics.probability_of_improvement(ours, theirs),
                interval=statistics.improvement_interval(ours, theirs),
                pairs=len(shared),
                p_value=statistics.paired_test(gaps),
                corrected=None,
            )
        )
    return _corrected(found)


def _by_seed(
    table: Table, scores: Mapping[str, Mapping[str, Array]]
) -> dict[str, dict[tuple[str, int | None], float]]:
    """Method -> (task, seed) -> score; a seed that was run twice has the mean of both."""
    found: dict[str, dict[tuple[str, int | None], list[float]]] = {}
    for cell in table.cells:
        own = found.setdefault(cell.method, {})
        for seed, score in zip(cell.seeds, scores[cell.method][cell.task], strict=True):
            own.setdefault((cell.task, seed), []).append(float(score))
    return {
        name: {key: float(np.mean(values)) for key, values in own.items()}
        for name, own in found.items()
    }


def _corrected(pairs: Sequence[Pair]) -> list[Pair]:
    tested = [pair.p_value for pair in pairs if pair.p_value is not None]
    corrected = iter(statistics.holm(tested))
    return [
        pair if pair.p_value is None else Pair(**{**asdict(pair), "corrected": next(corrected)})
        for pair in pairs
    ]


def _cell_tree(cell: Cell) -> dict[str, Any]:
    tree = {name: value for name, value in vars(cell).items() if name != "curves"}
    return tree | {"at": [asdict(each) for each in cell.at], "finals": cell.finals.tolist()}
