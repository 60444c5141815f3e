"""The search for good settings, by Optuna: ask for some, tell how good they were.

    tuner = Tuner({"algorithm.learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}})
    suggestion = tuner.suggest()
    tuner.tell(suggestion, train(suggestion.settings))

What was tried is in a journal file that survives any kill; `optuna-dashboard` reads it.
"""

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.core.seeding import integer
from rl_lab.records.files import open_to_read
from rl_lab.tuning.space import Choice, Dimension, Settings, Space, parse_space

POINT = "rl_lab:point"  # a trial's attribute: its number in a grid, or among the first
SEEDS = "rl_lab:seeds"  # what each seed was worth
REFUSED = "rl_lab:refused"  # a constraint does not hold, or it was never drawn: nothing ran
HALF_DRAWN = "rl_lab:half_drawn"  # the process was killed while it drew the settings
FAILURES_IN_A_ROW = 1000  # points that no constraint allows


@dataclass(frozen=True)
class Suggestion:
    """A trial: its number, and the value of every key."""

    number: int
    settings: Settings


class Tuner:
    """A study of Optuna's. Open trials of an earlier process are there again: `open`."""

    def __init__(
        self,
        space: Space | Mapping[str, Any],
        *,
        method: str = "tpe",
        direction: str = "max",
        pruner: str = "none",
        seed: int = 0,
        name: str = "sweep",
        journal: Path | None = None,
        read_only: bool = False,
    ) -> None:
        """Without a `journal`, nothing is kept. `read_only`: look at one that another process may
        be writing; nothing is suggested or recorded.
        """
        optuna = _optuna()
        self.space = space if isinstance(space, Space) else parse_space(space)
        self.method, self.seed = method, seed
        storage = None
        if journal is not None:
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend

            if journal.exists() and not read_only:
                check_journal(journal)
        with _damage_named(journal):
            if journal is not None:
                storage = JournalStorage(JournalFileBackend(str(journal)))
            if read_only:
                self.study = optuna.load_study(study_name=name, storage=storage)
                return
            self.study = optuna.create_study(
                study_name=name,
                storage=storage,
                load_if_exists=True,
                direction="maximize" if direction == "max" else "minimize",
                pruner=_pruner(pruner),
                sampler=optuna.samplers.RandomSampler(seed=seed),
            )
            self._drop_half_drawn()
            self.results()  # every value of every trial is there
            self.open()
        self._enqueue(self.space.points() if method == "grid" else self.space.first)

    def suggest(self) -> Suggestion | None:
        """Settings to try; None when a grid is used up."""
        for _ in range(FAILURES_IN_A_ROW):
            if self.method == "grid" and not self._waiting():
                return None
            number = len(self.study.trials)
            # A seed for each trial: a restarted process draws what the old one would have drawn.
            self.study.sampler = _sampler(self.method, integer(self.seed, "trial", number))
            trial = self.study.ask(_distributions(self.space.dimensions))
            chosen = self._plain(trial.params)
            if self.space.allows(chosen):
                return Suggestion(trial.number, self.space.complete(chosen))
            trial.set_user_attr(REFUSED, True)
            self.study.tell(trial.number, state=_state("FAIL"))
        raise UserError(
            f"none of {FAILURES_IN_A_ROW} suggestions keeps the constraints: are they right?"
        )

    def tell(
        self, suggestion: Suggestion, value: float | None, seeds: Sequence[float] = ()
    ) -> None:
        """How good it was; None: it failed. The values of its `seeds` are kept beside it."""
        if seeds:
            self._trial(suggestion).set_user_attr(SEEDS, list(seeds))
        state = _state("COMPLETE" if value is not None else "FAIL")
        self.study.tell(suggestion.number, value, state=state)

    def prune(self, suggestion: Suggestion) -> None:
        """It was stopped early."""
        self.study.tell(suggestion.number, state=_state("PRUNED"))

    def hopeless(self, suggestion: Suggestion, values: Mapping[int, float]) -> bool:
        """Whether the pruner would stop a trial whose values at these steps are known."""
        trial = self._trial(suggestion)
        known = self.study.trials[suggestion.number].intermediate_values
        for step, value in sorted(values.items()):
            if step not in known:
                trial.report(value, step)
                if trial.should_prune():
                    return True
        return False

    def open(self) -> list[Suggestion]:
        """Trials that were suggested and have no result, oldest first."""
        return [
            Suggestion(each.number, self.space.complete(self._plain(each.params)))
            for each in self.study.get_trials(deepcopy=False, states=[_state("RUNNING")])
        ]

    @property
    def count(self) -> int:
        """Trials so far, open ones included; not those that a constraint refused."""
        return sum(
            each.state != _state("WAITING") and REFUSED not in each.user_attrs
            for each in self.study.get_trials(deepcopy=False)
        )

    def results(self) -> list[tuple[Suggestion, str, float | None]]:
        """Every trial with how it ended and its value."""
        return [
            (
                Suggestion(each.number, self.space.complete(self._plain(each.params))),
                each.state.name.lower(),
                each.value if each.state == _state("COMPLETE") else None,
            )
            for each in self.study.get_trials(deepcopy=False)
            if set(each.params) >= set(self.space.dimensions) and REFUSED not in each.user_attrs
        ]

    def seeds(self, suggestion: Suggestion) -> list[float]:
        """The results of the seeds of a trial."""
        return list(self.study.trials[suggestion.number].user_attrs.get(SEEDS, ()))

    def _trial(self, suggestion: Suggestion) -> Any:
        return _optuna().Trial(self.study, self.study.trials[suggestion.number]._trial_id)

    def _plain(self, params: Mapping[str, Any]) -> Settings:
        """Values as they stand in the file: Optuna keeps a list as text."""
        found = {}
        for key, dimension in self.space.dimensions.items():
            value = params[key]
            if isinstance(dimension, Choice):
                value = dict(zip(_labels(dimension), dimension.values, strict=True))[value]
            found[key] = value
        return found

    def _drop_half_drawn(self) -> None:
        """Trials of a process that was killed before it had drawn all settings: others come."""
        for each in self.study.get_trials(deepcopy=False, states=[_state("RUNNING")]):
            if set(each.params) < set(self.space.dimensions):
                trial = _optuna().Trial(self.study, each._trial_id)
                trial.set_user_attr(REFUSED, True)
                trial.set_user_attr(HALF_DRAWN, True)
                self.study.tell(each.number, state=_state("FAIL"))

    def _enqueue(self, points: Iterable[Settings]) -> None:
        """Points that are known beforehand, once, whenever a process was killed."""
        there = {
            each.user_attrs.get(POINT)
            for each in self.study.get_trials(deepcopy=False)
            if HALF_DRAWN not in each.user_attrs
        }
        for index, point in enumerate(points):
            if index not in there:
                self.study.enqueue_trial(self._encoded(point), user_attrs={POINT: index})

    def _encoded(self, point: Settings) -> dict[str, Any]:
        return {
            key: _label(point[key]) if isinstance(dimension, Choice) else point[key]
            for key, dimension in self.space.dimensions.items()
        }

    def _waiting(self) -> bool:
        return bool(self.study.get_trials(deepcopy=False, states=[_state("WAITING")]))


