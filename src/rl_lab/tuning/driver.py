"""A sweep from its file to its end: ask, run, tell; killed at any time, it goes on where it was.

All that is known is in the journal of the search and in the run folders. So the same command again
runs only what is missing, and each pair of trial and seed is run exactly once.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rl_lab.config.compose import Composed, compose
from rl_lab.config.legacy.keys import RENAMED
from rl_lab.config.validate import validate
from rl_lab.config.values import as_override
from rl_lab.core.errors import RunError, UserError
from rl_lab.records.commit import make_directory, write_atomically
from rl_lab.records.files import read_object
from rl_lab.records.metrics import plain
from rl_lab.tuning import jobs
from rl_lab.tuning.jobs import Job, Pair
from rl_lab.tuning.space import Choice, Range, Space, short_names
from rl_lab.tuning.sweep_file import Objective, Sweep
from rl_lab.tuning.tuner import Suggestion, Tuner

Tell = Callable[[str], object]
Look = Callable[["Driver"], object]
POLL_SECONDS = 0.1
JOURNAL = "journal.log"
LOOK_SECONDS = 2.0  # between two looks at curves that a pruner may cut
ENDING_SECONDS = 60.0  # to save and end, before they are killed


@dataclass
class Driver:
    """What is running, what waits, and what is known so far."""

    sweep: Sweep
    root: Path
    tell: Tell
    tuner: Tuner
    own: list[str] = field(default_factory=list)  # overrides of every run, below those of the file
    look: "Look | None" = None  # draws what happens, instead of a line for every result
    known: Mapping[str, float] = field(default_factory=dict)  # values of runs that are elsewhere
    waiting: deque[Pair] = field(default_factory=deque)
    active: list[Job] = field(default_factory=list)
    values: dict[int, dict[int, float | None]] = field(default_factory=dict)  # trial, seed
    deaths: Counter[str] = field(default_factory=Counter)  # of each run, by signals
    stopped: int | None = None  # the signal that asked to stop
    looked: float = 0.0

    def run(self) -> bool:
        """Until nothing is left, or a stop is requested. True if the sweep is complete."""
        for trial in self.tuner.open():
            self._plan(trial)
        with self._signals():
            while self.stopped is None and (self._fill() or self.active):
                time.sleep(POLL_SECONDS)
                for job in [each for each in self.active if each.process.poll() is not None]:
                    self.active.remove(job)
                    self._ended(job)
                self._prune()
                self._draw()
        if self.active:
            self.tell(f"stopping: {len(self.active)} runs save and end")
        self._end_all(self.active)
        return self.stopped is None

    # ------------------------------------------------------------ what is next

    def _fill(self) -> bool:
        """Give every free slot something to do; False if there is nothing."""
        free = set(range(self.sweep.parallel_jobs)) - {job.slot for job in self.active}
        for slot in sorted(free):
            if (pair := self._next()) is None:
                return False
            self.active.append(self._start(pair, slot))
        return True

    def _next(self) -> Pair | None:
        """The next pair that has to run. What is finished is only read."""
        while True:
            while self.waiting:
                pair = self.waiting.popleft()
                name = jobs.run_name(self.sweep, pair)
                run = jobs.find(self.root, name)
                if run is not None and jobs.is_finished(run):
                    self._worth(pair, jobs.value(run, self.sweep.objective))
                elif name in self.known:
                    self._worth(pair, self.known[name])
                else:
                    return pair
            limit = self.sweep.trials
            if limit is not None and self.tuner.count >= limit:
                return None
            if (trial := self.tuner.suggest()) is None:
                return None
            self._plan(trial)

    def _plan(self, trial: Suggestion) -> None:
        self.values[trial.number] = {}
        self.waiting.extend(Pair(trial, seed) for seed in self.sweep.seeds)

    def _start(self, pair: Pair, slot: int) -> Job:
        run = jobs.find(self.root, jobs.run_name(self.sweep, pair))
        deadline = time.monotonic() + ENDING_SECONDS
        while run is not None and jobs.is_held(run):
            if time.monotonic() > deadline:
                raise RunError(f"run {run.path.name} is in use by another process: stop it first")
            time.sleep(POLL_SECONDS)
        overrides = [*self.own, *words(self.sweep, pair.trial.settings)]  # the last one wins
        log = self.sweep.folder(self.root) / "logs" / jobs.run_name(self.sweep, pair)
        make_directory(log.parent)
        return jobs.start(self.sweep, pair, self.root, overrides, slot, log.with_suffix(".log"))

    # ------------------------------------------------------------ what happened

    def _ended(self, job: Job) -> None:
        """A process is over: it finished, was killed (and is continued), or failed."""
        pair, code = job.pair, job.process.returncode
        if pair.trial.number not in self.values:  # its trial was pruned meanwhile
            return
        name = jobs.run_name(self.sweep, pair)
        run = jobs.find(self.root, name)
        if run is not None and jobs.is_finished(run):
            self._worth(pair, jobs.value(run, self.sweep.objective))
        elif code < 0 or code in (129, 130, 143):
            self.deaths[name] += 1
            if self.deaths[name] > jobs.MOST_DEATHS:
                raise RunError(f"{name} was killed {self.deaths[name]} times")
            self.waiting.appendleft(pair)
        else:
            lines = job.log.read_text(errors="replace").strip().splitlines() or ["no message"]
            self.tell(f"trial {pair.trial.number} seed {pair.seed} failed: {lines[-1]}")
            self._worth(pair, None)

    def _worth(self, pair: Pair, value: float | None) -> None:
        """A run has its value; with the last of its seeds, the trial has one too."""
        trial, objective = pair.trial, self.sweep.objective
        found = self.values[trial.number]
        found[pair.seed] = value
        if value is not None:
            self._result(f"trial {trial.number} seed {pair.seed}: {value:,.6g}")
        if len(found) < len(self.sweep.seeds):
            return
        good = [each for each in found.values() if each is not None]
        whole = len(good) == len(found)
        worth = jobs.together(good, objective) if whole else None
        self.tuner.tell(trial, worth, good)
        shown = "failed" if worth is None else f"{worth:,.6g}"
        self._result(f"trial {trial.number}: {shown} ({show(trial.settings)})")

    def _result(self, line: str) -> None:
        """A line for it, unless a table shows it already."""
        if self.look is None:
            self.tell(line)

    def _draw(self) -> None:
        """Best effort: a display that fails is switched off, and the sweep goes on."""
        if self.look is None:
            return
        try:
            self.look(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is only a display
            self.look = None
            self.tell(f"WARNING: the live table is off: {type(error).__name__}: {error}")

    def _prune(self) -> None:
        """Stop trials that the pruner gives up. It looks at the first seed of each."""
        if self.sweep.pruner == "none" or time.monotonic() - self.looked < LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        for job in list(self.active):
            trial = job.pair.trial
            if job.pair.seed != self.sweep.seeds[0] or trial.number not in self.values:
                continue
            run = jobs.find(self.root, jobs.run_name(self.sweep, job.pair))
            curve = {} if run is None else jobs.curve(run, self.sweep.objective.metric)
            seen = {step: each for step, each in curve.items() if step >= self.sweep.grace_steps}
            if not self.tuner.hopeless(trial, seen):
                continue
            self.tuner.prune(trial)
            del self.values[trial.number]
            self.waiting = deque(each for each in self.waiting if each.trial != trial)
            self._end_all([each for each in self.active if each.pair.trial == trial])
            self._result(f"trial {trial.number}: pruned ({show(trial.settings)})")

    # ------------------------------------------------------------ the end

    def _end_all(self, running: list[Job]) -> None:
        """Ask them to save and end; wait for them."""
        for job in running:
            job.process.terminate()
        deadline = time.monotonic() + ENDING_SECONDS
        for job in running:
            try:
                job.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                job.process.kill()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C: the runs save, then this process ends."""

        def stop(number: int, frame: object) -> None:
            self.stopped = number

        before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# --------------------------------------------------------------------- around it


