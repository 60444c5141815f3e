"""Phases: a finite state machine that says what is next. It touches no tensor."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from operator import ge, gt, le, lt
from types import MappingProxyType
from typing import Any, Literal

from rl_lab.core.checker import Checker
from rl_lab.core.errors import ConfigError, did_you_mean
from rl_lab.core.options import Options, option
from rl_lab.core.values import BadValueError, whole

DURATIONS = ("duration_steps", "duration_updates", "duration_cycles", "max_steps")
COMPARE = {">=": ge, "<=": le, ">": gt, "<": lt}
CONDITION = re.compile(r"^\s*([\w/]+)\s*(>=|<=|>|<)\s*(-?[\d.]+(?:e-?\d+)?)\s*$")
MOST_PHASES = 10_000


@dataclass(frozen=True, kw_only=True)
class PhaseBlock(Options):
    """One entry of `training.phases`, as written; further keys are for the algorithm."""

    name: str = option("", "shown in logs")
    type: Literal["online", "offline", "eval_only"] = option("online", "offline: plays nothing")
    hooks: list[Any] = option([], "what is called in turn: collect, update …", not_empty=True)
    buffer: str | None = option(None, "where updates take their data from")
    policy: str | None = option(None, "a registered algorithm that collects instead")
    until: str | None = option(None, "a condition that ends it: metric >= number")
    duration_steps: int | None = option(None, "environment steps", low=1)
    duration_updates: int | None = option(None, "updates", low=1)
    duration_cycles: int | None = option(None, "passes through the hooks", low=1)
    max_steps: int | None = option(
        None, "environment steps after which `until` waits no more", low=1
    )


KEYS = tuple(each.name for each in fields(PhaseBlock))


@dataclass(frozen=True)
class PhaseDefinition:
    """One phase. A cycle is one pass through `hooks`."""

    name: str
    hooks: tuple[str, ...]  # repeated hooks are written out
    type: str = "online"
    buffer: str | None = None
    policy: str | None = None
    duration_steps: int | None = None
    duration_updates: int | None = None
    duration_cycles: int | None = None
    until: tuple[str, str, float] | None = None  # metric, comparison, number
    max_steps: int | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)

    @property
    def step_limit(self) -> int | None:
        """Environment steps after which the phase is over for certain."""
        limits = [limit for limit in (self.duration_steps, self.max_steps) if limit is not None]
        return min(limits) if limits else None

    @property
    def steps_for_certain(self) -> int:
        """Environment steps that it takes, if nothing else can end it sooner; otherwise 0."""
        sooner = (self.until, self.duration_updates, self.duration_cycles)
        return 0 if any(each is not None for each in sooner) else self.step_limit or 0

    @property
    def bounded(self) -> bool:
        """True if something other than the whole run's budget or a metric ends it."""
        durations = (self.step_limit, self.duration_updates, self.duration_cycles)
        return any(limit is not None for limit in durations)


def parse_phases(
    blocks: Sequence[Mapping[str, Any]], path: str = "training.phases"
) -> list[PhaseDefinition]:
    """Phases in order, `repeat` blocks written out. All problems at once, as a `ConfigError`."""
    problems: list[str] = []
    phases = _flatten(blocks, path, problems)
    if not problems:
        problems = _endless(phases, path)
    if problems:
        raise ConfigError(problems)
    return phases


def never_reached(phases: Sequence[PhaseDefinition], total_timesteps: int) -> list[str]:
    """A line about the first phase that only comes after the end of the run, if there is one."""
    spent, reached = 0, set()
    for phase in phases:
        if spent < total_timesteps:
            reached.add(phase.name)
        elif phase.name not in reached:  # of several rounds, the last ones may be left out
            return [
                f"phase '{phase.name}' is never reached: those before it take {spent:,} of "
                f"{total_timesteps:,} total_timesteps (raise these, or shorten training.phases; "
                "a small run of every phase: --debug)"
            ]
        spent += phase.steps_for_certain
    return []


def shortened(
    blocks: Sequence[Mapping[str, Any]], share: float, most_updates: int
) -> list[dict[str, Any]]:
    """The same phases, every duration times `share` and at least 1; a `repeat` stays as it is.

    What passes without environment steps lasts `most_updates` updates at most.
    """
    found = []
    for block in blocks:
        if "repeat" in block:
            inner = shortened(block["phases"], share, most_updates)
            found.append({**block, "phases": inner})
            continue
        most = most_updates if block.get("type") == "offline" else math.inf
        lengths = {key: _count(block[key], key, []) or 1 for key in DURATIONS if key in block}
        shorter = {key: int(max(min(each * share, most), 1)) for key, each in lengths.items()}
        found.append({**block, **shorter})
    return found


