"""The life of a run around the loop: its folder, its lock, its summary, its end or its return."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rl_lab.config.catalog import algorithm_class
from rl_lab.config.compose import compose
from rl_lab.config.local_names import require_local
from rl_lab.config.resolve import resolve
from rl_lab.config.tree import config_hash, diff, to_tree, to_yaml, tree_hash
from rl_lab.config.trust import dangers, require_trust
from rl_lab.config.validate import validate
from rl_lab.core.errors import ConfigError, RunError, UserError
from rl_lab.core.failure import located, whole_traceback
from rl_lab.core.schema import RunConfig
from rl_lab.core.state import Tree
from rl_lab.display.sinks import Sink, Sinks, TensorBoardSink
from rl_lab.monitoring.catalog import with_own_monitors
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.columns import Columns, read_columns
from rl_lab.records.commit import write_atomically
from rl_lab.records.config_file import load_tree
from rl_lab.records.formatting import fixed, from_here
from rl_lab.records.index import Index, row_of
from rl_lab.records.mark import doubt, write_mark
from rl_lab.records.metrics import METRICS_CHECKSUM, check_rows
from rl_lab.records.provenance import provenance
from rl_lab.records.run_directory import RunDirectory, Which, find_run
from rl_lab.records.source import code_change, read_provenance
from rl_lab.run.build import build_run
from rl_lab.run.debug import PROFILE, TraceUpdates, WeightLog, debugger, for_debugger, profiling
from rl_lab.run.efficiency import count_parameters, fixed_costs
from rl_lab.run.filming import film_end
from rl_lab.run.final_test import final_test
from rl_lab.run.keys import listening
from rl_lab.run.orchestrator import Orchestrator
from rl_lab.run.out_of_memory import explaining_memory
from rl_lab.run.phases import never_reached, parse_phases
from rl_lab.run.services import add_wandb, add_webhook, without_webhook
from rl_lab.run.session_callbacks import (
    FilmEvaluations,
    PurgeTensorBoard,
    RecordSummary,
    ShowPictures,
    picture_sink,
)
from rl_lab.run.signals import stop_on_signals

EXACT = ("E0", "E1")
ENDS = ("failed", "interrupted", "preempted")  # told to displays at once; `finished` has a video
# What loading a state into a run that it was not made for may raise, besides a `UserError`.
UNFIT = (KeyError, TypeError, ValueError, RuntimeError, AssertionError, AttributeError, IndexError)
# (config, folder, first step) -> what shows the run to a human
View = Callable[[RunConfig, RunDirectory, int], Sequence[Sink]]


def no_view(config: RunConfig, directory: RunDirectory, start: int) -> Sequence[Sink]:
    """Show nothing."""
    return ()


@dataclass(frozen=True, repr=False)
class Outcome:
    """How a run ended: its folder, its summary.json, and 0 if it finished (130 after Ctrl-C)."""

    run: RunDirectory
    summary: dict[str, Any]
    exit_code: int

    def metrics(self) -> Columns:
        """Every row of metrics.jsonl, as columns."""
        return read_columns(self.run.metrics_file)

    def __repr__(self) -> str:
        """Which run, how far it came and what it reached."""
        test = (self.summary.get("test") or {}).get("last", {}).get("return_mean")
        shown = "" if test is None else f", test_return={test:.4g}"
        return (
            f"{type(self).__name__}(run={self.run.id!r}, status={self.summary.get('status')!r}, "
            f"env_steps={self.summary.get('env_steps')}{shown})"
        )


def train(
    config: RunConfig,
    *,
    root: Path,
    command: Sequence[str] = (),
    view: View = no_view,
    debug: bool = False,
    notes: Sequence[str] = (),
) -> Outcome:
    """A new run, from the first step. Nothing is written before everything could be built.

    With `debug`, weight statistics and a profile are written into its `logs/`. `notes` are shown
    and logged before anything else.
    """
    sinks = Sinks([], None)
    warm = find_weights(config.training.warm_start, root, warn=sinks.warn)
    root = fixed(root)
    for note in notes:
        sinks.say(note)
    config = resolve_config(config, sinks)

    def create() -> RunDirectory:
        return create_run(config, root, provenance(list(command), config.plugins), sinks)

    with explaining_memory(config):
        orchestrator, directory = build_run(config, create, sinks, weights=warm)
    with directory.lock(), closing(orchestrator):
        return run_loop(orchestrator, directory, root, view, debug)


def create_run(
    config: RunConfig, root: Path, facts: Mapping[str, Any], sinks: Sinks
) -> RunDirectory:
    """The folder of a new run, with its configuration and where it came from."""
    name = config.experiment.name or f"{config.environment.id}-{config.algorithm.name}"
    directory = RunDirectory.create(root, name)
    text = to_yaml(config).encode()
    # The mark first: a folder with a config.yaml is a run, and never lacks it.
    if (unmarked := write_mark(directory, text)) and any(dangers(to_tree(config))):
        sinks.say(
            f"WARNING: this run cannot be marked as yours ({unmarked}): because it names code, "
            "resuming or evaluating it will need --trust"
        )
    write_atomically(directory.config_file, text)
    write_atomically(directory.provenance_file, json.dumps(facts, indent=2).encode())
    return directory


def resolve_config(config: RunConfig, sinks: Sinks) -> RunConfig:
    """What this process makes of a config before it is written down, reported once."""
    if held := debugger():
        config = for_debugger(config)
        sinks.say(f"{held} is attached: one environment, in this process")
    config = without_webhook(with_own_monitors(config), sinks)
    for line in config_warnings(config):
        sinks.say(f"WARNING: {line}")
    resolved = resolve(config, measure=True, tell=sinks.say)
    chosen = diff(to_tree(config), to_tree(resolved))
    if chosen:
        words = (f"{path}={value}" for path, _, value in chosen)
        sinks.say(f"auto: {', '.join(words)}")
    return resolved


def config_warnings(config: RunConfig) -> list[str]:
    """What is legal and probably not meant."""
    blocks = config.training.phases or algorithm_class(config.algorithm).phases
    lines = never_reached(parse_phases(blocks), config.training.total_timesteps)
    return [*lines, *config.algorithm.warnings(config)]


def resume(
    reference: str,
    *,
    root: Path,
    view: View = no_view,
    debug: bool = False,
    trust: bool = False,
) -> Outcome:
    """Continue a run from its newest good checkpoint, or from the one that is named."""
    directory, which = find_run(reference, root)
    root, directory = fixed(root), RunDirectory(fixed(directory.path))
    with directory.lock():
        directory.clean()
        directory.check_complete()
        config = load_config(directory, trust=trust)
        sinks = Sinks([], directory.log_file)
        add_webhook(config.logging.alerts.webhook, sinks)
        if changed := code_change(directory):
            sinks.say(f"WARNING: {changed}: it may not go on bit for bit")
        # A run that has no checkpoint yet begins again, from the weights it began with.
        weights = None
        if not CheckpointStore(directory.checkpoints).steps():
            _check_never_saved(directory)
            weights = find_weights(config.training.warm_start, root, warn=sinks.warn)
        with explaining_memory(config):
            orchestrator, _ = build_run(config, lambda: directory, sinks, weights=weights)
        with closing(orchestrator):
            _return_to(orchestrator, which, file_hash(directory))
            return run_loop(orchestrator, directory, root, view, debug)


def _check_never_saved(directory: RunDirectory) -> None:
    """Refuse a run that had checkpoints and lost them: it would silently begin again."""
    summary = directory.read_summary()
    damaged = CheckpointStore(directory.checkpoints).quarantined()
    if damaged or summary.get("saved_step") is not None or summary.get("status") == "finished":
        lost = f"damaged ({damaged[-1].name})" if damaged else "gone"
        raise UserError(
            f"run {directory.id} cannot go on: all of its checkpoints are {lost}; to train it "
            f"again as a new run: rl-lab train --config {from_here(directory.config_file)}"
        )
    if "parent" in read_provenance(directory):
        raise UserError(f"run {directory.id} was stopped before it began: fork it again")


def _return_to(orchestrator: Orchestrator, which: Which, written: str) -> None:
    """Load a checkpoint, the newest good one if none is named; forget what came after it."""
    store = orchestrator.store
    store.clean()
    if which is None and not store.steps():
        orchestrator.sinks.say("no checkpoint yet: starting again from the first step")
        orchestrator.metrics.truncate(0)
    else:
        state, manifest, _ = store.load("last" if which is None else which)
        if manifest.get("policy_only"):
            raise UserError(
                f"{store.directory.parent} is a published policy without its training state: it "
                "cannot be resumed; start a new run with --init-from-run"
            )
        check_identity(orchestrator, manifest, written)
        with fitting(manifest):
            rows = orchestrator.metrics.path
            check_rows(rows, state["metrics_offset"], manifest.get(METRICS_CHECKSUM))
            orchestrator.load(state)
        store.rewind(orchestrator.counters.env_steps)
        step, total = orchestrator.counters.env_steps, orchestrator.config.training.total_timesteps
        orchestrator.sinks.say(f"resumed from step {step:,} of {total:,}")
    orchestrator.progress.resumes += 1


@contextmanager
def fitting(manifest: Mapping[str, Any]) -> Iterator[None]:
    """One line for a state that is whole, and not of this run."""
    try:
        yield
    except UNFIT as error:
        why = next(iter(str(error).splitlines()), "")
        raise UserError(
            f"the checkpoint at step {manifest['step']} does not fit its run: "
            f"{type(error).__name__}: {why}"
        ) from error


def check_identity(orchestrator: Orchestrator, manifest: Mapping[str, Any], written: str) -> None:
    """The same configuration, or no resume; other numerics only end the promise of equal bits.

    `written` is the hash of config.yaml as it stands: an earlier version of RL Lab wrote it without
    the options that came later, and saved that hash.
    """
    own = orchestrator.identity
    if manifest["config_hash"] not in (own["config_hash"], written):
        raise UserError(
            f"config.yaml was changed after the checkpoint at step {manifest['step']}: undo the "
            "change, or start a new run with training.warm_start"
        )
    if changed := changed_numerics(orchestrator, manifest):
        orchestrator.sinks.say(
            f"WARNING: not bit for bit from here: {', '.join(changed)} changed since the checkpoint"
        )


def changed_numerics(orchestrator: Orchestrator, manifest: Mapping[str, Any]) -> list[str]:
    """What decides the last bit of a float and is not what it was at a checkpoint."""
    now, then = orchestrator.identity["numerics"], manifest["numerics"]
    return [key for key, value in now.items() if then.get(key) != value]


def file_hash(directory: RunDirectory) -> str:
    """The hash of a run's config.yaml as it stands, defaults that it lacks not filled in."""
    return tree_hash(load_tree(directory.config_file))


