"""Which runs are meant, which of them belong together, and what makes that doubtful."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rl_lab.analysis import query
from rl_lab.config.tree import ABSENT, leaves
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.records.config_file import experiment_of, load_tree, read_config
from rl_lab.records.index import Index, row_of
from rl_lab.records.run_directory import RunDirectory, find_run, list_runs

KEYS = {
    "environment": "environment.id",
    "env": "environment.id",
    "algorithm": "algorithm.name",
    "name": "experiment.name",
    "seed": "experiment.seed",
}
# What two seeds of one experiment may differ in, as in `records.config_file.experiment_of`.
OWN = (
    *("experiment.seed", "experiment.name", "experiment.tags", "experiment.device", "version"),
    # An evaluation changes nothing that is learned, and `auto` chooses when from the run's length.
    *("environment.vectorization", "evaluation.every_steps", "compute.", "checkpoint.", "logging."),
)
EXPERIMENT = re.compile("[0-9a-f]{12}")
FEW_SEEDS = 3
SHOWN = 4  # differences in a label, runs or values in a line


@dataclass(frozen=True)
class Parent:
    """The run, by its id, that another one was forked from, and at which step."""

    id: str
    step: int


@dataclass(frozen=True, eq=False)
class Run:
    """A run as data: its folder, its configuration by dotted path, its summary."""

    directory: RunDirectory
    config: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Its short name."""
        return self.directory.id

    @property
    def seed(self) -> int | None:
        """Its seed; None if its configuration does not say."""
        seed = self.config.get("experiment.seed")
        return seed if isinstance(seed, int) else None

    @property
    def total_timesteps(self) -> int:
        """How many environment steps it was to take; 0 if its configuration does not say."""
        total = self.config.get("training.total_timesteps")
        return total if isinstance(total, int) else 0

    @property
    def task(self) -> str:
        """Its environment: results of two of them are never mixed."""
        return str(self.config.get("environment.id"))

    @property
    def algorithm(self) -> str:
        """The name of its algorithm, or the class of one without a name."""
        return str(self.config.get("algorithm.name") or self.config.get("algorithm._target_"))

    @property
    def parent(self) -> Parent | None:
        """What it was forked from: its metrics up to there are copies."""
        parent = self.summary.get("parent")
        if not isinstance(parent, Mapping) or not {"id", "step"} <= set(parent):
            return None
        return Parent(parent["id"], parent["step"])


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one method on one task: its seeds."""

    task: str
    method: str
    runs: list[Run]

    @property
    def title(self) -> str:
        """What it is called in a message."""
        return f"{self.task} {self.method}"


def load_run(directory: RunDirectory) -> Run:
    """Read a run's configuration and summary, as data: no plug-in of it is imported."""
    tree = load_tree(directory.config_file)
    return Run(directory, dict(leaves(tree)), directory.read_summary())


def select_runs(
    references: Sequence[str],
    root: Path,
    filters: Sequence[query.Filter] = (),
    *,
    warn: Callable[[str], object] = lambda message: None,
) -> list[Run]:
    """The runs that references, patterns such as `CartPole-*` or ids of experiments name.

    Each is there once. No reference at all means every run. Of these, all filters must hold. Of
    several runs, a damaged one is left out, and `warn` is called.
    """
    every = list_runs(root) if not references or any(map(_is_pattern, references)) else []
    found: dict[Path, RunDirectory] = {}
    for reference in references:
        for directory in _named(reference, root, every):
            found.setdefault(directory.path.resolve(), directory)
    chosen = list(found.values()) if references else every
    if not chosen:
        raise UserError(f"there are no runs in {root}")
    runs = []
    for directory in _fulfilling(filters, chosen, root):
        try:
            runs.append(load_run(directory))
        except UserError as error:
            if len(chosen) == 1:
                raise
            warn(f"run {directory.id} is left out, it is damaged: {error}")
    if not runs:
        raise UserError(f"all of the {len(chosen)} runs are damaged: see `rl-lab show` of each")
    return runs


def _fulfilling(
    filters: Sequence[query.Filter], chosen: Sequence[RunDirectory], root: Path
) -> Sequence[RunDirectory]:
    if not filters:
        return chosen
    rows = {root / row["path"]: row for row in Index(root).rows() if row["path"]}
    own = [rows.get(run.path) or row_of(run, root) for run in chosen]  # or a run elsewhere
    for each in filters:
        query.check_key(each.key, own)
    found = [
        run
        for run, row in zip(chosen, own, strict=True)
        if all(query.holds(each, row) for each in filters)
    ]
    if not found:
        words = " and ".join(f"{each.key}{each.operator}{each.value}" for each in filters)
        raise UserError(f"none of the {len(chosen)} runs fulfils {words}")
    return found


def _named(reference: str, root: Path, every: Sequence[RunDirectory]) -> list[RunDirectory]:
    if _is_pattern(reference):
        matching = [run for run in every if fnmatchcase(run.path.name, reference)]
        if not matching:
            raise UserError(f"no run in {root} matches '{reference}'")
        return matching
    try:
        directory, which = find_run(reference, root)
    except UserError:
        if members := _experiment(reference, root):
            return members
        raise
    if which is not None:
        raise UserError(f"'{reference}' names a checkpoint: write the run without ':{which}'")
    return [directory]


