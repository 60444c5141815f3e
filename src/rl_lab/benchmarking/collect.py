"""`rl-lab bench collect`: what a policy and storage cost on top of stepping the environments."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from rl_lab.algorithms.base import Algorithm
from rl_lab.benchmarking.environments import stepping
from rl_lab.benchmarking.measure import Tell, interleave, silent
from rl_lab.benchmarking.report import Report, measured
from rl_lab.config.resolve import resolve
from rl_lab.config.tree import to_tree
from rl_lab.core.schema import RunConfig
from rl_lab.run.build import make_algorithm, make_context, make_policy

ENVIRONMENT, RANDOM, POLICY = "environment only", "random policy", "policy"


def bench_collect(
    config: RunConfig, *, repeats: int, seconds: float, tell: Tell = silent
) -> Report:
    """Environment steps per second while collecting, as the configuration says it is done."""
    config = resolve(config)
    jobs: dict[str, Callable[[], float]] = {}
    with ExitStack() as open_ones:
        for name in (POLICY, RANDOM, ENVIRONMENT):
            context = make_context(config)  # each has environments of its own
            open_ones.callback(context.train_environment.close)
            algorithm = make_algorithm(config, context)
            if name == ENVIRONMENT:
                jobs[name] = stepping(context, seconds)
            elif name == RANDOM:
                jobs[name] = collecting(make_policy("random", algorithm, context), seconds)
            else:
                jobs[name] = collecting(algorithm, seconds)
            jobs[name]()  # warm up
        samples = interleave(jobs, repeats, tell)
    return Report(
        benchmark="collect",
        title=f"Collecting: {config.algorithm.name} on {config.environment.id}",
        unit="environment steps/s",
        ratio_means=f"to collecting with the {POLICY}",
        rows=[measured(name, own, (own, samples[POLICY])) for name, own in samples.items()],
        settings={"config": to_tree(config), "repeats": repeats, "seconds": seconds},
        notes=[
            f"{config.environment.num_envs} environments, {config.environment.vectorization}; "
            f"'{RANDOM}' stores rows too, '{ENVIRONMENT}' does not"
        ],
    )


def collecting(algorithm: Algorithm, seconds: float) -> Callable[[], float]:
    """A job that collects for about this long and gives environment steps per second."""

    def job() -> float:
        taken = 0
        started = time.perf_counter()
        while (spent := time.perf_counter() - started) < seconds or not taken:
            taken += algorithm.collect_step(taken, phase=PHASE | {"step": taken}).steps
        return taken / spent

    return job


PHASE = {  # what a hook may look up: the beginning of a run of one phase
    "name": "bench",
    "type": "online",
    "progress": 0.0,
    "step": 0,
    "policy": None,
    "buffer": None,
}
