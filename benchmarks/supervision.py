"""What watching the workers costs: process vectors with and without supervision, interleaved.

Without: the answer is read from the pipe at once. With: a poll on the pipe and on the worker's
end, under a deadline, so that a worker that dies or hangs is noticed.

    python benchmarks/supervision.py [--env HalfCheetah-v5] [--repeats 15]
"""

import argparse
import statistics
import time
from unittest.mock import patch

import numpy as np

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import make_vector
from rl_lab.envs.process import Worker


def unwatched(worker: Worker, seconds: float) -> tuple[bool, object]:
    good, answer = worker.pipe.recv()
    return good, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    config = EnvironmentConfig(
        id=options.env, num_envs=options.envs, vectorization="process", workers=2
    )
    vector = make_vector(config, list(range(options.envs)))
    action = np.zeros((options.envs, *vector.spec.action.shape), vector.spec.action.dtype)

    def seconds() -> float:
        started = time.perf_counter()
        for _ in range(options.steps):
            vector.step(action)
        return (time.perf_counter() - started) / options.steps

    vector.reset()
    seconds()
    with_, without = [], []
    for _ in range(options.repeats):
        with_.append(seconds())
        with patch.object(Worker, "receive", unwatched):
            without.append(seconds())
    vector.close()
    ratios = sorted(a / b for a, b in zip(with_, without, strict=True))
    low, middle, high = (ratios[int(q * (len(ratios) - 1))] for q in (0.25, 0.5, 0.75))
    print(f"{options.env}: {1e6 * statistics.median(with_):.0f} µs a vector step watched, ", end="")
    print(f"{1e6 * statistics.median(without):.0f} µs unwatched")
    print(f"ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f}, {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