def load_config(directory: RunDirectory, *, trust: bool = False) -> RunConfig:
    """The typed config of an existing run; what it names is only imported if that is trusted."""
    composed = compose(run_config=directory.config_file)
    name, why = f"run {directory.id}", partial(doubt, directory)
    require_trust(composed.tree, name, why, trust=trust)
    require_local(composed.tree, directory.id)
    try:
        return validate(composed.tree, composed.origins, existing=True)
    except ConfigError as error:
        first, *others = error.problems
        more = f" (and {len(others)} more problems)" if others else ""
        raise UserError(f"{name} cannot be loaded: {first}{more}") from error


def find_weights(
    reference: str | None, root: Path, *, warn: Callable[[str], object]
) -> Tree | None:
    """The algorithm state that `training.warm_start` names."""
    if reference is None:
        return None
    directory, which = find_run(reference, root)
    directory.check_complete()
    store = CheckpointStore(directory.checkpoints, on_skip=warn)
    return store.load(which, rows=False)[0]["workflow"]


def run_loop(
    orchestrator: Orchestrator, directory: RunDirectory, root: Path, view: View, debug: bool
) -> Outcome:
    """Run the loop under signal handlers; whatever happens, the summary tells it."""
    config, start = orchestrator.config, orchestrator.counters.env_steps
    before = directory.read_summary()
    began = time.monotonic()
    sinks = orchestrator.sinks
    # Some display libraries draw random numbers when they are imported: not from the run's streams.
    with orchestrator.streams.borrowed("sinks/"):
        sinks.attach(directory.log_file, view(config, directory, start))
        if config.logging.tensorboard:
            events = directory.path / "tensorboard" / f"seed_{config.experiment.seed}"
            rows = directory.metrics_file
            sinks.add(lambda: TensorBoardSink(events, purge_step=start, metrics_file=rows))
        if config.logging.wandb.enabled:
            before["wandb_id"] = add_wandb(orchestrator, directory, before.get("wandb_id"))
        if config.logging.pictures and orchestrator.algorithm.draws:
            sinks.add(lambda: picture_sink(directory))
            orchestrator.add_callback("session/pictures", ShowPictures())
    orchestrator.add_callback("session/tensorboard", PurgeTensorBoard())
    if every := config.logging.video_every:
        orchestrator.add_callback("session/videos", FilmEvaluations(every))

    handler = _Warnings(sinks)
    logging.getLogger("rl_lab").addHandler(handler)
    orchestrator.resources.callback(logging.getLogger("rl_lab").removeHandler, handler)

    def record(status: str, **more: object) -> dict[str, Any]:
        """Tell summary.json and the index; both may be read while the run goes on."""
        summary = {
            **before,
            **describe(orchestrator, directory),
            "efficiency": before.get("efficiency", {}) | costs(orchestrator),
            "status": status,
            "wall_time": before.get("wall_time", 0.0) + time.monotonic() - began,
            "updated": time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
            **more,
        }
        try:
            directory.write_summary(summary)
        except OSError as error:
            raise RunError(
                f"cannot write {directory.summary_file}: {error.strerror}; make room, then resume "
                "the run: it goes on from its last checkpoint, if it has one"
            ) from error
        Index(root).upsert(row_of(directory, root))
        if status in ENDS:
            sinks.summarize(summary)
        return summary

    with stop_on_signals(orchestrator.stop):
        record("running", error=None)
        orchestrator.add_callback("session/summary", RecordSummary(partial(record, "running")))
        try:
            with (
                explaining_memory(config),
                _watched(orchestrator, directory, debug),
                listening(orchestrator),
            ):
                finished = orchestrator.run()
            if finished:
                envs = config.environment.num_envs
                for warning in orchestrator.scheduler.final_warnings(
                    orchestrator.counters.updates, envs
                ):
                    sinks.say(f"WARNING: {warning}")
                summary = record("finished", test=final_test(orchestrator))
        except BaseException as error:
            failure = _stopped(error)
            # On a full disk these fail, too: the first error is reported.
            with suppress(OSError, RunError):
                explain_failure(failure, orchestrator, directory)
                record("failed", error=located(failure))
            with suppress(OSError, RunError):
                orchestrator.metrics.close()
            if failure is error:
                raise
            raise failure from error
        stop = orchestrator.stop
        if finished:
            if config.logging.report and config.logging.final_video:
                film_end(orchestrator)
            sinks.summarize(summary)
            return Outcome(directory, summary, stop.exit_code if stop.requested else 0)
        code = stop.exit_code
        return Outcome(directory, record("interrupted" if code == 130 else "preempted"), code)


