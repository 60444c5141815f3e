"""A new run that goes on from a checkpoint of another one, with changed options."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_lab.algorithms.base import VALUES
from rl_lab.config.compose import compose
from rl_lab.config.tree import config_hash, diff, to_tree
from rl_lab.config.validate import validate
from rl_lab.core.errors import RunError, UserError
from rl_lab.core.schedule import Schedule, in_steps
from rl_lab.core.schema import RunConfig
from rl_lab.core.state import Tree, fingerprint
from rl_lab.display.sinks import Sinks
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import remove, write_atomically
from rl_lab.records.files import open_to_read
from rl_lab.records.formatting import fixed
from rl_lab.records.metrics import METRICS_CHECKSUM, check_rows
from rl_lab.records.provenance import provenance
from rl_lab.records.run_directory import RunDirectory, Which, find_run
from rl_lab.run.build import build_run, make_algorithm, make_context
from rl_lab.run.orchestrator import Orchestrator
from rl_lab.run.out_of_memory import explaining_memory
from rl_lab.run.session import (
    EXACT,
    UNFIT,
    Outcome,
    View,
    changed_numerics,
    create_run,
    file_hash,
    load_config,
    no_view,
    resolve_config,
    run_loop,
)

# What a saved state was made by: with another value there is no place for it.
FIXED = (
    *(
        "version",
        "environment",
        "network",
        "components",
        "optimizers",
        "algorithm.name",
        "training.phases",
    ),
    *("training.callbacks", "training.warm_start", "training.warm_start_parts"),
)
SCHEDULES = ("stretch", "keep")  # what a fork of another length makes of them


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a fork begins with."""

    run: RunDirectory
    step: int
    config: RunConfig
    state: Tree
    manifest: dict[str, Any]

    @property
    def lineage(self) -> dict[str, Any]:
        """What the new run remembers of it."""
        return {"id": self.run.id, "step": self.step}

    def rows(self) -> bytes:
        """The metrics up to here: the history of the new run, too."""
        with open_to_read(self.run.metrics_file) as file:
            return file.read(self.state["metrics_offset"])


def fork(
    reference: str,
    overrides: Sequence[str] = (),
    *,
    root: Path,
    command: Sequence[str] = (),
    view: View = no_view,
    debug: bool = False,
    schedules: str = "stretch",
    trust: bool = False,
) -> Outcome:
    """Train on from `RUN:STEP` as a new run. Without changes it does what that run did.

    With another `total_timesteps`, schedules over the whole run `stretch` to the new length, or
    `keep` the old one and stay at their end after it.
    """
    if schedules not in SCHEDULES:
        raise UserError(f"schedules must be stretch or keep, got '{schedules}'")
    parent, which = find_run(reference, root)
    root, sinks = fixed(root), Sinks([], None)
    origin = find_origin(RunDirectory(fixed(parent.path)), which, trust=trust, warn=sinks.warn)
    composed = compose(None, overrides, run_config=origin.run.config_file)
    config = validate(composed.tree, composed.origins, existing=True)
    config, lines = reschedule(origin, config, schedules)
    for line in lines:
        sinks.say(line)
    config = resolve_config(config, sinks)
    changed = changes(origin.config, config)
    # Before the new run is built: building seeds the global random streams.
    built = as_built(origin.config) if changed else {}

    def create() -> RunDirectory:
        facts = provenance(list(command), config.plugins) | {"parent": origin.lineage}
        directory = create_run(config, root, facts, sinks)
        write_atomically(directory.metrics_file, origin.rows())
        return directory

    with explaining_memory(config):
        orchestrator, directory = build_run(config, create, sinks)
    with directory.lock(), closing(orchestrator):
        try:
            begin_from(orchestrator, origin, changed, built)
        except (UserError, *UNFIT) as error:
            remove(directory.path)
            raise UserError(_refusal(reference, changed, error)) from error
        directory.write_summary({"parent": origin.lineage})
        if not orchestrator.save():  # from here on it needs its parent no more
            raise RunError("the first checkpoint could not be written: free some space")
        return run_loop(orchestrator, directory, root, view, debug)


def find_origin(
    run: RunDirectory, which: Which, *, trust: bool = False, warn: Callable[[str], object]
) -> Origin:
    """A checkpoint with the configuration that it was written under."""
    run.check_complete()
    config = load_config(run, trust=trust)
    store = CheckpointStore(run.checkpoints, on_skip=warn)
    if not store.steps() and not store.quarantined():
        raise UserError(f"run {run.id} has no checkpoint yet to go on from")
    state, manifest, _ = store.load("last" if which is None else which)
    if manifest["config_hash"] not in (config_hash(config), file_hash(run)):
        raise UserError(
            f"config.yaml of run {run.id} was changed after the checkpoint at step "
            f"{manifest['step']}: undo the change, and give it as key=value instead"
        )
    check_rows(run.metrics_file, state["metrics_offset"], manifest.get(METRICS_CHECKSUM))
    return Origin(run, int(manifest["step"]), config, state, manifest)


