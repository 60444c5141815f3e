"""`rl-lab bench update`: one call of each update hook, eager and compiled, on the same data."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from typing import Any

from rl_lab.algorithms.base import Algorithm
from rl_lab.benchmarking.collect import PHASE as ONLINE
from rl_lab.benchmarking.measure import Tell, interleave, silent
from rl_lab.benchmarking.report import Report, absent, measured
from rl_lab.config.resolve import resolve
from rl_lab.config.tree import to_tree
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig
from rl_lab.run.build import make_algorithm, make_context

MODES = {"off": "eager", "on": "compiled"}
PHASE = ONLINE | {"type": "offline"}  # one gradient step per call, whenever there is data
FILL = 10_000  # collect calls after which a buffer that is still not ready is given up


def bench_update(
    config: RunConfig, *, modes: Sequence[str], repeats: int, seconds: float, tell: Tell = silent
) -> Report:
    """Calls per second of every update hook; each call starts from the same state and batch."""
    jobs: dict[str, Callable[[], float]] = {}
    rows: list[dict[str, Any]] = []
    notes = []
    first: dict[str, str] = {}  # hook -> the job that the others are compared with
    with ExitStack() as open_ones:
        for mode in modes:
            compute = replace(config.compute, compile=mode)  # type: ignore[arg-type]
            try:
                resolved = resolve(replace(config, compute=compute))
            except UserError as error:  # no compiler
                if len(modes) == 1:
                    raise
                rows.append(absent(MODES[mode], str(error)))
                continue
            context = make_context(resolved)
            open_ones.callback(context.train_environment.close)
            algorithm = make_algorithm(resolved, context)
            if not algorithm.hooks:
                raise UserError(f"{config.algorithm.name} has no update to measure")
            for hook in algorithm.hooks:
                batch = filled(algorithm, hook)
                name = f"{hook}, {MODES[mode]}"
                tell(f"first call of {name}")
                started = time.perf_counter()
                getattr(algorithm, hook)(deepcopy(batch), phase=PHASE)
                notes.append(f"first call of {name}: {time.perf_counter() - started:.1f} s")
                jobs[name] = updating(algorithm, hook, batch, seconds)
                first.setdefault(hook, name)
        samples = interleave(jobs, repeats, tell)
    compared = {name: samples[first[name.partition(",")[0]]] for name in jobs}
    rows = [*(measured(n, own, (own, compared[n])) for n, own in samples.items()), *rows]
    return Report(
        benchmark="update",
        title=f"Updates: {config.algorithm.name} on {config.environment.id}",
        unit="calls/s",
        ratio_means=f"to {MODES[modes[0]]}",
        rows=rows,
        settings={"config": to_tree(config), "repeats": repeats, "seconds": seconds},
        notes=notes,
    )


def filled(algorithm: Algorithm, hook: str) -> Any:
    """What the hook is given for one update, from real steps."""
    buffer = next(iter(algorithm.context.buffers.values()))
    for _ in range(FILL):
        if (batch := algorithm.sample(buffer, hook=hook, phase=PHASE)) is not None:
            return batch
        result = algorithm.collect_step(0, phase=PHASE)
        if result.trajectory is not None:
            buffer.add(result.trajectory)
    raise UserError(f"after {FILL} collect calls there is still no batch to learn from")


def updating(algorithm: Algorithm, hook: str, batch: object, seconds: float) -> Callable[[], float]:
    """A job that gives calls per second. What was learned is taken back between the calls.

    So every call does the same work, however far the policy would have moved by then.
    """
    state = deepcopy(algorithm.get_state())
    call = getattr(algorithm, hook)

    def job() -> float:
        spent, calls = 0.0, 0
        while spent < seconds:
            algorithm.set_state(deepcopy(state))
            own = deepcopy(batch)  # an update may write into what it is given
            started = time.perf_counter()
            call(own, phase=PHASE)
            spent += time.perf_counter() - started
            calls += 1
        return calls / spent

    return job