class PhaseScheduler:
    """Walks through phases and cycles; resumes between any two hooks."""

    def __init__(self, phases: Sequence[PhaseDefinition], total_timesteps: int) -> None:
        self.phases = list(phases)
        self.total_timesteps = total_timesteps
        self.index = 0  # which phase
        self.begun = 0  # how many phases have done anything yet
        self.hook = 0  # which hook of the cycle is next
        self.total_steps = 0
        self.cycle_start = 0  # environment steps of the run when this cycle began
        self.steps = self.updates = self.cycles = 0  # within the phase
        self.cycle_progress = 0  # steps and updates of this cycle
        self.watched: dict[str, float] = {}  # last values of the metrics that `until` asks for

    def current_phase(self) -> PhaseDefinition | None:
        """The phase that is running, or None when all are over."""
        return self.phases[self.index] if self.index < len(self.phases) else None

    def next_action(self) -> str | None:
        """The hook to call next, or None when the run is over."""
        phase = self.current_phase()
        return phase.hooks[self.hook] if phase else None

    @property
    def at_cycle_start(self) -> bool:
        """True between two cycles: the natural place to evaluate and to save."""
        return self.hook == 0

    @property
    def is_offline(self) -> bool:
        """True in a phase that plays nothing: only updates pass the time."""
        phase = self.current_phase()
        return phase is not None and phase.type == "offline"

    def view(self) -> Mapping[str, Any]:
        """The running phase as algorithms see it."""
        phase = self.current_phase()
        assert phase is not None
        return MappingProxyType(
            {
                **phase.extras,
                "name": phase.name,
                "type": phase.type,
                "buffer": phase.buffer,
                "policy": phase.policy,
                "progress": self._progress(phase),
                "step": self.cycle_start,
                "env_steps": self.total_steps,
                "phase_steps": self.steps,
                "steps_left": self.total_timesteps - self.total_steps,
            }
        )

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Remember what conditions may ask for."""
        wanted = {phase.until[0] for phase in self.phases if phase.until}
        self.watched.update({key: metrics[key] for key in wanted & set(metrics)})

    def advance(self, action: str, *, steps: int = 0, updates: int = 0) -> None:
        """Tell what was done. A skipped update has `updates=0` and counts nothing."""
        phase = self.current_phase()
        assert phase is not None and action == phase.hooks[self.hook], (action, phase)
        self.begun = self.index + 1
        self.total_steps += steps
        self.steps += steps
        self.updates += updates
        self.cycle_progress += steps + updates
        self.hook += 1
        updates_done = phase.duration_updates is not None and self.updates >= phase.duration_updates
        if self.hook < len(phase.hooks) and not updates_done:
            return
        if self.cycle_progress == 0 and phase.type != "eval_only":
            raise ConfigError([self._standstill(phase)])
        self.hook = self.cycle_progress = 0
        self.cycle_start = self.total_steps
        self.cycles += 1
        if self.total_steps >= self.total_timesteps:
            self.index = len(self.phases)
        elif updates_done or self._over(phase):
            self.index += 1
            self.steps = self.updates = self.cycles = 0

    def count_skip(self) -> None:
        """A hook was skipped: nothing is counted, but the cycle does not stand still."""
        self.cycle_progress += 1

    def final_warnings(self, updates: int, num_envs: int = 1) -> list[str]:
        """Notes about a finished run, which took `updates` updates in all."""
        begun = self.phases[: self.begun]
        wanted = {phase.name: phase.until[0] for phase in begun if phase.until}
        found = [
            f"phase '{name}' waited for '{metric}': never measured"
            for name, metric in wanted.items()
            if metric not in self.watched
        ]
        if not updates and any(hook.startswith("update") for each in begun for hook in each.hooks):
            found.append("nothing was learned: the buffer never had enough for one update")
        collecting = [hook for phase in self.phases for hook in phase.hooks].count("collect")
        if collecting > 1 and self.total_steps >= self.total_timesteps + num_envs:
            found.append(  # of a single one it was reported before
                f"the run took {self.total_steps:,} steps, not total_timesteps "
                f"{self.total_timesteps:,}: its last cycle could not be shorter"
            )
        return found

    def get_state(self) -> dict[str, Any]:
        """Position and counters."""
        names = [
            "index",
            "begun",
            "hook",
            "total_steps",
            "cycle_start",
            "steps",
            "updates",
            "cycles",
            "cycle_progress",
            "watched",
        ]
        return {**{name: getattr(self, name) for name in names}, "watched": self.watched}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue there."""
        self.cycle_start = int(state["total_steps"])  # checkpoints of before lack it
        for name, value in state.items():
            setattr(self, name, dict(value) if name == "watched" else int(value))

    state_dict, load_state_dict = get_state, set_state

    def _standstill(self, phase: PhaseDefinition) -> str:
        kind = "" if phase.type == "offline" else ", and it is not of type: offline"
        return (
            f"phase '{phase.name}' makes no progress: it collects nothing{kind}, and there is "
            "not enough in its buffer for one update: collect more before, or learn from less "
            "at a time"
        )

    def _over(self, phase: PhaseDefinition) -> bool:
        if phase.until is not None:
            metric, comparison, number = phase.until
            if metric in self.watched and COMPARE[comparison](self.watched[metric], number):
                return True
        limits = ((phase.step_limit, self.steps), (phase.duration_cycles, self.cycles))
        if any(limit is not None and count >= limit for limit, count in limits):
            return True
        # An eval_only phase without a duration is one cycle long.
        return phase.type == "eval_only" and not phase.bounded

    def _progress(self, phase: PhaseDefinition) -> float:
        shares = [
            count / limit
            for limit, count in (
                (phase.step_limit, self.steps),
                (phase.duration_updates, self.updates),
                (phase.duration_cycles, self.cycles),
            )
            if limit
        ]
        if not shares:
            before = self.total_steps - self.steps
            shares = [self.steps / max(self.total_timesteps - before, 1)]
        return min(max(shares), 1.0)


