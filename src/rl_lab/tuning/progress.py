"""How a sweep stands while it runs: what is tried, how far it is, how good it looks."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl_lab.display.live_table import LiveTable, Picture
from rl_lab.records.formatting import format_duration
from rl_lab.tuning import jobs
from rl_lab.tuning.driver import Driver, short, trial_count
from rl_lab.tuning.space import Choice, Settings, Space, short_names
from rl_lab.tuning.sweep_file import Sweep
from rl_lab.tuning.tuner import Suggestion, best

TICK_SECONDS = 1.0  # between two looks
WORDS = {"complete": "done", "fail": "failed"}
STYLES = {"running": "bold", "done": "green", "failed": "red", "pruned": "dim", "waiting": "dim"}


@dataclass(frozen=True)
class Row:
    """One trial as it stands."""

    trial: int
    settings: Settings
    seeds_done: int
    steps: tuple[int, ...]  # of its runs at work
    value: float | None  # of the seeds that have one so far
    state: str

    @property
    def is_open(self) -> bool:
        """Whether some of its seeds are still to come."""
        return self.state in ("running", "waiting")


@dataclass(frozen=True)
class Overview:
    """A sweep as it stands."""

    rows: Sequence[Row]  # at work first, then the best first
    trials_done: int
    trials: int
    runs_left: int
    best: tuple[int, float] | None  # trial and value


def overview(driver: Driver) -> Overview:
    """What the journal and the run folders say now."""
    sweep, results = driver.sweep, driver.tuner.results()
    top = best(results, sweep.objective.direction)
    rows = [_row(driver, *each) for each in results]
    unfinished = [row for row in rows if row.is_open]
    trials, seeds = trial_count(sweep), len(sweep.seeds)
    left = (trials - len(rows)) * seeds + sum(seeds - row.seeds_done for row in unfinished)
    sign = -1 if sweep.objective.direction == "max" else 1

    def order(row: Row) -> tuple[bool, float, int]:
        worth = math.inf if row.value is None else sign * row.value
        return (not row.is_open, worth, row.trial)

    winner = None if top is None else (top[0].number, top[2])
    return Overview(sorted(rows, key=order), len(rows) - len(unfinished), trials, left, winner)


def _row(driver: Driver, trial: Suggestion, state: str, value: float | None) -> Row:
    """A trial of the journal, with what its seeds at work have measured so far."""
    sweep = driver.sweep
    if state != "running":
        done = len(sweep.seeds) if state == "complete" else 0
        return Row(trial.number, trial.settings, done, (), value, WORDS.get(state, state))
    known = driver.values.get(trial.number, {})
    found = [each for each in known.values() if each is not None]
    steps = []
    for job in driver.active:
        if job.pair.trial != trial:
            continue
        run = jobs.find(driver.root, jobs.run_name(sweep, job.pair))
        step, now = (0, None) if run is None else jobs.latest(run, sweep.objective.metric)
        steps.append(step)
        found += [] if now is None else [now]
    so_far = jobs.together(found, sweep.objective) if found else None
    word = "running" if steps else "waiting"
    return Row(trial.number, trial.settings, len(known), tuple(steps), so_far, word)


def varying(space: Space) -> dict[str, str]:
    """The keys that vary, each with its short name."""
    return short_names(
        key
        for key, each in space.dimensions.items()
        if not isinstance(each, Choice) or len(each.values) > 1
    )


def picture(sweep: Sweep, seen: Overview, eta: float) -> Picture:
    """The overview as rows of text; below them how many are done, the best, and the time left."""
    names = varying(sweep.space)
    rows = [
        [
            str(row.trial),
            *(short(row.settings[key]) for key in names),
            f"{row.seeds_done}/{len(sweep.seeds)}",
            " ".join(f"{step:,}" for step in row.steps),
            "" if row.value is None else f"{row.value:,.5g}",
            row.state,
        ]
        for row in seen.rows
    ]
    foot = [f"{seen.trials_done}/{seen.trials} trials"]
    if seen.best is not None:
        foot.append(f"best {seen.best[1]:,.6g} (trial {seen.best[0]})")
    foot.append(f"ETA {format_duration(eta)}")
    columns = ["trial", *names.values(), "seeds", "step", sweep.objective.metric, "state"]
    return Picture(columns, rows, [STYLES[row.state] for row in seen.rows], "  ".join(foot))


class Watcher:
    """Looks at a sweep about once a second, and draws it."""

    def __init__(self, table: LiveTable, now: Callable[[], float] = time.monotonic) -> None:
        self.table, self.now = table, now
        self._looked = -math.inf
        self._origin: tuple[float, int] | None = None  # when it looked first, and what was left

    def __call__(self, driver: Driver) -> None:
        """Draw how things stand, unless that was a moment ago."""
        moment = self.now()
        if moment - self._looked < TICK_SECONDS:
            return
        self._looked = moment
        seen = overview(driver)
        self.table.draw(picture(driver.sweep, seen, self.eta(moment, seen.runs_left)))

    def eta(self, moment: float, left: int) -> float:
        """Seconds until nothing is left, at the pace since the first look; nan if unknown."""
        self._origin = self._origin or (moment, left)
        since, at_first = self._origin
        ended = at_first - left
        return (moment - since) * left / ended if ended > 0 else math.nan
