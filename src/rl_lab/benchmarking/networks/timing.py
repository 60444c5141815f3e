"""How fast each memory acts and learns, measured alone and in turns: training is too busy for it.

A training shares the machine with other runs, and its numbers depend on when it ran. Here every
memory of a task is built once, and all of them are measured in every round.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from rl_lab.algorithms.base import Algorithm
from rl_lab.benchmarking.collect import collecting
from rl_lab.benchmarking.measure import Tell, interleave, silent, spread
from rl_lab.benchmarking.networks.cells import Cell, configured
from rl_lab.benchmarking.update import filled, updating
from rl_lab.collect.collector import to_array, to_tensor
from rl_lab.config.resolve import resolve
from rl_lab.core.errors import UserError
from rl_lab.run.build import make_algorithm, make_context

STEPS, UPDATE, LATENCY = "steps_per_second", "update_ms", "latency_ms"


@dataclass(frozen=True)
class Measures:
    """One round of one memory."""

    steps_per_second: float  # of training: collecting and learning
    update_ms: float  # one update on a whole rollout
    latency_ms: float  # the actions for one step of all environments


def time_cells(
    cells: Sequence[Cell], *, repeats: int, seconds: float, tell: Tell = silent
) -> dict[str, dict[str, Any]]:
    """By label: median and quartiles of every measure. The cells of a task are taken in turns."""
    found: dict[str, dict[str, Any]] = {}
    for task in dict.fromkeys(cell.task for cell in cells):
        with ExitStack() as open_ones:
            jobs = {
                cell.label: _job(cell, seconds, open_ones) for cell in cells if cell.task == task
            }
            samples = interleave(jobs, repeats, tell)
        found |= {label: _summary(own) for label, own in samples.items()}
    return found


def _job(cell: Cell, seconds: float, open_ones: ExitStack) -> Callable[[], Measures]:
    config = configured(cell)
    config = resolve(replace(config, compute=replace(config.compute, compile="off")))
    context = make_context(config)
    open_ones.callback(context.train_environment.close)
    algorithm = make_algorithm(config, context)
    hooks = algorithm.hooks
    if len(hooks) != 1:
        raise UserError(f"{config.algorithm.name} has {len(hooks)} updates, not one")
    update = updating(algorithm, hooks[0], filled(algorithm, hooks[0]), seconds)
    collect = collecting(algorithm, seconds)
    act = _acting(algorithm, seconds)
    steps = algorithm.collect_steps * context.train_environment.num_envs

    def job() -> Measures:
        updates, collected, latency = update(), collect(), act()
        rollout = steps / collected + 1 / updates  # seconds of a rollout and its update
        return Measures(steps / rollout, 1e3 / updates, latency)

    job()  # warm up
    return job


def _acting(algorithm: Algorithm, seconds: float) -> Callable[[], float]:
    """A job that gives milliseconds per step of all environments: observation to action."""
    obs = algorithm.context.initial_observation
    if not algorithm.acts_on_arrays:
        obs = to_tensor(obs, algorithm.context.device)
    count = algorithm.context.train_environment.num_envs

    def job() -> float:
        state, taken = algorithm.initial_state(count), 0
        started = time.perf_counter()
        while (spent := time.perf_counter() - started) < seconds or not taken:
            decision = algorithm.act(obs, state, deterministic=False)
            to_array(decision.action)  # a GPU has to be waited for
            state = decision.state
            taken += 1
        return 1e3 * spent / taken

    return job


def _summary(samples: Sequence[Measures]) -> dict[str, Any]:
    series = {name: [asdict(each)[name] for each in samples] for name in (STEPS, UPDATE, LATENCY)}
    return {name: asdict(spread(values)) for name, values in series.items()}
