"""Planning in PlaNet's world model: all candidates as one batch, against one by one.

    python benchmarks/planning.py [--environments 1] [--repeats 5] [--output FOLDER]

Both give the same plan from the same random numbers, which is checked. The weights are those of the
first moment: what they are makes no difference to the time.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rl_lab.algorithms.planet import PlaNet, reward_sums
from rl_lab.api import configure
from rl_lab.benchmarking.measure import Tell, interleave
from rl_lab.benchmarking.report import RESULTS, Report, measured, save
from rl_lab.cli.bench import as_text
from rl_lab.cli.printing import warn
from rl_lab.config.resolve import resolve
from rl_lab.config.tree import to_tree
from rl_lab.core.errors import RunError
from rl_lab.planning.cem import cem, planner_noise
from rl_lab.planning.plans import Plan
from rl_lab.run.build import make_algorithm, make_context

SPEC = "dm_control/cartpole-balance:planet"


def compare(spec: str, environments: int, repeats: int, tell: Tell, *words: str) -> Report:
    config = resolve(configure(spec, ["compute.compile=off", *words])[0])
    context = make_context(config)
    with closing(context.train_environment), torch.no_grad():
        algorithm = make_algorithm(config, context)
        assert isinstance(algorithm, PlaNet)
        jobs = planners(algorithm, environments)
        plans = [job() for job in jobs.values()]
        if not torch.allclose(plans[0].mean, plans[1].mean, atol=1e-3):
            raise RunError("the two ways do not give the same plan")
        samples = interleave(
            {name: partial(milliseconds, job) for name, job in jobs.items()}, repeats, tell
        )
    together, alone = samples.values()
    return Report(
        benchmark="planning",
        title=f"One decision of {spec} for {environments} environment(s)",
        unit="milliseconds",
        ratio_means="of the loop's time to this one's",
        rows=[
            measured("all candidates at once", together, (alone, together)),
            measured("one candidate at a time", alone, (alone, alone)),
        ],
        settings={"config": to_tree(config), "environments": environments, "repeats": repeats},
        notes=["both give the same plan", f"torch threads: {torch.get_num_threads()}"],
    )


def planners(algorithm: PlaNet, environments: int) -> dict[str, Callable[[], Plan]]:
    """The same plan in two ways."""
    generator, config = torch.Generator().manual_seed(0), algorithm.config.planner
    actions = algorithm.initial_state(1)["action"].shape[1]
    belief = {
        key: torch.randn(value.shape, generator=generator)
        for key, value in algorithm.world.rssm.initial(environments).items()
    }
    latents = algorithm.world.noise((config.horizon, config.candidates), generator)
    noise = planner_noise(config, environments, actions, generator)
    first = torch.zeros(environments, config.horizon, actions)
    sums = partial(reward_sums, algorithm.world, gamma=1.0, ends=algorithm.config.predicts_ends)

    def one_by_one(candidates: Tensor) -> Tensor:
        returns = torch.empty(candidates.shape[:2])
        for env in range(environments):
            own = {key: value[env : env + 1] for key, value in belief.items()}
            for index in range(config.candidates):
                alone = candidates[env : env + 1, index : index + 1]
                returns[env, index] = sums(own, latents[:, index : index + 1], alone)
        return returns

    return {
        "together": lambda: cem(partial(sums, belief, latents), first, noise, config),
        "alone": lambda: cem(one_by_one, first, noise, config),
    }


def milliseconds(job: Callable[[], Plan]) -> float:
    started = time.perf_counter()
    job()
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spec", default=SPEC, help="a preset or environment with planet")
    parser.add_argument("--environments", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a folder; default: benchmarks/results")
    options = parser.parse_args()
    report = compare(options.spec, options.environments, options.repeats, warn)
    print(as_text(report, {}), flush=True)
    folder = options.output or (RESULTS if RESULTS.is_dir() else None)
    if folder is not None:
        warn(f"written: {', '.join(map(str, save(report, folder / 'planning.json')))}")


if __name__ == "__main__":
    main()