def _stopped(error: BaseException) -> BaseException:
    """The error itself; `sys.exit` in a user's code must not end the run without a word."""
    if isinstance(error, SystemExit):
        failure = RunError(f"{located(error)} (code of a run must not end the process)")
        failure.__cause__ = error
        return failure
    return error


def explain_failure(
    error: BaseException, orchestrator: Orchestrator, directory: RunDirectory
) -> None:
    """The whole traceback for run.log; for the user, a note on what is saved and how to go on."""
    orchestrator.sinks.log(f"FAILED: {located(error)}\n{whole_traceback(error)}")
    if not isinstance(error, Exception):  # a second Ctrl-C
        return
    steps, step = orchestrator.store.steps(), orchestrator.counters.env_steps
    begin = f"from the checkpoint at step {steps[-1]:,}" if steps else "from the first step"
    if lost := step - max(steps, default=0):
        begin += f" (the {lost:,} steps since are played again)"
    error.add_note(
        f"to go on {begin}: rl-lab train --resume {from_here(directory.path)} "
        f"(the whole traceback is in its {directory.log_file.relative_to(directory.path)})"
    )


@contextmanager
def _watched(orchestrator: Orchestrator, directory: RunDirectory, debug: bool) -> Iterator[None]:
    """With `--debug`: a row about every weight after each update, and a profile at the end."""
    if not debug:
        yield
        return
    orchestrator.add_callback("session/weights", WeightLog())
    orchestrator.add_callback("session/trace", TraceUpdates())
    with profiling(directory.log_file.with_name(PROFILE)):
        yield


