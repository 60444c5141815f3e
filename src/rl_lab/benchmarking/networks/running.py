"""Running a benchmark of memories: a sweep over tasks and memories, by the sweep's own driver.

All that is known is in the run folders, which are found by their names: killed at any moment, the
same command goes on, and each task, memory and seed is run exactly once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_lab.benchmarking.networks.cells import Cell, Settings
from rl_lab.config.values import as_override
from rl_lab.core.errors import UserError
from rl_lab.records.commit import write_atomically
from rl_lab.records.files import read_object
from rl_lab.tuning.driver import Driver, Look, Tell
from rl_lab.tuning.space import Choice, Space
from rl_lab.tuning.sweep_file import Sweep
from rl_lab.tuning.tuner import Suggestion, Tuner

TASK, MEMORY = "task", "memory"
CELLS = "cells.json"  # in a benchmark's folder: how each cell was configured


@dataclass(frozen=True, kw_only=True)
class Benchmark(Sweep):
    """A grid over tasks and memories; what each of its points runs is in a cell."""

    cells: Mapping[tuple[str, str], Cell] = field(default_factory=dict)

    def cell(self, settings: Mapping[str, Any]) -> Cell:
        """What a point of the grid runs."""
        return self.cells[settings[TASK], settings[MEMORY]]

    def label(self, trial: Suggestion) -> str:
        """Runs are called by task and memory."""
        return self.cell(trial.settings).label

    def experiment(self, settings: Mapping[str, Any]) -> tuple[str, Settings]:
        """The preset of the task, and the settings of the cell."""
        cell = self.cell(settings)
        return cell.base_config, cell.settings

    def folder(self, root: Path) -> Path:
        """All runs are of this benchmark: their folder is its own."""
        return root


def make_benchmark(name: str, cells: list[Cell], seeds: tuple[int, ...], jobs: int) -> Benchmark:
    """The grid of some cells: every task with every memory."""
    axes = {
        TASK: Choice(tuple(dict.fromkeys(each.task for each in cells))),
        MEMORY: Choice(tuple(dict.fromkeys(each.memory for each in cells))),
    }
    return Benchmark(
        name=name,
        base_config="",
        space=Space(axes),
        seeds=seeds,
        parallel_jobs=jobs,
        cells={(each.task, each.memory): each for each in cells},
    )


def make_driver(
    benchmark: Benchmark,
    folder: Path,
    tell: Tell,
    look: Look | None = None,
    known: Mapping[tuple[str, int], float] | None = None,
) -> Driver:
    """The driver of a sweep. `known` are returns by label and seed that need not be run again."""
    own = [
        as_override("experiment.tags", [f"benchmark:{benchmark.name}"]),
        as_override("logging.report", False),
        as_override("logging.tensorboard", False),
    ]
    tuner = Tuner(benchmark.space, method="grid", name=benchmark.name)
    elsewhere = {
        f"{benchmark.name}-{label}-s{seed}": value for (label, seed), value in (known or {}).items()
    }
    return Driver(benchmark, folder, tell, tuner, own, look, elsewhere)


def remember(benchmark: Benchmark, folder: Path) -> None:
    """A label means one configuration: more cells may come, none may change."""
    file = folder / CELLS
    before = read_object(file) if file.exists() else {}
    now = {each.label: each.hash for each in benchmark.cells.values()}
    for label, found in now.items():
        if before.get(label, found) != found:
            raise UserError(
                f"{label} was begun with other settings in {folder}: give --name for another "
                "benchmark, or remove that folder"
            )
    text = json.dumps({**before, **now}, indent=2, sort_keys=True)
    write_atomically(file, f"{text}\n".encode())
