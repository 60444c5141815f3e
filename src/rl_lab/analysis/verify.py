"""Is a run what its configuration and seed make of it? Runs it again and names what differs first.

The second run happens in a temporary folder. Between any two of its hooks it is compared with what
was recorded: every new row of metrics, byte for byte, and wherever the recorded run has a
checkpoint, every bit of the state.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rl_lab.analysis.differences import Difference, first_difference, row_difference, step_of
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.schema import RunConfig
from rl_lab.core.state import Tree
from rl_lab.display.sinks import Sink, Sinks
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import write_atomically
from rl_lab.records.files import check_folder, open_to_read
from rl_lab.records.metrics import STEP, iterate_metrics
from rl_lab.records.run_directory import RunDirectory, Which, find_run
from rl_lab.records.source import code_change, read_provenance
from rl_lab.run.build import build_run
from rl_lab.run.fork import Origin, as_built, begin_from, changes, find_origin
from rl_lab.run.orchestrator import Orchestrator
from rl_lab.run.session import changed_numerics, find_weights, load_config

SHORT = 20_000  # environment steps that are run again as a whole
RESUMED_E3 = (
    "its environment cannot be saved, and it was resumed: nothing is promised from there on"
)
NEVER_RESUMED_E3 = (
    "its environment cannot be saved: what is inside of it was not compared, and after a "
    "resume it would not be the same run"
)

LOST_WORKERS = (
    "environment workers of it died or failed {} times: the episodes that they played were cut "
    "where that happened, which a second run does not repeat"
)

Watch = Callable[[int, int], object]  # (step, last step)
Tell = Callable[[str], object]


@dataclass(frozen=True, repr=False)
class Verdict:
    """What was compared, and what came out of it."""

    run: RunDirectory
    start: int
    end: int
    rows: int
    checkpoints: list[int]
    difference: Difference | None
    reasons: list[str]  # known ones for a difference, whether or not there is one

    @property
    def identical(self) -> bool:
        """True if nothing differs."""
        return self.difference is None

    def __repr__(self) -> str:
        """What was compared, and where the first difference is."""
        first = self.difference
        found = "" if first is None else f", difference='{first.name} at step {first.step}'"
        return (
            f"Verdict(run={self.run.id!r}, identical={self.identical}, start={self.start}, "
            f"end={self.end}, rows={self.rows}, checkpoints={len(self.checkpoints)}{found})"
        )


@dataclass
class _Record:
    """What is known of the run as it was."""

    run: RunDirectory
    store: CheckpointStore
    summary: Mapping[str, Any]
    last: int  # how far it is recorded
    checkpoints: list[int]

    @property
    def finished(self) -> bool:
        return self.summary.get("status") == "finished"


def verify(
    reference: str,
    root: Path,
    *,
    steps: int | None = None,
    start: int | None = None,
    trust: bool = False,
    tell: Tell = lambda message: None,
    watch: Watch = lambda step, last: None,
) -> Verdict:
    """Run it again for `steps`, from the first step or from the checkpoint at `start`."""
    directory, which = find_run(reference, root)
    record, config = _read(directory), load_config(directory, trust=trust)
    origin = _origin(record, which if start is None else start, root, trust, tell)
    begin = origin.step if origin else 0
    end = _end(record, begin, steps)
    tell(
        f"running {directory.path.name} again from step {begin:,} to {end:,} of {record.last:,}"
        + ("" if end == record.last else " (more or less of it: --steps N)")
    )
    with TemporaryDirectory(prefix="rl-lab-verify-") as folder, ExitStack() as stack:
        run, counter = _second(record, config, origin, root, Path(folder), tell)
        stack.enter_context(closing(run))
        witness = _Witness(run, record, counter, begin, end, watch)
        stack.callback(witness.close)
        difference = witness.follow()
        reasons = _reasons(record, run)
        return Verdict(
            *(directory, begin, run.counters.env_steps, witness.rows, witness.compared),
            difference,
            reasons,
        )


def _read(directory: RunDirectory) -> _Record:
    check_folder(directory.path)
    summary, store = directory.read_summary(), CheckpointStore(directory.checkpoints)
    if summary.get("rollbacks"):
        raise UserError(
            f"run {directory.id} went back after a bad number (compute.on_nonfinite=rollback), and "
            "the rows of that time are gone: it cannot be compared"
        )
    steps = store.steps()
    last = max([int(summary.get("env_steps") or 0), *steps])
    if not last:  # killed early: only its rows tell how far it came
        last = max((int(row[STEP]) for row in iterate_metrics(directory.metrics_file)), default=0)
    return _Record(directory, store, summary, last, steps)


def _origin(record: _Record, which: Which, root: Path, trust: bool, tell: Tell) -> Origin | None:
    """The checkpoint to begin with; a fork begins with one of its parent. None: the first step."""
    if which is not None:
        if record.summary.get("snapshot_level") == "E3":
            raise UserError(
                "the environment of this run cannot be saved, so nothing can be repeated from "
                "a checkpoint: verify it from the first step"
            )
        return find_origin(record.run, which, trust=trust, warn=tell)
    parent = read_provenance(record.run).get("parent")
    if parent is None:
        return None
    if parent["step"] in record.checkpoints:
        return find_origin(record.run, int(parent["step"]), trust=trust, warn=tell)
    try:
        run = find_run(parent["id"], root)[0]
        return find_origin(run, int(parent["step"]), trust=trust, warn=tell)
    except UserError as error:
        raise UserError(
            f"run {record.run.id} is a fork of {parent['id']} at step {parent['step']}, and that "
            f"checkpoint is gone ({error}); begin with one of its own: --from STEP"
        ) from error


def _end(record: _Record, begin: int, steps: int | None) -> int:
    """As far as asked; else a short run as a whole, a long one up to the next checkpoint."""
    later = [step for step in record.checkpoints if step > begin]
    if record.last <= begin:
        raise UserError(f"nothing is recorded after step {begin}: there is nothing to compare")
    if steps is not None:
        return min(begin + steps, record.last)
    return record.last if record.last - begin <= SHORT or not later else later[0]


def _second(
    record: _Record, config: RunConfig, origin: Origin | None, root: Path, folder: Path, tell: Tell
) -> tuple[Orchestrator, "_RowCounter"]:
    """The same run, in a folder of its own, where it begins."""
    counter = _RowCounter()
    forked = origin is not None and origin.run.path != record.run.path
    changed = changes(origin.config, config) if origin and forked else []
    built = as_built(origin.config) if origin and changed else {}

    def create() -> RunDirectory:
        directory = RunDirectory.create(folder, "again")
        if origin:
            write_atomically(directory.metrics_file, origin.rows())
        return directory

    weights = None if origin else find_weights(config.training.warm_start, root, warn=tell)
    run, _ = build_run(config, create, Sinks([counter]), weights=weights)
    if origin and forked:
        begin_from(run, origin, changed, built)
    elif origin:
        run.load(origin.state)
    return run, counter


class _RowCounter(Sink):
    """How many rows were written."""

    count = 0

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """One more."""
        self.count += 1


class _Enough(Exception):  # noqa: N818 - not an error: the second run has come as far as asked
    pass


@dataclass
class _Found(Exception):  # noqa: N818 - carries the difference out of the loop
    difference: Difference


class _Witness:
    """Stands beside the loop of the second run and compares between any two hooks."""

    def __init__(
        self,
        run: Orchestrator,
        record: _Record,
        counter: _RowCounter,
        begin: int,
        end: int,
        watch: Watch,
    ) -> None:
        self.run, self.record, self.counter, self.end, self.watch = run, record, counter, end, watch
        self.whole = record.finished and end >= record.last
        self.pending = [step for step in record.checkpoints if begin < step <= end]
        self.compared: list[int] = []
        self.rows = self.counted = 0
        self.again = run.metrics.path.open("rb")
        self.recorded = open_to_read(record.run.metrics_file)
        offset = run.metrics.offset()
        for file in (self.again, self.recorded):
            file.seek(offset)

    def follow(self) -> Difference | None:
        """Let the second run go on to the end, or to the first difference."""
        ask = self.run.scheduler.next_action

        def next_action() -> str | None:
            self.between_hooks()
            return ask()

        self.run.scheduler.next_action = next_action  # type: ignore[method-assign]
        try:
            try:
                self.run.run()
            except NonFiniteError as error:
                self._compare_error(f"{type(error).__name__}: {error}")
                self._compare_rows()
            else:
                self._at_the_end()
        except _Enough:
            return None
        except _Found as found:
            return found.difference
        return None

    def close(self) -> None:
        """Let go of both files."""
        self.again.close()
        self.recorded.close()

    def between_hooks(self) -> None:
        """Compare what is new; stop where enough was seen."""
        step = self.run.counters.env_steps
        self.watch(step, self.end)
        if self.counter.count > self.counted:
            self.counted = self.counter.count
            self._compare_rows()
        self._compare_checkpoint(step)
        if step > self.end and self.whole:
            raise _Found(Difference(self.end, "row", "the end of the run", "here", "goes on"))
        enough = step >= self.end and not self.whole and not self.pending
        if enough and self.run.scheduler.at_cycle_start:  # its row is written
            self._expect_no_row(step)
            raise _Enough

    def _compare_checkpoint(self, step: int) -> None:
        """If one was recorded here, between the same two hooks."""
        while self.pending and self.pending[0] <= step:
            at = self.pending[0]
            if at == step == self.record.last and self.whole:
                return  # that one was written when all was over
            recorded = self._recorded_state(at)
            if at == step and _position(recorded) == self._own_position():
                self._compare_state(at, recorded)
                continue
            if at == step:
                return  # between later hooks of this step
            there = ", ".join(f"{name} {count}" for name, count in _position(recorded).items())
            raise _Found(
                Difference(at, "checkpoint", "the place in the run", there, "never was there")
            )

    def _compare_state(self, at: int, recorded: Tree) -> None:
        self.pending.remove(at)
        if found := first_difference(recorded, self.run.state(), at):
            raise _Found(found)
        self.compared.append(at)

    def _recorded_state(self, step: int) -> Tree:
        return self.record.store.load(step)[0]

    def _own_position(self) -> dict[str, int]:
        parts = {
            "counters": self.run.counters.state_dict(),
            "scheduler": self.run.scheduler.get_state(),
        }
        return _position({"parts": parts})

    def _compare_rows(self) -> None:
        """Every row that the second run has written since, with the one at the same place."""
        self.run.metrics.flush()
        while again := self.again.readline():
            recorded = self.recorded.readline()
            if not recorded.endswith(b"\n"):  # a killed writer lost its last rows
                self.recorded.seek(-len(recorded), 1)
                if self.record.finished:
                    raise _Found(row_difference(b"", again))
                return
            if recorded != again:
                raise _Found(row_difference(recorded, again))
            self.rows += 1

    def _expect_no_row(self, step: int | None) -> None:
        """The recorded run has no row up to this step that the second one has not."""
        recorded = self.recorded.readline()
        if recorded.endswith(b"\n") and (step is None or step_of(recorded) <= step):
            raise _Found(row_difference(recorded, b""))

    def _at_the_end(self) -> None:
        self._compare_rows()
        if self.record.finished:
            self._expect_no_row(None)
        for step in list(self.pending):
            self._compare_state(step, self._recorded_state(step))

    def _compare_error(self, message: str) -> None:
        recorded, step = self.record.summary.get("error"), self.run.counters.env_steps
        if recorded != message:
            raise _Found(Difference(step, "error", "how it ended", recorded, message))


def _position(state: Tree) -> dict[str, int]:
    """Where between its hooks a run stood."""
    parts = state["parts"]
    place = {name: parts["scheduler"][name] for name in ("index", "hook", "cycle_progress")}
    return {**parts["counters"], **place}


def _reasons(record: _Record, run: Orchestrator) -> list[str]:
    """Why a run may differ from what was recorded: what has changed since."""
    found: list[str] = []
    if change := code_change(record.run):
        found.append(change)
    if record.checkpoints:
        manifest = record.store.load(record.checkpoints[0], rows=False)[1]
        if changed := changed_numerics(run, manifest):
            found.append(f"another machine or other versions: {', '.join(changed)}")
    if lost := record.summary.get("lost_workers"):
        found.append(LOST_WORKERS.format(lost))
    if run.environment.snapshot_level == "E3":
        found.append(RESUMED_E3 if record.summary.get("resumes") else NEVER_RESUMED_E3)
    return found
