"""A callback that changes hyperparameters when a metric stalls. Train with it:

    rl-lab train --config examples/interventions.yaml

A rule watches one metric. Each report of it (an evaluation for `eval/…`, an update for `train/…`, a
rollout for `collect/…`) is an improvement or not; after `patience` reports without one, the actions
of the rule are applied to the algorithm's options. What was applied is a list of rules in order,
which is saved: options are computed from it and from the configuration.

| key | meaning |
|---|---|
| `metric` | its full name |
| `mode`, `min_delta` | `max` (the default) or `min`; the least change that is an improvement |
| `patience` | reports in a row without an improvement before the rule acts; then it counts again |
| `cooldown` | reports after it acted that do not count |
| `actions` | `{key, multiply}`, `{key, add}` or `{key, set}`, with `min` and `max` |
| `revert` | at the next improvement, everything that this rule has changed is taken back |

A key is a `float` of the algorithm's block; of a schedule, the value is changed and its course goes
on. A bound stops a push and never pulls: a schedule that is below `min` already stays there. What
could grow or fall without limit needs a bound, so every value that can be reached is checked before
the run. What changed is in the log, counted in `train/interventions`, and part of every checkpoint:
a resumed run goes on with the changed values. `config.yaml` stays as it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from rl_lab import Callback, register
from rl_lab.core.errors import did_you_mean
from rl_lab.core.options import option
from rl_lab.core.schedule import Schedule, at

BLOCK = "algorithm."


@dataclass(frozen=True, kw_only=True)
class Change:
    """What happens to one option: exactly one of multiply, add and set."""

    key: str = option("", "a float option of the algorithm, e.g. algorithm.learning_rate")
    multiply: float | None = option(None, "times this; above 1 it needs a max")
    add: float | None = option(None, "plus this; it needs a max, or a min if it is negative")
    set: float | None = option(None, "to this value")
    min: float | None = option(None, "never pushed below this")
    max: float | None = option(None, "never pushed above this")

    def __post_init__(self) -> None:
        """Nothing may grow without limit: every value that can be reached is known before."""
        if [self.multiply, self.add, self.set].count(None) != 2:
            raise ValueError("multiply, add, set: an action needs exactly one of them")
        if self.multiply is not None and self.multiply <= 0:
            raise ValueError(f"multiply must be positive, got {self.multiply:g}")
        rises = (self.multiply or 0) > 1 or (self.add or 0) > 0
        if rises and self.max is None:
            raise ValueError("max must be given where a value can grow without limit")
        if (self.add or 0) < 0 and self.min is None:
            raise ValueError("min must be given where a value can fall without limit")

    @property
    def name(self) -> str:
        """The option within its block."""
        return self.key.removeprefix(BLOCK)

    def __call__(self, value: float) -> float:
        """The value after it. A bound stops a push, and never pulls what is beyond it already."""
        if self.set is not None:
            return self.set
        pushed = value * self.multiply if self.multiply is not None else value + (self.add or 0.0)
        if self.min is not None and pushed < self.min:
            pushed = min(value, self.min)
        if self.max is not None and pushed > self.max:
            pushed = max(value, self.max)
        return pushed


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """One rule: which metric, how long it may stall, and what is done about it."""

    metric: str = option("eval/return_mean", "the metric that should improve")
    patience: int = option(3, "reports in a row without an improvement before it acts")
    min_delta: float = option(0.0, "a smaller change is no improvement")
    mode: Literal["max", "min"] = option("max", "whether more or less is better")
    actions: list[Change] = option([], "what to change")
    revert: bool = option(False, "take all of it back at the next improvement")
    cooldown: int = option(0, "reports after it acted that do not count")

    def __post_init__(self) -> None:
        """Counts are natural numbers, and there is something to do."""
        for name, least in {"patience": 1, "min_delta": 0, "cooldown": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name):g}")
        if "/" not in self.metric:
            raise ValueError(f"metric must be a full name like eval/return_mean: '{self.metric}'")
        if not self.actions:
            raise ValueError("actions must have at least one entry")

    def improved(self, value: float, best: float | None) -> bool:
        """Compared with the best so far."""
        if best is None:
            return True
        gain = value - best if self.mode == "max" else best - value
        return gain > self.min_delta


@dataclass(frozen=True, kw_only=True)
class InterventionsConfig:
    rules: list[Intervention] = option([], "each is judged by itself")

    def check(self, config: Any) -> list[str]:
        """Path and message of everything that does not fit the algorithm of the run."""
        found = []
        numbers = changeable(config.algorithm)
        for number, rule in enumerate(self.rules):
            for index, action in enumerate(rule.actions):
                path = f"rules.{number}.actions.{index}"
                if action.key not in numbers:
                    hint = did_you_mean(action.key, numbers)
                    found.append(f"{path}.key: no float option of this algorithm{hint}")
                    continue
                for name in ("set", "min", "max"):
                    if (value := getattr(action, name)) is not None:
                        try:
                            replace(config.algorithm, **{action.name: value})
                        except ValueError as error:
                            found.append(f"{path}.{name}: {error} ({action.key})")
        return found


def changeable(algorithm: Any) -> dict[str, float | Schedule]:
    """The options that every update reads again: numbers and schedules of the algorithm's block."""
    live = [each.name for each in fields(algorithm) if not each.metadata.get("fixed")]
    values = {f"{BLOCK}{name}": getattr(algorithm, name) for name in live}
    return {key: each for key, each in values.items() if isinstance(each, (float, Schedule))}


