"""`rl-lab bench envs`: how fast each way of stepping an environment is. No policy, no storage."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import get_args, get_type_hints

from rl_lab.api import configure
from rl_lab.benchmarking.measure import Tell, interleave, silent
from rl_lab.benchmarking.report import Report, absent, measured
from rl_lab.collect.collector import to_array, to_tensor
from rl_lab.config.resolve import resolve
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import AlgorithmContext, VectorEnv
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import find
from rl_lab.run.build import make_algorithm, make_context

DEFAULT_IDS = ("CartPole-v1", "Pendulum-v1")
BASELINE = "sync"
ACTIONS = 64  # drawn before the clock starts, then used in turn
BLOCK = 16  # vector steps between two looks at the clock


def bench_environments(
    ids: Sequence[str],
    counts: Sequence[int],
    *,
    repeats: int,
    seconds: float,
    tell: Tell = silent,
) -> Report:
    """Environment steps per second of every backend that works, and its ratio to `sync`."""
    ids = list(ids) or list(DEFAULT_IDS)
    for id in ids:  # a wrong name is reported first
        find(id)
    rows = []
    for id in ids:
        for count in counts:
            tell(f"{id}, {count} environments")
            rows += _one(id, count, repeats, seconds, tell)
    return Report(
        benchmark="envs",
        title="Stepping environments at random",
        unit="environment steps/s",
        ratio_means=f"to {BASELINE}",
        rows=rows,
        settings={"ids": ids, "num_envs": list(counts), "repeats": repeats, "seconds": seconds},
    )


def backends() -> list[str]:
    """Every value of `environment.vectorization` but `auto`, the baseline first."""
    names = get_args(get_type_hints(EnvironmentConfig)["vectorization"])
    return [BASELINE, *(each for each in names if each not in ("auto", BASELINE))]


def _one(id: str, count: int, repeats: int, seconds: float, tell: Tell) -> list[dict[str, object]]:
    """The rows of one environment at one size."""
    names = {each: f"{id} x {count} {each}" for each in backends()}
    jobs: dict[str, Callable[[], float]] = {}
    refused: dict[str, str] = {}
    with ExitStack() as open_ones:
        for backend in names:
            try:
                context = _context(id, count, backend)
            except UserError as error:
                if backend == BASELINE:
                    raise
                refused[backend] = str(error).splitlines()[0]
                continue
            open_ones.callback(context.train_environment.close)
            jobs[backend] = stepping(context, seconds)
            jobs[backend]()  # caches fill, workers wake up
        samples = interleave(jobs, repeats, tell)
    return [
        absent(name, refused[backend])
        if backend in refused
        else measured(name, samples[backend], (samples[backend], samples[BASELINE]))
        for backend, name in names.items()
    ]


def _context(id: str, count: int, backend: str) -> AlgorithmContext:
    words = [f"environment.num_envs={count}", f"environment.vectorization={backend}"]
    return make_context(resolve(configure(f"{id}:random", words)[0]))


def stepping(context: AlgorithmContext, seconds: float) -> Callable[[], float]:
    """A job that steps for about this long and gives environment steps per second."""
    environment: VectorEnv = context.train_environment
    config = resolve(configure(f"{context.config.environment.id}:random")[0])
    policy = make_algorithm(config, context)  # only asked for actions, before the clock starts
    obs = to_tensor(context.initial_observation, context.device)
    actions = [to_array(policy.act(obs, None, deterministic=False).action) for _ in range(ACTIONS)]

    def job() -> float:
        taken = number = 0
        started = time.perf_counter()
        while True:
            for _ in range(BLOCK):
                step = environment.step(actions[number % ACTIONS])
                # Rows in which an environment only reset itself are no steps.
                taken += len(step.reward) if step.valid is None else int(step.valid.sum())
                number += 1
            spent = time.perf_counter() - started
            if spent >= seconds:
                return taken / spent

    return job
