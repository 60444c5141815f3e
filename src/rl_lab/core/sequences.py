"""Rollouts cut into sequences for minibatches, together with the memory states they start from."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.batch import STATE, Batch
from rl_lab.core.tree import map_leaves


def as_rows(value: object) -> Any:
    """[T, N, …] leaves as rows that know nothing of each other: [T · N, …]."""
    return map_leaves(partial(torch.flatten, start_dim=0, end_dim=1), value)


def as_sequences(value: object, length: int) -> Any:
    """[T, N, …] leaves cut into pieces of `length`: [length, (T / length) · N, …]."""

    def cut(leaf: Tensor) -> Tensor:
        time, envs, *rest = leaf.shape
        pieces = leaf.reshape(time // length, length, envs, *rest).transpose(0, 1)
        return pieces.reshape(length, (time // length) * envs, *rest)

    return map_leaves(cut, value)


def concatenate(states: list[Any]) -> Any:
    """Memory states of consecutive pieces, [N, …] leaves, in the order of `as_sequences`."""
    return map_leaves(lambda *pieces: torch.cat(pieces), *states)


def take(rows: Batch, index: Tensor, axis: int) -> Batch:
    """The chosen rows (axis 0) or sequences (axis 1) of a batch; a state's are always on axis 0."""
    return {
        name: map_leaves(
            partial(torch.index_select, dim=0 if name == STATE else axis, index=index), value
        )
        for name, value in rows.items()
    }


def longest_fit(steps: int, num_envs: int, minibatches: int) -> int:
    """The longest sequences that divide a rollout and fill every minibatch with as many.

    The whole rollout if there are none.
    """
    lengths = (each for each in range(steps, 0, -1) if steps % each == 0)
    return next((each for each in lengths if steps // each * num_envs % minibatches == 0), steps)


def evenly(steps: int, longest: int) -> int:
    """The length of the fewest equal sequences of at most `longest` that hold `steps`."""
    return -(-steps // -(-steps // longest))
