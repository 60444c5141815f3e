"""What `rl-lab dataset record` does: find the run, the place and the reference returns; record."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_lab.buffers.datasets import datasets_root
from rl_lab.core.errors import UserError
from rl_lab.datasets.folder import Tell, silent
from rl_lab.datasets.record import (
    Recipe,
    Recorded,
    measure_references,
    record_policy,
    record_replay,
    refuse_complete,
)
from rl_lab.run import policy

_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)*")


def place(name: str) -> Path:
    """Where a new dataset goes: a name into `datasets/`, a path (/…, ./…, ~/…) as it is."""
    if name.startswith(("/", "./", "../", "~")):
        return Path(name).expanduser()
    if not _NAME.fullmatch(name):
        raise UserError(
            f"'{name}' is not a name of a dataset: letters, digits, -, _ and . with / between them"
        )
    return datasets_root() / name


def record(
    reference: str,
    root: Path,
    name: str,
    recipe: Recipe,
    *,
    checkpoint: str | None = None,
    replay: bool = False,
    buffer: str | None = None,
    expert: str | None = None,
    trust: bool = False,
    tell: Tell = silent,
    warn: Callable[[str], None] = lambda line: None,
) -> Recorded:
    """Record a dataset of a run.

    `expert` is what counts as 100: a return, or the run whose best policy is played for it; the
    best policy of this run unless given.
    """
    path = place(name)
    refuse_complete(path)
    full = reference if checkpoint is None else f"{reference}:{checkpoint}"
    references: dict[str, Any] | None = None
    if recipe.references:
        references = _references(reference, root, recipe, expert, trust=trust, warn=warn)
    if replay:
        return record_replay(
            full,
            root,
            path,
            name=name,
            buffer=buffer,
            references=references,
            trust=trust,
            tell=tell,
            warn=warn,
        )
    loaded = policy.load(
        full, root, seed=recipe.seed, deterministic=not recipe.sample, trust=trust, warn=warn
    )
    try:
        return record_policy(loaded, path, recipe, name=name, references=references, tell=tell)
    finally:
        loaded.context.train_environment.close()


def _references(
    reference: str,
    root: Path,
    recipe: Recipe,
    expert: str | None,
    *,
    trust: bool,
    warn: Callable[[str], None],
) -> dict[str, Any]:
    score = None
    if expert is not None:
        try:
            score = float(expert)
        except ValueError:
            reference = expert
    best = policy.load(_without_step(reference), root, seed=recipe.seed, trust=trust, warn=warn)
    try:
        return measure_references(best, recipe.references, seed=recipe.seed, expert=score)
    finally:
        best.context.train_environment.close()


def _without_step(reference: str) -> str:
    """The run alone, whose best checkpoint is then taken."""
    head, colon, which = reference.rpartition(":")
    is_step = which in ("best", "last") or which.isdecimal()
    return head if colon and head and is_step else reference
