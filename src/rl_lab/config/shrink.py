"""Runs that are small on purpose (`--debug`, `rl-lab smoke`, `rl-lab check`) and yet do everything.

With fewer steps than its files have, a run would end in the first of its phases. A small run gets
the same share of every phase, and what is too large for that is made smaller. What was typed stays.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rl_lab.config.catalog import algorithm_class
from rl_lab.config.compose import Composed
from rl_lab.config.documents import COMMAND_LINE, Origin, forget
from rl_lab.config.tree import to_tree
from rl_lab.config.validate import validate
from rl_lab.core.schema import RunConfig, TrainingConfig
from rl_lab.core.values import whole
from rl_lab.run.phases import parse_phases, shortened

MOST_UPDATES = 20  # of an offline phase
VECTOR_STEPS = 16  # that one call of collect shall have room for
FEWEST_ENVS = 4
TOTAL, PHASES, ENVS = "training.total_timesteps", "training.phases", "environment.num_envs"
SMALL = Origin("a small run")


def made_small(composed: Composed) -> Composed:
    """The tree of a run that does all of it in the typed total, if the files have a larger one."""
    config = validate(composed.tree, composed.origins)
    steps = config.training.total_timesteps
    written = composed.replaced.get(TOTAL) or TrainingConfig().total_timesteps
    if TOTAL not in composed.replaced or steps >= whole(written):
        return composed
    small = replace(composed, tree=to_tree(config), origins=dict(composed.origins))
    share = steps / whole(written)
    call, before = steps, 0
    if blocks := config.training.phases or algorithm_class(config.algorithm).phases:
        _change(small, {PHASES: shortened(blocks, share, MOST_UPDATES)})
        call, before = room(validate(small.tree, small.origins))
        most = max(call // VECTOR_STEPS, FEWEST_ENVS)
        _change(small, {ENVS: largest_divisor(config.environment.num_envs, most)})
    config = validate(small.tree, small.origins)
    for together in config.algorithm.small(config, call=call, before=before):
        _change(small, together)
    changed = [path for path, origin in small.origins.items() if origin == SMALL]
    if not changed:
        return small
    changes = [f"{path}={_block(small.tree, path)[1]}" for path in changed if path != PHASES]
    changes += [f"phases at {share:.2g} of their length"] if PHASES in changed else []
    return replace(small, notes=[*composed.notes, f"a small run: {', '.join(changes)}"])


def room(config: RunConfig) -> tuple[int, int]:
    """Environment steps that one call of collect may take, and those before the first learning.

    A phase ends after a whole call, so each takes up to a call more than it is long: half of what
    the phases leave of the total is for that.
    """
    phases = parse_phases(config.training.phases)
    collecting = [phase for phase in phases if "collect" in phase.hooks]
    if not collecting:
        return config.training.total_timesteps, 0
    spare = config.training.total_timesteps - sum(phase.steps_for_certain for phase in phases)
    return max(spare // (2 * len(collecting)), 1), collecting[0].step_limit or 0


def largest_divisor(number: int, most: int) -> int:
    """What fitted together with `number` still does with a divisor of it."""
    return max(each for each in range(1, min(number, most) + 1) if number % each == 0)


def _change(composed: Composed, together: Mapping[str, Any]) -> None:
    """Set options that only make sense together; none of them, if one was typed."""
    if any(composed.origins.get(path) == COMMAND_LINE for path in together):
        return
    for path, value in together.items():
        block, before = _block(composed.tree, path)
        if before != value:
            block[path.rpartition(".")[2]] = value
            forget(path, composed.origins)
            composed.origins[path] = SMALL


def _block(tree: dict[str, Any], path: str) -> tuple[dict[str, Any], Any]:
    """The block that a path leads into, and what stands there."""
    *blocks, key = path.split(".")
    for block in blocks:
        tree = tree[block]
    return tree, tree[key]
