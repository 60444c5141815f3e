"""Where the time of PPO goes: environment, policy, bookkeeping, update. Run by `make bench`.

The settings are those that most libraries use for a comparison: CartPole-v1, 8 environments x 128
steps, 4 epochs x 4 minibatches, actor and critic of 2 x 64 tanh, one thread, eager. Parts are timed
inside one run, so their sum is the time of training without evaluation, logging and checkpoints.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from rl_lab.api import configure
from rl_lab.config.resolve import resolve
from rl_lab.run.build import make_algorithm, make_context

SETTINGS = [
    "environment.id=CartPole-v1",
    "environment.num_envs=8",
    "algorithm.name=ppo",
    "algorithm.rollout_steps=128",
    "algorithm.epochs=4",
    "algorithm.minibatches=4",
    "network.encoder.hidden_dims=[64, 64]",
    "network.encoder.activation=tanh",
    "compute.compile=off",
    "compute.threads=1",
]
WARM_UP = 3  # rollouts that are not counted


class Stopwatch:
    """Adds up the time that is spent inside a function."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments, **options)
            self.seconds += time.perf_counter() - started
            return result

        return timed


def measure(rollouts: int) -> tuple[int, dict[str, float]]:
    """Environment steps taken, and the seconds of each part."""
    config = resolve(configure(overrides=SETTINGS)[0])
    context = make_context(config)
    algorithm = make_algorithm(config, context)
    environment, policy = Stopwatch(), Stopwatch()
    context.train_environment.step = environment.around(context.train_environment.step)
    algorithm.act = policy.around(algorithm.act)
    steps = 0
    collect = update = 0.0
    for rollout in range(WARM_UP + rollouts):
        if rollout == WARM_UP:
            steps, collect, update = 0, 0.0, 0.0
            environment.seconds = policy.seconds = 0.0
        started = time.perf_counter()
        result = algorithm.collect_step(steps, phase={"step": steps})
        middle = time.perf_counter()
        algorithm.update(result.trajectory, phase={"step": steps})
        collect += middle - started
        update += time.perf_counter() - middle
        steps += result.steps
    context.train_environment.close()
    return steps, {
        "environment step": environment.seconds,
        "policy": policy.seconds,
        "bookkeeping": collect - environment.seconds - policy.seconds,
        "update": update,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=50, help="rollouts of 1,024 steps to time")
    steps, parts = measure(parser.parse_args().rollouts)
    parts |= {
        "collect": sum(parts.values()) - parts["update"],
        "total": sum(parts.values()),
    }
    print(
        f"PPO on CartPole-v1, {steps:,} steps, 8 envs x 128, 4 x 4 minibatches, eager, 1 thread\n"
    )
    print(f"{'part':18}{'steps/s':>12}{'µs/step':>10}{'share':>8}")
    for name, seconds in parts.items():
        share, each = seconds / parts["total"], seconds / steps * 1e6
        print(f"{name:18}{steps / seconds:12,.0f}{each:10.1f}{share:8.0%}")


if __name__ == "__main__":
    main()