class _Warnings(logging.Handler):
    """What deeper layers log (a lost worker, a broken index) reaches the human and run.log."""

    def __init__(self, sinks: Sinks) -> None:
        super().__init__(logging.WARNING)
        self.sinks = sinks
        self.known: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """One message; `once` says what it is about, `detail` is for run.log alone."""
        once: str | None = getattr(record, "once", None)
        if once in self.known:
            return
        if once is not None:
            self.known.add(once)
        self.sinks.say(f"WARNING: {record.getMessage()}")
        if detail := getattr(record, "detail", ""):
            self.sinks.log(detail)


def costs(orchestrator: Orchestrator) -> dict[str, float]:
    """What the run costs, for summary.json."""
    algorithm, efficiency = orchestrator.algorithm, orchestrator.efficiency
    return efficiency.summary() | fixed_costs(
        algorithm.parts().values(),
        algorithm.initial_state(1),
        efficiency.stopwatch.flops,
        orchestrator.environment.num_envs,
    )


def describe(orchestrator: Orchestrator, directory: RunDirectory) -> dict[str, Any]:
    """Where a run stands, for summary.json."""
    progress, level = orchestrator.progress, orchestrator.environment.snapshot_level
    lost = int(getattr(orchestrator.environment, "faults", 0))  # only of vectors with workers
    return {
        "id": directory.id,
        "environment": orchestrator.config.environment.id,
        "seed": orchestrator.config.experiment.seed,
        "env_steps": orchestrator.counters.env_steps,
        "saved_step": max(orchestrator.store.steps(), default=None),
        "total_timesteps": orchestrator.config.training.total_timesteps,
        "updates": orchestrator.counters.updates,
        "episodes": orchestrator.counters.episodes,
        "best": progress.best_score,
        "best_step": progress.best_step,
        "last_return": progress.last_score,
        "resumes": progress.resumes,
        "skipped": orchestrator.guard.skipped,
        "rollbacks": orchestrator.guard.rollbacks,
        "alerts": orchestrator.alerts.names(),
        "parameters": count_parameters(
            [*orchestrator.algorithm.parts().values(), *orchestrator.components.values()]
        ),
        "optimum": orchestrator.environment.spec.optimum,
        "snapshot_level": level,
        "resume_exact": lost == 0 and (level in EXACT or progress.resumes == 0),
        "lost_workers": lost,
        "config_hash": config_hash(orchestrator.config),
    }