def changes(before: RunConfig, after: RunConfig) -> list[str]:
    """The options that differ; those that no saved state survives are refused."""
    changed = [path for path, *_ in diff(to_tree(before), to_tree(after))]
    for path in changed:
        if any(path == each or path.startswith(f"{each}.") for each in FIXED):
            raise UserError(
                f"{path} cannot be changed in a fork: the saved state was made with it; "
                "--init-from-run starts a new run from the weights alone"
            )
    return changed


def reschedule(origin: Origin, config: RunConfig, schedules: str) -> tuple[RunConfig, list[str]]:
    """The config with the schedules that are wanted, and a line about each that jumps or ends.

    Those that were changed by hand are left as they are written.
    """
    before, after = vars(origin.config.algorithm), vars(config.algorithm)
    kept, lines, step = {}, [], origin.step
    for name, new in after.items():
        old = before.get(name)
        if not isinstance(old, Schedule) or not isinstance(new, Schedule):
            continue
        if old.to_tree() != new.to_tree() or old.total == new.total:
            continue
        if schedules == "keep":
            kept[name] = replace(in_steps(old), total=new.total)
            lines.append(
                f"algorithm.{name} goes on as it was: {old(step):.3g} here, "
                f"{old(new.total or step):.3g} at the end"
            )
        elif old(step) != new(step):
            lines.append(
                f"WARNING: algorithm.{name} jumps from {old(step):.3g} to {new(step):.3g} at step "
                f"{step:,}: its schedule now lasts {new.total:,} steps (--schedules keep: go on "
                f"with the old one, and stay at its end, {old.end:.3g})"
            )
    algorithm = replace(config.algorithm, **kept) if kept else config.algorithm
    return replace(config, algorithm=algorithm), lines


def as_built(config: RunConfig) -> Mapping[str, Any]:
    """The plain attributes of an algorithm that has not done anything yet."""
    context = make_context(config)
    with closing(context.train_environment):
        return dict(make_algorithm(config, context).get_state()[VALUES])


def begin_from(
    run: Orchestrator, origin: Origin, changed: Sequence[str], built: Mapping[str, Any]
) -> None:
    """Become what was saved, but for what the changed options decide."""
    if different := changed_numerics(run, origin.manifest):
        words = ", ".join(different)
        run.sinks.say(f"WARNING: not bit for bit: {words} changed since the checkpoint")
    run.load(_with_new_values(origin.state, built, run.algorithm.get_state()[VALUES]))
    progress, scheduler = run.progress, run.scheduler
    exact = run.environment.snapshot_level in EXACT
    progress.resumes = 0 if exact else progress.resumes + 1
    progress.best_score = progress.best_step = None  # that checkpoint is in another folder
    if any(path.startswith("evaluation.") for path in changed):
        progress.streak = 0
    left = run.config.training.total_timesteps - run.counters.env_steps
    if left > 0 and scheduler.current_phase() is None and not scheduler.phases[-1].bounded:
        scheduler.index = len(scheduler.phases) - 1  # only the budget had ended it
    reached = progress.streak >= run.config.evaluation.patience
    if left <= 0 or reached or scheduler.next_action() is None:
        raise UserError("nothing is left to do there: raise training.total_timesteps")
    if "experiment.seed" in changed:
        _take_another_future(run)


def _with_new_values(state: Tree, built: Mapping[str, Any], now: Mapping[str, Any]) -> Tree:
    """A state in which an attribute that training never moved has the value of the new options.

    `collect_steps`, for example: it is saved with the rest, but the configuration decides it.
    """
    saved = state["workflow"][VALUES]
    new = {
        name: now[name]
        for name in built
        if name in saved
        and name in now
        and _same(saved[name], built[name])
        and not _same(built[name], now[name])
    }
    return {**state, "workflow": {**state["workflow"], VALUES: {**saved, **new}}}


def _same(left: object, right: object) -> bool:
    return fingerprint(left) == fingerprint(right)


def _take_another_future(run: Orchestrator) -> None:
    """Other random numbers from here on, and new episodes: the new seed decides them."""
    run.streams.begin_epoch(run.streams.epoch)
    fresh = run.streams.numpy("fork").integers(2**31, size=run.environment.num_envs)
    run.environment.reset([int(each) for each in fresh])
    run.collector.restart()


def _refusal(reference: str, changed: Sequence[str], error: Exception) -> str:
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    with_what = f" with another {', '.join(changed)}" if changed else ""
    return f"{reference} cannot go on{with_what}: {reason}"
