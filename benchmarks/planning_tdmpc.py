"""Planning of TD-MPC2: all candidates as one batch, against one by one.

    python benchmarks/planning_tdmpc.py [--environments 1] [--repeats 5] [--output FOLDER]

Both give the same plan from the same random numbers, which is checked. The weights are those of the
first moment, with rewards and values that are not zero.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from rl_lab.algorithms.tdmpc import plans
from rl_lab.algorithms.tdmpc.tdmpc import PLAN, TDMPC2
from rl_lab.algorithms.tdmpc.world_model import LatentModel, Policy
from rl_lab.api import configure
from rl_lab.benchmarking.measure import Tell, interleave
from rl_lab.benchmarking.report import RESULTS, Report, measured, save
from rl_lab.cli.bench import as_text
from rl_lab.cli.printing import warn
from rl_lab.config.resolve import resolve
from rl_lab.config.tree import to_tree
from rl_lab.core.batch import Action
from rl_lab.core.errors import RunError
from rl_lab.run.build import make_algorithm, make_context

SPEC = "dm_control/ball_in_cup-catch:tdmpc2"


def compare(spec: str, environments: int, repeats: int, tell: Tell, *words: str) -> Report:
    config = resolve(configure(spec, ["compute.compile=off", *words])[0])
    context = make_context(config)
    with closing(context.train_environment), torch.no_grad():
        algorithm = make_algorithm(config, context)
        assert isinstance(algorithm, TDMPC2)
        jobs = planners(algorithm, environments)
        found = [job().state[PLAN] for job in jobs.values()]
        if not torch.allclose(*found, atol=1e-3):
            raise RunError("the two ways do not give the same plan")
        samples = interleave(
            {name: partial(milliseconds, job) for name, job in jobs.items()}, repeats, tell
        )
    together, alone = samples.values()
    return Report(
        benchmark="planning_tdmpc",
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


def planners(algorithm: TDMPC2, environments: int) -> dict[str, Callable[[], Action]]:
    """The same decision in two ways."""
    generator = torch.Generator().manual_seed(0)
    for each in (algorithm.model.reward[-1].weight, algorithm.model.values.weights[-1]):
        each.normal_(std=0.1, generator=generator)
    shape = algorithm.context.spec.observation.shape  # type: ignore[union-attr]
    obs = torch.randn(environments, *shape, generator=generator)
    honest = plans.plan_returns

    def one_by_one(
        model: LatentModel,
        policy: Policy,
        z: Tensor,
        candidates: Tensor,
        noise: Tensor,
        pair: Tensor | None,
        gamma: Tensor,
    ) -> Tensor:
        returns = torch.empty(candidates.shape[:2])
        noise = noise.expand(len(z), -1, -1)
        for env in range(len(z)):
            for index in range(candidates.shape[1]):
                one = slice(env, env + 1), slice(index, index + 1)
                found = honest(model, policy, z[one[0]], candidates[one], noise[one], pair, gamma)
                returns[env, index] = found
        return returns

    def decide() -> Action:
        state = algorithm.initial_state(environments)
        return algorithm.act(obs, state, deterministic=True)

    def decide_slowly() -> Action:
        with mock.patch.object(plans, "plan_returns", one_by_one):
            return decide()

    return {"together": decide, "alone": decide_slowly}


def milliseconds(job: Callable[[], Action]) -> float:
    started = time.perf_counter()
    job()
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spec", default=SPEC, help="a preset or environment with tdmpc2")
    parser.add_argument("--environments", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a folder; default: benchmarks/results")
    options = parser.parse_args()
    report = compare(options.spec, options.environments, options.repeats, warn)
    print(as_text(report, {}), flush=True)
    folder = options.output or (RESULTS if RESULTS.is_dir() else None)
    if folder is not None:
        warn(f"written: {', '.join(map(str, save(report, folder / 'planning_tdmpc.json')))}")


if __name__ == "__main__":
    main()
