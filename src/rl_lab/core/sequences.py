"""Rollouts cut into sequences for minibatches, together with the memory states they start from."""

from typing import Any

import torch
from torch import Tensor

from rl_lab.core.batch import STATE, Batch
from rl_lab.core.tree import map_leaves


def as_sequences(value: Any, length: int) -> Any:
    """[T, N, …] leaves cut into pieces of `length`: [length, (T / length) · N, …]."""

    def cut(leaf: Tensor) -> Tensor:
        time, envs, *rest = leaf.shape
        pieces = leaf.reshape(time // length, length, envs, *rest).transpose(0, 1)
        return pieces.reshape(length, (time // length) * envs, *rest)

    return map_leaves(cut, value)


def concatenate(states: list[Any]) -> Any:
    """Memory states of consecutive pieces, [N, …] leaves, in the order of `as_sequences`."""
    return map_leaves(lambda *pieces: torch.cat(pieces), *states)


def take(rows: Batch, index: Tensor) -> Batch:
    """The chosen sequences of a batch: dimension 1 of its tensors, dimension 0 of its state."""
    return {name: _select(value, int(name != STATE), index) for name, value in rows.items()}


def _select(value: Any, dimension: int, index: Tensor) -> Any:
    return map_leaves(lambda leaf: leaf.index_select(dimension, index), value)
