"""Where a run ends, if it cannot end exactly at its budget."""

from collections.abc import Sequence

from rl_lab.algorithms.base import Algorithm
from rl_lab.core.schema import RunConfig
from rl_lab.run.phases import PhaseDefinition


def late_end(
    config: RunConfig, algorithm: Algorithm, phases: Sequence[PhaseDefinition]
) -> list[str]:
    """A line if a run cannot end at `total_timesteps`; a warning if it is 1 % longer or more.

    Where several phases collect, only the run itself can tell.
    """
    if [hook for phase in phases for hook in phase.hooks].count("collect") != 1:
        return []
    total, envs = config.training.total_timesteps, config.environment.num_envs
    steps = -(-total // envs)
    rest = steps % algorithm.collect_steps
    last = algorithm.shortened(rest) if rest else 0
    end = (steps - rest + last) * envs
    if end == total:
        return []
    if last == rest:
        reason = f"all {envs} environments take a step at a time"
    elif config.compute.compile == "on":
        reason = "compiled rollouts have a fixed length"
    else:
        reason = f"the last rollout has {last} steps of each environment at least"
    prefix = "WARNING: " if end >= 1.01 * total else ""
    line = f"the run ends after {end:,} steps, not after total_timesteps {total:,}: {reason}"
    return [f"{prefix}{line}"]
