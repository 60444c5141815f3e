"""What a NaN or an infinity does to a run: stop it, drop what was touched, or send it back.

Bad numbers are met in four places: in what was collected, in an update, in an evaluation, and in
the state that is about to be saved. None of them lets one through, so nothing that is not finite is
ever in a buffer, in a statistic or in a checkpoint.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.config.tree import to_tree
from rl_lab.core.batch import Batch
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.state import Stateful, Tree, logs
from rl_lab.records.commit import commit_tree

if TYPE_CHECKING:
    from rl_lab.run.orchestrator import Orchestrator

MOST_SKIPS = 10  # of one hook, in a row
MOST_ROLLBACKS = 3  # of one run
SAVED = ("skipped", "in_a_row", "rollbacks")
SAVE = "save"  # stands for a hook where it is the state itself that is not finite
ROLLOUT = "a rollout"


@dataclass
class Evidence:
    """What a hook was given, for the dump."""

    batch: Batch | None = None


# -- finding --------------------------------------------------------------------------------------


def nonfinite_paths(tree: Tree, path: str = "") -> set[str]:
    """Where a tree has a tensor or an array with a NaN or an infinity in it."""
    if isinstance(tree, Tensor):
        if not tree.is_floating_point() or math.isfinite(tree.sum()):
            return set()  # one pass; a sum may also overflow, so a bad one is checked again
        return set() if bool(torch.isfinite(tree).all()) else {path}
    if isinstance(tree, np.ndarray):
        return {path} if tree.dtype.kind == "f" and not np.isfinite(tree).all() else set()
    if isinstance(tree, Mapping):
        pairs: Iterable[tuple[object, object]] = tree.items()
    elif isinstance(tree, (list, tuple)):
        pairs = enumerate(tree)
    else:  # a plain number is a user's own mark, such as a best score of minus infinity
        return set()
    found: set[str] = set()
    for key, each in pairs:
        found |= nonfinite_paths(each, f"{path}/{key}" if path else str(key))
    return found


def check_data(trajectory: Batch) -> None:
    """Before it reaches a buffer."""
    if bad := nonfinite_paths(trajectory):
        raise NonFiniteError(
            f"{ROLLOUT} has a {min(bad)} that is not finite; nothing was stored or learned from it",
            {"field": min(bad)},
        )


def check_update(hook: str, numbers: Mapping[str, float]) -> None:
    """For algorithms that do not look themselves: a bad loss has already moved the weights."""
    for name, number in numbers.items():
        if "loss" in name and not math.isfinite(number):
            raise NonFiniteError(
                f"{hook} returned {name} = {number}, after it had changed the weights",
                {"field": name, "applied": True},
            )


def check_score(score: float) -> None:
    """Before an evaluation is compared with earlier ones."""
    if not math.isfinite(score):
        raise NonFiniteError(f"an evaluation returned {score}; it was not used")


def learned(run: "Orchestrator") -> Tree:
    """The part of a run's state that must be finite: what learns, and what is acted on next."""
    components = {
        name: part.state_dict()
        for name, part in run.components.items()
        if isinstance(part, Stateful)
    }
    return {
        "workflow": run.algorithm.get_state(),
        "policies": {name: each.get_state() for name, each in run.policies.items()},
        "components": components,
        "collector": run.collector.state_dict(),
    }


def _without_rows(state: Tree) -> Tree:
    parts = {name: None if any(logs(part)) else part for name, part in state["parts"].items()}
    return {**state, "parts": parts}


# -- what is done about it ------------------------------------------------------------------------