def _experiment(reference: str, root: Path) -> list[RunDirectory]:
    """The runs of an experiment, by its id as `rl-lab list --group` shows it."""
    if not EXPERIMENT.fullmatch(reference):
        return []
    return [
        run for run in list_runs(root) if experiment_of(read_config(run.config_file)) == reference
    ]


def _is_pattern(reference: str) -> bool:
    return any(sign in reference for sign in "*?[") and not Path(reference).exists()


def group_runs(runs: Sequence[Run], keys: Sequence[str] = ()) -> list[Group]:
    """Runs by environment and the values of the keys (`algorithm`, or any dotted config key).

    Without keys, the runs of a group differ in their seed only, and a group's name says what
    makes it different from others of the same algorithm. Forks are a group of their own.
    """
    paths = [_path(key, runs) for key in keys]
    special = {} if keys else _special_paths(runs)
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        label = _label(run, paths or [KEYS["algorithm"], *special[run.task, run.algorithm]])
        if run.parent and not keys:
            label += f" forked at {run.parent.step:,}"
        groups.setdefault((run.task, label), []).append(run)
    return [Group(task, method, members) for (task, method), members in groups.items()]


def _path(key: str, runs: Sequence[Run]) -> str:
    path = KEYS.get(key, key)
    known = {path for run in runs for path in run.config}
    if path not in known:
        raise UserError(f"--group: no run has the key '{key}'{did_you_mean(key, known | {*KEYS})}")
    return path


def _special_paths(runs: Sequence[Run]) -> dict[tuple[str, str], list[str]]:
    """For each task and algorithm: the keys in which its runs differ beyond the seed."""
    alike: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        alike.setdefault((run.task, run.algorithm), []).append(run)
    return {key: list(differences(members)) for key, members in alike.items()}


def _label(run: Run, paths: Sequence[str]) -> str:
    parts = []
    ends = Counter(map(_end, paths))
    for path in paths:
        if path == KEYS["algorithm"]:
            parts.append(run.algorithm)
        elif path == KEYS["name"]:
            parts.append(str(run.config.get(path) or run.directory.path.name))
        elif path != KEYS["environment"] and path in run.config:  # the environment is the task
            name = _end(path) if ends[_end(path)] == 1 else path
            parts.append(f"{name}={run.config[path]}")
    return " ".join(parts) or "all"


def _end(path: str) -> str:
    return path.rpartition(".")[2]


def differences(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Where the configurations differ beyond what a seed may: path -> run id -> value."""
    paths = dict.fromkeys(path for run in runs for path in run.config if not path.startswith(OWN))
    found = {path: {run.id: run.config.get(path, ABSENT) for run in runs} for path in paths}
    return {
        path: values for path, values in found.items() if len(set(map(repr, values.values()))) > 1
    }


def group_warnings(group: Group) -> list[str]:
    """What speaks against trusting the numbers of a group, one line each."""
    lines = []
    count = len({run.seed for run in group.runs})
    if count < FEW_SEEDS:
        seeds = "1 seed" if count == 1 else f"{count} seeds"
        lines.append(f"{group.title}: only {seeds}; {FEW_SEEDS} or more are needed to say anything")
    times = Counter(str(run.seed) for run in group.runs)
    repeated = sorted(
        (seed for seed in times if times[seed] > 1), key=lambda seed: (len(seed), seed)
    )
    if repeated:
        *others, last = [*repeated[:SHOWN], *(["others"] if len(repeated) > SHOWN else [])]
        seeds = f"seeds {', '.join(others)} and {last} were" if others else f"seed {last} was"
        lines.append(f"{group.title}: {seeds} run more than once; each run counts")
    if related := _related(group):
        shown = ", ".join(related[:SHOWN]) + (", …" if len(related) > SHOWN else "")
        lines.append(f"{group.title}: {shown}; what was learned by then is counted more than once")
    lines += [
        f"{group.title}: configs differ in more than the seed: {path} is {_values(values)}"
        for path, values in differences(group.runs).items()
    ]
    lines += [
        f"{group.title}: run {run.id} is {run.summary.get('status', 'of unknown status')}, at step "
        f"{run.summary.get('env_steps') or 0:,} of {run.total_timesteps:,}"
        for run in group.runs
        if run.summary.get("status") != "finished"
    ]
    return lines


def _related(group: Group) -> list[str]:
    """Forks of a run that is here too, or that another one here was forked from."""
    ids = {run.id for run in group.runs}
    times = Counter(run.parent.id for run in group.runs if run.parent)
    return [
        f"{run.id} is a fork of {run.parent.id}"
        for run in group.runs
        if run.parent and (run.parent.id in ids or times[run.parent.id] > 1)
    ]


def _values(values: Mapping[str, Any]) -> str:
    """`0.9 (1a2b3c, 4d5e6f), 0.99 (778899)`."""
    by_value: dict[str, list[str]] = {}
    for run, value in values.items():
        by_value.setdefault(str(value), []).append(run)
    texts = [
        f"{value} ({', '.join(ids[:SHOWN])}{', …' if len(ids) > SHOWN else ''})"
        for value, ids in by_value.items()
    ]
    return ", ".join(texts[:SHOWN]) + (", …" if len(texts) > SHOWN else "")
