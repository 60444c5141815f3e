"""The loop. It knows when, never how: asks the phases what is next, calls it, routes the data.

Nothing here names an algorithm, a loss or a network. Everything that a resumed run needs is in
`state()`; a checkpoint may fall between any two hooks.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_lab.algorithms.base import Algorithm
from rl_lab.collect.evaluate import Evaluation, Interrupted
from rl_lab.core.batch import Metrics
from rl_lab.core.clock import Counters
from rl_lab.core.errors import NonFiniteError, RunError
from rl_lab.core.protocols import Buffer, Collector, VectorEnv
from rl_lab.core.schema import RunConfig
from rl_lab.core.seeding import Streams, undisturbed
from rl_lab.core.state import Stateful, Tree
from rl_lab.display.sinks import Sinks
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.faults import fault
from rl_lab.records.metrics import METRICS_CHECKSUM, MetricLog
from rl_lab.run.alerts import Alerts
from rl_lab.run.callback import Callback
from rl_lab.run.efficiency import Efficiency
from rl_lab.run.guard import Guard, check_data, check_score, check_update
from rl_lab.run.phases import PhaseScheduler
from rl_lab.run.progress import Progress, make_clocks, numbers_of
from rl_lab.run.signals import StopRequest


@dataclass(kw_only=True)
class Orchestrator:
    """One run, wired by `build.py`."""

    config: RunConfig
    folder: Path
    algorithm: Algorithm
    policies: Mapping[str, Algorithm]  # other policies that phases collect with
    components: Mapping[str, Any]
    environment: VectorEnv
    collector: Collector
    buffers: Mapping[str, Buffer]
    scheduler: PhaseScheduler
    streams: Streams
    evaluate: Callable[[str, int], Evaluation]  # (purpose, episodes), on that purpose's own seeds
    resources: ExitStack  # files, displays, the environment
    store: CheckpointStore
    identity: dict[str, Any]  # what a resume must find again: configuration and numerics
    metrics: MetricLog
    timing: MetricLog
    efficiency: Efficiency
    sinks: Sinks
    alerts: Alerts
    stop: StopRequest = field(default_factory=StopRequest)

    def __post_init__(self) -> None:
        """Clocks, from the configuration."""
        self.counters = Counters()
        self.progress = Progress()
        self.clocks = make_clocks(self.config)
        self.seconds: dict[str, float] = {}  # wall time per stage since the last row
        self.saved_at = time.monotonic()  # or where nothing is saved yet: when the run began
        self.row_start = Counters()  # as they were at the last row
        # A best state that a full disk had no room for: step, state, score, manifest.
        self.unsaved_best: tuple[int, Tree, float | None, dict[str, Any]] | None = None
        self.warned: set[str] = set()  # the algorithm's warnings, each printed once
        self.hooks: dict[str, Callable[..., Metrics]] = {
            name: getattr(self.algorithm, name) for name in self.algorithm.hooks
        }
        self.callbacks: dict[str, Callback] = {}
        self.guard = Guard(self)

    @property
    def workflow(self) -> Algorithm:
        """The algorithm, by its name in earlier versions."""
        return self.algorithm

    def add_callback(self, name: str, callback: Callback) -> None:
        """Call it from now on."""
        callback.initialize(self)
        self.callbacks[name] = callback

    def run(self) -> bool:
        """Until the phases are over or a stop is requested. True if the run is complete."""
        while True:
            try:
                return self.loop()
            except Interrupted:  # in an evaluation, by a second signal: leave without saving
                return False
            except NonFiniteError as error:
                self.guard.roll_back(error)  # raises it again, unless that is wanted and possible

    def loop(self) -> bool:
        """The loop itself."""
        patience = self.config.evaluation.patience
        while self.progress.streak < patience and (action := self.scheduler.next_action()):
            fault("hook.before")
            self.execute(action)
            fault("hook.after")
            if self.scheduler.at_cycle_start:
                self.counters.cycles += 1
                self.after_cycle()
            if self.progress.best_is_new:
                self.save()
            for callback in self.callbacks.values():
                callback.after_hook(self)
            if self.alerts.stop_reason is not None:
                self.save()
                raise RunError(f"stopped by a monitor: {self.alerts.stop_reason}")
            if self.stop.requested:
                if not self.stop.impatient:
                    self.save()
                return False
        self.write_row()
        if not self.save():
            raise RunError("the last checkpoint could not be written: free some space, then resume")
        return True

    def execute(self, action: str) -> None:
        """One hook: collect, evaluate, or an update of the algorithm."""
        started = time.perf_counter()
        phase = self.scheduler.view()
        buffer = self.buffers[phase["buffer"] or next(iter(self.buffers))]
        steps = updates = 0
        with self.guard.watching(action) as evidence:
            if action == "collect":
                policy = self.policies.get(phase["policy"] or "", self.algorithm)
                result = policy.collect_step(self.counters.env_steps, phase=phase)
                if (rows := result.trajectory) is not None:
                    check_data(rows)
                    buffer.add(rows)
                    self.algorithm.track_statistics(rows)
                self.counters.env_steps += (steps := result.steps)
                self.counters.episodes += result.episodes
                self.note(numbers_of(result.metrics, "collect"))
            elif action == "evaluate":
                self.measure()
            elif (batch := self.algorithm.sample(buffer, hook=action, phase=phase)) is not None:
                evidence.batch = batch
                numbers = numbers_of(self.hooks[action](batch, phase=phase), action)
                for callback in self.callbacks.values():
                    callback.after_update(self, action)
                check_update(action, numbers)
                self.note(numbers, mean=True)
                updates = 1
        self.counters.updates += updates
        self.scheduler.advance(action, steps=steps, updates=updates)
        if self.scheduler.at_cycle_start:
            for each in self.buffers.values():
                each.done()
        stage = action if action in ("collect", "evaluate") else "update"
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started

    def after_cycle(self) -> None:
        """Between two cycles: evaluate, log, save, each when its clock has crossed."""
        step = self.counters.env_steps
        clock, warmup = self.clocks["evaluate"], self.config.evaluation.warmup_steps
        due = clock.due(step) and step // clock.period * clock.period > warmup
        if due or (clock.period and step > warmup and self._ends_unmeasured()):
            started = time.perf_counter()
            with self.guard.watching("evaluate"):
                self.measure()
            self.seconds["evaluate"] = time.perf_counter() - started
            self.clocks["log"].last = step
            self.write_row()
        elif self.clocks["log"].due(step):
            self.write_row()
        offline, updates = self.scheduler.is_offline, self.counters.updates  # steps stand still
        if offline and self.clocks["offline_log"].due(updates):
            self.write_row()
        due = self.clocks["checkpoint"].due(step)
        due |= offline and self.clocks["offline_checkpoint"].due(updates)
        minutes = self.config.checkpoint.every_minutes
        due |= minutes > 0 and time.monotonic() - self.saved_at >= 60 * minutes
        # A best that was saved at this very step is not written over.
        if due and (self.progress.best_step != step or self.progress.best_is_new):
            self.save()

    def measure(self) -> None:
        """One evaluation. Training state and random streams are left bit for bit."""
        summary = (seen := self.evaluate("eval", self.config.evaluation.episodes)).summary()
        check_score(summary["return_mean"])
        self.progress.measured_at = self._now()
        for callback in self.callbacks.values():
            callback.after_evaluation(self, seen)
        self.note({f"eval/{key}": value for key, value in summary.items()})
        goal = self.config.evaluation.stop_at
        self.progress.judge(summary["return_mean"], self.counters.env_steps, goal)

    def _now(self) -> list[int]:
        return [self.counters.env_steps, self.counters.updates]

    def _ends_unmeasured(self) -> bool:
        """True if the run is over and its last policy was not evaluated."""
        return self.scheduler.current_phase() is None and self.progress.measured_at != self._now()

    def note(self, numbers: Mapping[str, float], *, mean: bool = False) -> None:
        """Metrics for the next row, and for the conditions of phases."""
        self.scheduler.observe(numbers)
        self.progress.note(numbers, mean=mean)
        for callback in self.callbacks.values():
            callback.on_metrics(self, numbers)

    def write_row(self) -> None:
        """One row of metrics.jsonl (the same in every resumed run) and one of timing.jsonl."""
        row, step = self.progress.take_row(), self.counters.env_steps
        if not row:
            return
        row |= {"updates": self.counters.updates, "episodes": self.counters.episodes}
        row |= self.guard.metrics()
        self.metrics.append(step, row)
        timing = self.efficiency.row(self.row_start, self.counters, self.seconds)
        self.timing.append(step, timing)
        self.row_start, self.seconds = replace(self.counters), {}
        with undisturbed():  # a display may draw random numbers
            self.sinks.write(step, row | timing)
            phase = self.scheduler.current_phase()
            self.alerts.look(step, row, timing, phase=phase.name if phase else "")
        for line in self.algorithm.warnings(row):
            if line not in self.warned:
                self.warned.add(line)
                self.sinks.say(f"WARNING: {line}")

    def save(self, score: float | None = None) -> bool:
        """A checkpoint here and now; False if it failed. A full disk does not end the run."""
        started = time.perf_counter()
        self.guard.check_state()
        is_best = self.progress.best_is_new
        score = self.progress.best_score if is_best else score
        self.progress.best_is_new = False
        step, state, saved = self.counters.env_steps, self.state(), False
        manifest = self.identity | {METRICS_CHECKSUM: self.metrics.checksum}
        try:
            self.metrics.flush()  # no checkpoint without its rows
            if self.unsaved_best is not None:
                # First, or nothing: a resumed run must never know of a best that is not there.
                held, best, its_score, its_manifest = self.unsaved_best
                self.store.save(held, best, score=its_score, manifest=its_manifest)
                self.sinks.say(f"the best policy, of step {held}, is saved now")
                self.unsaved_best = None
            self.store.save(step, state, score=score, manifest=manifest)
            saved = True
            for callback in self.callbacks.values():
                callback.after_checkpoint(self)
        except (OSError, RunError) as error:
            what = "the summary after the checkpoint" if saved else "checkpoint"
            self.sinks.say(f"WARNING: {what} at {step} failed: {error}")
            if is_best and not saved:
                self.unsaved_best = step, deepcopy(state), score, manifest
                self.sinks.say("the best policy waits in memory for the next checkpoint")
        self.seconds["checkpoint"] = time.perf_counter() - started
        self.saved_at = time.monotonic()
        return saved

    def state(self) -> Tree:
        """Everything that changes while training. Not listed here = not saved."""
        return {
            "workflow": self.algorithm.get_state(),
            "policies": {name: each.get_state() for name, each in self.policies.items()},
            "parts": {name: part.state_dict() for name, part in self._parts()},
            "metrics_offset": self.metrics.position(),
        }

    def load(self, state: Tree) -> None:
        """Become the run that was saved, bit for bit; later rows of its metrics are cut off."""
        self.unsaved_best = None
        self.load_learned(state)
        for name, policy in self.policies.items():
            policy.set_state(state["policies"][name])
        # Older checkpoints lack alerts and these clocks, and have what the guard counted elsewhere.
        parts = {"guard": state["parts"]["progress"], "alerts": {}, **state["parts"]}
        for name, part in self._parts():
            if name in parts or not name.startswith("clock.offline"):
                part.load_state_dict(parts[name])
        if self.environment.snapshot_level == "E3":
            self.sinks.say("WARNING: this environment cannot be saved: its episodes start again")
            self.collector.restart()
        self.metrics.truncate(state["metrics_offset"])
        self.row_start = replace(self.counters)

    def go_back(self, state: Tree, step: int, *, epoch: int) -> None:
        """Become the checkpoint of this step, and go on from it with other random numbers."""
        resumes = self.progress.resumes
        self.load(state)
        self.store.rewind(step)
        self.progress.resumes, self.seconds = resumes, {}
        # Other actions, other minibatches, other episodes: the same future would fail again.
        self.streams.begin_epoch(epoch)
        fresh = self.streams.numpy("rollback").integers(2**31, size=self.environment.num_envs)
        self.environment.reset([int(each) for each in fresh])
        self.collector.restart()
        for callback in self.callbacks.values():
            callback.after_rollback(self, step)

    def load_learned(self, state: Tree) -> None:
        """Only what was learned: the algorithm, and its components."""
        self.algorithm.set_state(state["workflow"])
        for name, part in self.components.items():
            if isinstance(part, Stateful):
                part.load_state_dict(state["parts"][f"component.{name}"])

    def close(self) -> None:
        """Let go of everything that is open."""
        self.resources.close()

    def _parts(self) -> Iterable[tuple[str, Stateful]]:
        yield "environment", self.environment
        yield "collector", self.collector
        yield "scheduler", self.scheduler
        yield "streams", self.streams
        yield "counters", self.counters
        yield "progress", self.progress
        yield "guard", self.guard
        yield "alerts", self.alerts
        groups: dict[str, Mapping[str, Any]] = {
            "clock": self.clocks,
            "buffer": self.buffers,
            "component": self.components,
            "callback": self.callbacks,
        }
        for kind, parts in groups.items():
            for name, part in parts.items():
                if isinstance(part, Stateful):
                    yield f"{kind}.{name}", part
