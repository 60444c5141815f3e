"""When a metric stalls, hyperparameters change: `training.interventions`.

A rule watches one metric. Each report of it (an evaluation for `eval/…`, an update for `train/…`,
a rollout for `collect/…`) is an improvement or not; after `patience` reports without one, the
rule's actions are applied to the algorithm's options. What was applied is a list of rules in order,
which is saved as a part of the workflow: options are computed from it and from the configuration.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from rl_lab.algorithms.base import Workflow
from rl_lab.core.errors import did_you_mean
from rl_lab.core.schedule import Schedule, at
from rl_lab.core.schema import ALGORITHM, AlgorithmConfig, Change, Intervention

if TYPE_CHECKING:
    from rl_lab.run.orchestrator import Orchestrator


def find_problems(
    rules: Sequence[Intervention], algorithm: AlgorithmConfig
) -> list[tuple[str, str]]:
    """Path and message of everything that does not fit this algorithm."""
    found = []
    numbers = changeable(algorithm)
    for number, rule in enumerate(rules):
        for index, action in enumerate(rule.actions):
            path = f"training.interventions.{number}.actions.{index}"
            if action.key not in numbers:
                hint = did_you_mean(action.key, numbers)
                found.append((f"{path}.key", f"no float option of this algorithm{hint}"))
                continue
            for name in ("set", "min", "max"):
                if (value := getattr(action, name)) is not None:
                    try:
                        replace(algorithm, **{action.name: value})
                    except ValueError as error:
                        found.append((f"{path}.{name}", f"{error} ({action.key})"))
    return found


def changeable(algorithm: AlgorithmConfig) -> dict[str, float | Schedule]:
    """The options that every update reads anew: numbers and schedules of the algorithm's block."""
    live = [each.name for each in fields(algorithm) if not each.metadata.get("fixed")]
    values = {f"{ALGORITHM}{name}": getattr(algorithm, name) for name in live}
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


class Interventions:
    """The rules at work on one workflow, whose `config` they replace by a changed copy."""

    def __init__(self, rules: Sequence[Intervention], workflow: Workflow) -> None:
        self.rules = list(rules)
        self.workflow = workflow
        self.original = workflow.config
        self.best: list[float | None] = [None for _ in rules]
        self.stalled = [0 for _ in rules]  # reports in a row without an improvement
        self.cooling = [0 for _ in rules]  # reports that do not count yet
        self.applied: list[int] = []  # numbers of the rules that are in force, in order
        self.count = 0  # how often any of them acted

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
        before, config = self.workflow.config, self._config(rules)
        now, then = (changeable(at(each, step)) for each in (config, before))
        moved = [f"{key} {then[key]:.4g} → {now[key]:.4g}" for key in now if now[key] != then[key]]
        if not moved:
            return []
        self.applied, self.workflow.config = rules, config
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
        self.workflow.config = self._config(self.applied)


def intervene(rules: Sequence[Intervention], workflow: Workflow) -> None:
    """Make the rules a part of the workflow: what they changed is saved and loaded with it."""
    if rules:
        vars(workflow)["interventions"] = Interventions(rules, workflow)


def watch_metrics(run: "Orchestrator") -> None:
    """Show every metric of a run to the rules of its workflow."""
    rules = vars(run.workflow).get("interventions")
    if not isinstance(rules, Interventions):
        return

    def look(numbers: Mapping[str, float]) -> None:
        for line in rules.observe(numbers, run.counters.env_steps):
            run.sinks.say(line)
        run.progress.note({"train/interventions": rules.count}, mean=False)

    def tell_unseen() -> None:
        if run.counters.env_steps >= run.config.training.total_timesteps:
            for rule, best in zip(rules.rules, rules.best, strict=True):
                if best is None:
                    run.sinks.say(
                        f"WARNING: training.interventions: no '{rule.metric}' was ever reported"
                    )

    run.on_note = look
    run.resources.callback(tell_unseen)  # before the sinks are closed