@contextmanager
def _damage_named(journal: Path | None) -> Iterator[None]:
    """Whatever Optuna raises over a damaged journal becomes one line."""
    try:
        yield
    except (UserError, ImportError):
        raise
    except Exception as error:
        if journal is None:
            raise
        reason = " ".join(str(error).split()) or "it does not fit together"
        raise UserError(_damaged(journal, f"{type(error).__name__}: {reason[:120]}")) from error


def check_journal(journal: Path) -> None:
    """`UserError` if a line of a journal is not an entry.

    A killed writer may have left half a line at the end: it goes, or the next entry would be glued
    to it. Only for the process that runs the sweep.
    """
    whole = 0
    try:
        with open_to_read(journal) as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(_damaged(journal, f"line {number} is not JSON")) from error
                if not isinstance(entry, dict) or "op_code" not in entry:
                    raise UserError(_damaged(journal, f"line {number} is no entry"))
        if whole < journal.stat().st_size:
            os.truncate(journal, whole)
    except OSError as error:
        raise UserError(f"{journal} cannot be read: {error.strerror}") from error


def _damaged(journal: Path, reason: str) -> str:
    return f"{journal} is damaged ({reason}): put a copy of it back, or give the sweep another name"


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("sweeps need Optuna: pip install 'rl-lab[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _sampler(method: str, seed: int) -> Any:
    samplers = _optuna().samplers
    if method == "tpe":
        return samplers.TPESampler(seed=seed, multivariate=True)
    if method == "cmaes":
        return samplers.CmaEsSampler(seed=seed)
    if method == "gp":
        return samplers.GPSampler(seed=seed)
    return samplers.RandomSampler(seed=seed)


def _pruner(name: str) -> Any:
    pruners = _optuna().pruners
    if name == "asha":
        return pruners.SuccessiveHalvingPruner()
    if name == "hyperband":
        return pruners.HyperbandPruner()
    if name == "median":
        return pruners.MedianPruner()
    return pruners.NopPruner()


def _distributions(dimensions: Mapping[str, Dimension]) -> dict[str, Any]:
    return {key: _distribution(each) for key, each in dimensions.items()}


def _distribution(dimension: Dimension) -> Any:
    found = _optuna().distributions
    if isinstance(dimension, Choice):
        return found.CategoricalDistribution(_labels(dimension))
    if dimension.is_whole:
        low, high = int(dimension.low), int(dimension.high)
        return found.IntDistribution(low, high, dimension.log, int(dimension.step or 1))
    return found.FloatDistribution(dimension.low, dimension.high, dimension.log, dimension.step)


def _label(value: object) -> Any:
    """A choice as Optuna can keep and show it."""
    simple = value is None or isinstance(value, bool | int | float | str)
    return value if simple else json.dumps(value)


def _labels(dimension: Choice) -> list[Any]:
    return [_label(each) for each in dimension.values]


def best(results: Sequence[tuple[Suggestion, str, float | None]], direction: str) -> Any:
    """The trial with the best value, or None."""
    scored = [each for each in results if each[2] is not None]
    sign = 1 if direction == "max" else -1
    return max(scored, key=lambda each: sign * (each[2] or 0.0), default=None)