class Guard:
    """Applies `compute.on_nonfinite` to one run, and counts what was skipped and undone."""

    def __init__(self, run: "Orchestrator") -> None:
        self.run = run
        self.policy = run.config.compute.on_nonfinite
        self.exempt = nonfinite_paths(learned(run))  # meant to be so from the start
        self.skipped: dict[str, int] = {}  # hook -> calls dropped for a bad number
        self.in_a_row: dict[str, int] = {}  # the same, since the last good call
        self.rollbacks: list[dict[str, Any]] = []  # where from, where to, and why

    def damage(self) -> set[str]:
        """Where the state of the run is not finite, and should be."""
        return nonfinite_paths(learned(self.run)) - self.exempt

    def check_state(self) -> None:
        """Before a checkpoint: a state that is not finite goes to `crash/` instead."""
        if bad := self.damage():
            error = NonFiniteError(
                f"{min(bad)} is not finite; no checkpoint was written", {"paths": sorted(bad)}
            )
            self.dump(SAVE, None, error)
            raise error

    def metrics(self) -> dict[str, float]:
        """What was dropped so far, for the next row; nothing in a run that met no bad number."""
        names = {"collect": "collect/skipped_rollouts", "evaluate": "eval/skipped_evaluations"}
        found: dict[str, float] = {}
        for hook, count in self.skipped.items():
            name = names.get(hook, "train/skipped_updates")
            found[name] = found.get(name, 0) + count
        if self.rollbacks:
            found["train/rollbacks"] = len(self.rollbacks)
        return found

    def state_dict(self) -> dict[str, Any]:
        """What was skipped and undone so far."""
        return {name: getattr(self, name) for name in SAVED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from there."""
        for name in SAVED:
            setattr(self, name, state[name])

    # -- raise and skip ---------------------------------------------------------------------------

    @contextmanager
    def watching(self, hook: str) -> Iterator[Evidence]:
        """Around a hook. A bad number leaves a dump, and is an error unless it may be skipped."""
        skipping = self.policy == "skip"
        before = self.run.collector.state_dict() if skipping and hook == "collect" else None
        evidence = Evidence()
        try:
            yield evidence
        except NonFiniteError as error:
            if not skipping or not self.skipped:  # one example of what is skipped is enough
                self.dump(hook, evidence.batch, error)
            if not skipping:
                raise
            self._skip(hook, error, before, evidence)
        else:
            self.in_a_row.pop(hook, None)

    def _skip(self, hook: str, error: NonFiniteError, before: Tree, evidence: Evidence) -> None:
        """Skip the call, which counts nothing. Raises if it changed state, or if it fails again."""
        run = self.run
        if self.in_a_row.get(hook, 0) >= MOST_SKIPS:
            self.dump(hook, evidence.batch, error)
        if before is not None:
            # Every environment begins a new episode: the bad number may be in its simulator. The
            # returns of before come back, without those that the bad rollout has spoilt.
            run.collector.load_state_dict(before)
            run.collector.restart()
        row = self.in_a_row[hook] = self.in_a_row.get(hook, 0) + 1
        damage = self.damage()
        if error.details.get("applied") or damage:
            what = min(damage) if damage else "the update"
            error.add_note(
                f"this cannot be skipped: {what} is not as it was before; "
                "compute.on_nonfinite=rollback goes back to a checkpoint"
            )
            raise error
        if row > MOST_SKIPS:
            error.add_note(f"{hook} was skipped {MOST_SKIPS} times in a row: nothing is learned so")
            raise error
        run.scheduler.count_skip()
        total = self.skipped[hook] = self.skipped.get(hook, 0) + 1
        if total & (total - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            at = run.counters.env_steps
            run.sinks.say(f"WARNING: {hook} skipped at step {at} ({total} so far): {error}")

    def dump(self, hook: str, batch: Batch | None, error: NonFiniteError) -> None:
        """What `rl-lab replay-crash` needs to reproduce the failure; best effort.

        An update fails again from the state before it and its batch. A rollout began before the bad
        number came, so it is collected again from the newest checkpoint, or from the first step.
        Parts that may hold gigabytes of rows are None: they stay in the checkpoints.
        """
        run, epoch = self.run, len(self.rollbacks)
        name = f"step_{run.counters.env_steps:012d}" + (f"-{epoch}" if epoch else "")
        where = run.folder / "crash" / name
        manifest = {
            "hook": hook,
            "step": run.counters.env_steps,
            "message": str(error),
            "details": error.details,
            "config": to_tree(run.config),
        }
        try:
            if not where.exists():  # a resumed run fails in the same way, at the same step
                found = self.newest_finite() if hook == "collect" else (run.state(), {})
                tree = {"state": _without_rows(found[0]) if found else None, "batch": batch}
                commit_tree(where, tree, manifest=manifest)
            error.add_note(f"state and batch are in {where}: rl-lab replay-crash {where}")
        except (OSError, TypeError, UserError) as failure:  # the error itself matters more
            error.add_note(f"state and batch could not be written to {where}: {failure}")

    # -- rollback ---------------------------------------------------------------------------------

    def roll_back(self, error: NonFiniteError) -> None:
        """Send the run back to its newest finite checkpoint; or raise the error again."""
        if self.policy != "rollback":
            raise error
        if len(self.rollbacks) >= MOST_ROLLBACKS:
            error.add_note(f"the run went back {MOST_ROLLBACKS} times already: it stops here")
            raise error
        found = self.newest_finite()
        if found is None:
            error.add_note(
                "there is no checkpoint yet to go back to: lower checkpoint.every_steps, "
                "or look for the cause in the dump"
            )
            raise error
        state, manifest = found
        run, before = self.run, self.rollbacks
        step, left, number = int(manifest["step"]), run.counters.env_steps, len(before) + 1
        run.go_back(state, step, epoch=number)
        entry = {"step": left, "to": step, "epoch": number, "reason": str(error)}
        self.rollbacks = [*before, entry]
        run.sinks.say(
            f"WARNING: back from step {left} to {step} with new random numbers "
            f"({number} of at most {MOST_ROLLBACKS}): {error}"
        )
        # At once, so that a killed run does not come back with the old random numbers. The weights
        # are the same, and so is their score.
        run.save(score=manifest["score"])

    def newest_finite(self) -> tuple[Tree, dict[str, Any]] | None:
        """The newest checkpoint that loads and is finite: an older version may have saved any."""
        run = self.run
        for step in reversed(run.store.steps()):
            try:
                state, manifest, _ = run.store.load(step)
            except UserError as problem:
                run.sinks.say(f"WARNING: {problem}")
                continue
            found = nonfinite_paths({key: state[key] for key in ("workflow", "policies")})
            if found <= self.exempt:
                return state, manifest
            run.sinks.say(f"WARNING: skipped the checkpoint of step {step}: it is not finite")
        return None
