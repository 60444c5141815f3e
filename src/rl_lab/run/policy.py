"""A trained policy taken out of a run, to be measured or played: nothing of the run is touched."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rl_lab.algorithms.base import Workflow
from rl_lab.collect.evaluate import Evaluation
from rl_lab.config.resolve import resolve
from rl_lab.config.schema import RunConfig, config_hash
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import WorkflowContext
from rl_lab.core.state import Stateful
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.run_directory import RunDirectory, find_run
from rl_lab.run.build import make_context, make_evaluator, make_workflow
from rl_lab.run.session import file_hash, fitting, load_config


@dataclass(frozen=True)
class LoadedPolicy:
    """A workflow as it was at one checkpoint."""

    run: RunDirectory
    step: int
    config: RunConfig
    context: WorkflowContext
    workflow: Workflow
    evaluate: Callable[[str, int], Evaluation]  # (purpose, episodes)


def load(
    reference: str,
    root: Path,
    *,
    seed: int | None = None,
    deterministic: bool = True,
    device: str | None = None,
    trust: bool = False,
    warn: Callable[[str], None],
) -> LoadedPolicy:
    """The policy of `RUN`, `RUN:best`, `RUN:last` or `RUN:STEP`; the best one if nothing is said.

    `seed` replaces the run's own for whatever is random from here on. `warn` is called about each
    damaged checkpoint that was skipped, with the step that is used instead.
    """
    directory, which = find_run(reference, root)
    directory.check_complete()
    config = load_config(directory, trust=trust)
    known = (config_hash(config), file_hash(directory))
    experiment = replace(
        config.experiment,
        seed=config.experiment.seed if seed is None else seed,
        device=device or config.experiment.device,
    )
    config = resolve(
        replace(
            config,
            experiment=experiment,
            evaluation=replace(config.evaluation, deterministic=deterministic),
            compute=replace(config.compute, compile="off"),  # nothing will be learnt
            buffers={},  # nor remembered
        )
    )
    store = CheckpointStore(
        directory.checkpoints, on_skip=lambda message: warn(f"run {directory.id}: {message}")
    )
    if not store.steps() and not store.quarantined():
        raise UserError(f"run {directory.id} has no checkpoint yet")
    state, manifest, _ = store.load(which, rows=False)
    if manifest["config_hash"] not in known:
        step = manifest["step"]
        warn(f"run {directory.id}: config.yaml was changed after the checkpoint at step {step}")
    context = make_context(config)
    workflow = make_workflow(config, context)
    with fitting(manifest):
        workflow.set_state(state["workflow"])
        for role, part in context.components.items():
            if isinstance(part, Stateful):
                part.load_state_dict(state["parts"][f"component.{role}"])
    evaluate = make_evaluator(config, workflow, context.rng)
    return LoadedPolicy(directory, int(manifest["step"]), config, context, workflow, evaluate)