def run_sweep(
    sweep: Sweep, root: Path, tell: Tell, look: Look | None = None
) -> tuple[Driver, bool]:
    """Begin a sweep, or go on with it. Returns what is known, and whether it is complete."""
    check(sweep)
    folder = sweep.folder(root)
    make_directory(folder)
    with alone(folder):
        _remember(sweep, folder)
        tuner = Tuner(
            sweep.space,
            method=sweep.method,
            direction=sweep.objective.direction,
            pruner=sweep.pruner,
            seed=sweep.seed,
            name=sweep.name,
            journal=folder / JOURNAL,
        )
        _check_trials(sweep, root, tuner)
        driver = Driver(sweep, root, tell, tuner, own_words(sweep), look)
        return driver, driver.run()


def _check_trials(sweep: Sweep, root: Path, tuner: Tuner) -> None:
    """A run of a trial that the journal does not have: its beginning or its end was lost."""
    pattern = re.compile(rf"{re.escape(sweep.name)}-t(\d{{4,}})-s")
    found = [int(match[1]) for path in root.iterdir() if (match := pattern.match(path.name))]
    if found and max(found) >= (count := len(tuner.study.get_trials(deepcopy=False))):
        raise UserError(
            f"{sweep.folder(root) / 'journal.log'} is damaged (it has {count} trials, and "
            f"there is a run of trial {max(found)}): put a copy of it back, or give the sweep "
            "another name"
        )


