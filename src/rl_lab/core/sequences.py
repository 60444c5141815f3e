"""Rollouts cut into sequences for minibatches, together with the memory states they start from."""

from typing import Any

import torch
from torch import Tensor

from rl_lab.core.batch import STATE, Batch


def as_sequences(value: Tensor, length: int) -> Tensor:
    """[T, N, …] cut into pieces of `length`: [length, (T / length) · N, …]."""
    time, envs, *rest = value.shape
    pieces = value.reshape(time // length, length, envs, *rest).transpose(0, 1)
    return pieces.reshape(length, (time // length) * envs, *rest)


def concatenate(states: list[Any]) -> Any:
    """Memory states of consecutive pieces, [N, …] leaves, in the order of `as_sequences`."""
    first = states[0]
    if isinstance(first, dict):
        return {key: concatenate([state[key] for state in states]) for key in first}
    return torch.cat(states)


def take(rows: Batch, index: Tensor) -> Batch:
    """The chosen sequences of a batch: dimension 1 of its tensors, dimension 0 of its state."""
    return {
        name: _take_state(value, index) if name == STATE else value.index_select(1, index)
        for name, value in rows.items()
    }


def _take_state(state: Any, index: Tensor) -> Any:
    if isinstance(state, dict):
        return {key: _take_state(value, index) for key, value in state.items()}
    return state.index_select(0, index)