def _flatten(blocks: Sequence[object], path: str, problems: list[str]) -> list[PhaseDefinition]:
    phases: list[PhaseDefinition] = []
    for number, block in enumerate(blocks):
        here = f"{path}[{number}]"
        if not isinstance(block, Mapping):
            problems.append(f"{here}: a phase is a mapping, got {block!r}")
        elif "repeat" in block:
            unknown = set(block) - {"repeat", "phases"}
            repeat = block["repeat"]
            if unknown or not block.get("phases"):
                problems.append(f"{here}: a repeat block has `repeat` and `phases`, nothing else")
            elif not isinstance(repeat, int) or repeat < 1:
                problems.append(f"{here}.repeat: must be a whole number of at least 1")
            else:
                inner = _flatten(block["phases"], f"{here}.phases", problems)
                if len(inner) * repeat > MOST_PHASES:
                    problems.append(f"{here}: more than {MOST_PHASES} phases")
                else:
                    phases += inner * repeat
        else:
            phase = _parse(block, here, problems)
            if phase is not None:
                phases.append(phase)
    return phases


def _parse(block: Mapping[str, Any], here: str, problems: list[str]) -> PhaseDefinition | None:
    block = {("hooks" if key == "workflow_hooks" else key): value for key, value in block.items()}
    block.setdefault("name", f"phase_{here.rpartition('[')[2].rstrip(']')}")
    known = len(problems)
    extras = {key: value for key, value in block.items() if key not in KEYS}
    for key in extras:
        hint = did_you_mean(key, KEYS)
        if "did you mean" in hint:
            problems.append(f"{here}.{key}: unknown key{hint}")
    checker = Checker()
    own = checker.block(PhaseBlock, {key: block[key] for key in block if key in KEYS}, here)
    if checker.problems:
        problems += checker.problems
        return None
    values = dict(vars(own))
    values["hooks"] = _hooks(values["hooks"], here, problems)
    if values["type"] == "offline" and "collect" in values["hooks"]:
        problems.append(f"{here}: an offline phase does not collect; use type: online")
    if values["until"] is not None:
        match = CONDITION.match(values["until"])
        if match is None:
            problems.append(
                f"{here}.until: write `metric >= number`, for example 'eval/return_mean >= 475', "
                f"got '{values['until']}'"
            )
        else:
            values["until"] = (match[1], match[2], float(match[3]))
    if len(problems) > known:
        return None
    return PhaseDefinition(**values, extras=extras)


def _hooks(hooks: Sequence[Any], here: str, problems: list[str]) -> tuple[str, ...]:
    written: list[str] = []
    for hook in hooks:
        if isinstance(hook, str):
            written.append(hook)
        elif isinstance(hook, Mapping) and len(hook) == 1:
            name, times = next(iter(hook.items()))
            written += [str(name)] * (_count(times, f"{here}.hooks.{name}", problems) or 0)
        else:
            problems.append(f"{here}.hooks: a hook is a name or {{name: times}}, got {hook!r}")
    return tuple(written)


def _count(value: object, here: str, problems: list[str]) -> int | None:
    try:
        if (number := whole(value)) >= 1:
            return number
    except BadValueError:
        pass
    problems.append(f"{here}: must be a whole number of at least 1, got {value!r}")
    return None


def _endless(phases: Sequence[PhaseDefinition], path: str) -> list[str]:
    """The problem of the first phase that nothing ends, though another one follows."""
    for phase, following in pairwise(phases):
        if not phase.bounded and phase.type != "eval_only":
            reason = "has no max_steps" if phase.until else "has no duration"
            return [f"{path}: phase '{following.name}' is unreachable: '{phase.name}' {reason}"]
    return []