def check(sweep: Sweep) -> None:
    """Would a trial be a valid configuration? Refused before anything runs."""
    first = next(iter(sweep.space.points()), None) if sweep.method == "grid" else None
    if first is None and sweep.method == "grid":
        raise UserError("constraints: no point of the grid keeps them")
    composed = configuration(sweep, sweep.space.complete(first) if first else {})
    validate(composed.tree, composed.origins)


def configuration(sweep: Sweep, settings: Mapping[str, Any]) -> Composed:
    """What a trial would be, before it is a run of the sweep."""
    start = sweep.experiment(settings)[0]
    is_file = start.endswith((".yaml", ".yml"))
    return compose(
        None if is_file else start,
        words(sweep, settings),
        config_file=Path(start) if is_file else None,
    )


def words(sweep: Sweep, settings: Mapping[str, Any]) -> list[str]:
    """The overrides of a trial, under the keys of today."""
    tried = sweep.experiment(settings)[1]
    return [as_override(RENAMED.get(key, key), value) for key, value in tried.items()]


def own_words(sweep: Sweep) -> list[str]:
    """A tag more than the experiment has, and no report of each run: the sweep writes one."""
    experiment = configuration(sweep, {}).tree.get("experiment") or {}
    tags = [*(experiment.get("tags") or []), f"sweep:{sweep.name}"]
    return [as_override("experiment.tags", tags), as_override("logging.report", False)]


def trial_count(sweep: Sweep) -> int:
    """How many trials there will be."""
    if sweep.method != "grid":
        assert sweep.trials is not None
        return sweep.trials
    points = sum(1 for _ in sweep.space.points())
    return points if sweep.trials is None else min(points, sweep.trials)


def _remember(sweep: Sweep, folder: Path) -> None:
    """A name means one sweep: another file of the same name is refused."""
    tree = asdict(sweep)
    for key in ("parallel_jobs", "threads", "trials"):  # may change on the way
        tree.pop(key)
    text = json.dumps(plain(tree), indent=2, sort_keys=True)
    file = folder / "sweep.json"
    if not file.exists():
        write_atomically(file, f"{text}\n".encode())
    elif file.read_text(encoding="utf-8").strip() != text:
        raise UserError(
            f"sweep '{sweep.name}' was begun with other settings: give the file another name, or "
            f"remove {folder}"
        )


def remembered(folder: Path) -> Sweep:
    """The sweep of a folder, as it was begun; of a search that is not a grid, with any number of
    trials: that may change on the way.
    """
    tree = read_object(folder / "sweep.json")
    try:
        found = tree["space"]["dimensions"]
        kinds = {key: Choice if "values" in each else Range for key, each in found.items()}
        dimensions = {key: kinds[key](**_tuples(each)) for key, each in found.items()}
        space = Space(**{**_tuples(tree["space"]), "dimensions": dimensions})
        objective = Objective(**tree["objective"])
        return Sweep(**{**_tuples(tree), "space": space, "objective": objective, "trials": 1})
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise UserError(f"{folder / 'sweep.json'} is not a sweep: {error!r}") from error


def _tuples(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(each) if isinstance(each, list) else each for key, each in tree.items()}


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One driver for a sweep at a time."""
    descriptor = os.open(folder / "sweep.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"sweep {folder.name} is being run by another process") from error
        yield
    finally:
        with suppress(OSError):
            os.close(descriptor)


def show(settings: Mapping[str, Any]) -> str:
    """Settings in one line."""
    names = short_names(settings)
    return ", ".join(f"{names[key]}={short(value)}" for key, value in settings.items())


def short(value: object) -> str:
    """A value of a setting, as it is shown."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