@dataclass(frozen=True, kw_only=True)
class Adjusted(Schedule):
    """A schedule with changes on top of its value."""

    changes: tuple[Change, ...]

    def __call__(self, step: int) -> float:
        """The value at an environment step."""
        return applied(self.changes, super().__call__(step))


def applied(changes: Iterable[Change], value: float) -> float:
    """The value after all of them, in order."""
    for change in changes:
        value = change(value)
    return value


@register("callback", "interventions")
class Interventions(Callback):
    """The rules at work on one algorithm, whose `config` they replace by a changed copy."""

    Config: ClassVar[type] = InterventionsConfig

    def __init__(self, config: InterventionsConfig) -> None:
        self.rules = config.rules
        self.best: list[float | None] = [None for _ in self.rules]
        self.stalled = [0 for _ in self.rules]  # reports in a row without an improvement
        self.cooling = [0 for _ in self.rules]  # reports that do not count yet
        self.applied: list[int] = []  # numbers of the rules that are in force, in order
        self.count = 0  # how often any of them acted

    def initialize(self, run: Any) -> None:
        self.attach(run.algorithm)
        run.resources.callback(self.warn_of_unseen, run)  # before the sinks are closed

    def attach(self, algorithm: Any) -> None:
        """Change the options of this algorithm from now on."""
        self.algorithm, self.original = algorithm, algorithm.config

    def on_metrics(self, run: Any, metrics: Mapping[str, float]) -> None:
        for line in self.observe(metrics, run.counters.env_steps):
            run.sinks.say(line)
        run.progress.note({"train/interventions": self.count}, mean=False)

    def warn_of_unseen(self, run: Any) -> None:
        """At the end of a run: a metric that nothing reports is probably misspelled."""
        if run.counters.env_steps >= run.config.training.total_timesteps:
            for rule, best in zip(self.rules, self.best, strict=True):
                if best is None:
                    run.sinks.say(f"WARNING: interventions: no '{rule.metric}' was ever reported")

    def observe(self, numbers: Mapping[str, float], step: int) -> list[str]:
        """Judge what was reported; what changed, as lines for a human."""
        lines = []
        for number, rule in enumerate(self.rules):
            if rule.metric in numbers:
                lines += self._judge(number, rule, float(numbers[rule.metric]), step)
        return lines

    def _judge(self, number: int, rule: Intervention, value: float, step: int) -> list[str]:
        if rule.improved(value, self.best[number]):
            self.best[number], self.stalled[number] = value, 0
            if rule.revert and number in self.applied:
                kept = [each for each in self.applied if each != number]
                return self._become(kept, f"{rule.metric} improved to {value:g}", step)
            return []
        if self.cooling[number]:
            self.cooling[number] -= 1
            return []
        self.stalled[number] += 1
        if self.stalled[number] < rule.patience:
            return []
        self.stalled[number], self.cooling[number] = 0, rule.cooldown
        reason = f"{rule.metric} has not improved on {self.best[number]:g} {rule.patience} times"
        lines = self._become([*self.applied, number], reason, step)
        self.count += bool(lines)
        return lines

    def _become(self, rules: list[int], reason: str, step: int) -> list[str]:
        """Put other rules into force; nothing if no value would change by it."""
        before, config = self.algorithm.config, self._config(rules)
        now, then = (changeable(at(each, step)) for each in (config, before))
        moved = [f"{key} {then[key]:.4g} → {now[key]:.4g}" for key in now if now[key] != then[key]]
        if not moved:
            return []
        self.applied, self.algorithm.config = rules, config
        return [f"step {step}: {reason}: {', '.join(moved)}"]

    def _config(self, rules: Sequence[int]) -> Any:
        """The configuration with the actions of these rules, one after another."""
        changes: dict[str, tuple[Change, ...]] = {}
        for action in (action for number in rules for action in self.rules[number].actions):
            changes[action.name] = (*changes.get(action.name, ()), action)
        values: dict[str, Any] = {}
        for name, own in changes.items():
            value = getattr(self.original, name)
            if isinstance(value, Schedule):
                parts = {each.name: getattr(value, each.name) for each in fields(value)}
                values[name] = Adjusted(**parts, changes=own)
            else:
                values[name] = applied(own, value)
        return replace(self.original, **values)

    def state_dict(self) -> dict[str, Any]:
        """Where every rule stands."""
        names = ("best", "stalled", "cooling", "applied", "count")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand there again, with the options as they were."""
        for name, value in state.items():
            setattr(self, name, value if name == "count" else list(value))
        self.algorithm.config = self._config(self.applied)
