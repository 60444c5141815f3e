"""Where episodes begin and end inside a sequence."""

from typing import Protocol

import torch
from torch import Tensor

from rl_lab.core.compiled import tracing
from rl_lab.core.tree import map_leaves, picked, where_rows

State = dict[str, Tensor]


class Memory(Protocol):
    """The contract of every memory, see `recurrent.py`."""

    def initial_state(self, batch: int) -> State:
        """What an episode starts with."""
        ...

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step, x [N, D]."""
        ...

    def sequence(self, x: Tensor, state: State, resets: Tensor) -> tuple[Tensor, State]:
        """x [T, N, D]; where `resets` [T, N] is True an episode begins."""
        ...


def episode_steps(resets: Tensor, before: Tensor) -> Tensor:
    """Steps [T, N] since each step's episode began, 0 where `resets` [T, N] is True.

    `before` [N]: steps of the episode that were seen before the sequence.
    """
    step = torch.arange(len(resets), device=resets.device).unsqueeze(-1)
    begin = torch.where(resets, step, -1).cummax(0).values
    return torch.where(begin < 0, step + before, (step - begin).to(before.dtype))


def is_broken(x: Tensor, state: State) -> bool:
    """True for a sequence with a number that is not finite, which matrix products would spread.

    A masked weight of 0 times NaN is NaN: `step_by_step` keeps it in its episode.
    """
    if tracing.get() or len(x) == 1:
        return False
    total = x.detach().sum() + sum(each.detach().sum() for each in state.values())
    return not bool(total.isfinite())


def step_by_step(memory: Memory, x: Tensor, state: State, resets: Tensor) -> tuple[Tensor, State]:
    """`sequence` as its contract defines it."""
    outputs, fresh = [], memory.initial_state(x.shape[1])
    for each, begins in zip(x, resets, strict=True):
        output, state = memory.step(each, where_rows(begins, fresh, state))
        outputs.append(output)
    return torch.stack(outputs), state


def with_last_frames(
    memory: Memory, x: Tensor, last: Tensor, state: State, resets: Tensor, left: Tensor
) -> tuple[Tensor, Tensor, State]:
    """Outputs for x [T, N, D], and for frames `last` [E, D] that followed the steps `left` [T, N].

    After these steps comes a reset, or nothing. `last` has their order: by time, then by column.
    Returns [T, N, D'], [E, D'] and the state after x; in columns that are left at their last step
    that state has no meaning.
    """
    some = left.any(0)
    if not some.any():
        outputs, state = memory.sequence(x, state, resets)
        return outputs, outputs.new_empty(0, outputs.shape[-1]), state
    if some.all():
        return _inserted(memory, x, last, state, resets, left)
    # A column without a last frame has no place for padding: it would be in its state.
    plain, longer = (~some).nonzero().flatten(), some.nonzero().flatten()
    rest, rest_state = memory.sequence(x[:, plain], picked(state, plain), resets[:, plain])
    found, after, moved = _inserted(
        memory, x[:, longer], last, picked(state, longer), resets[:, longer], left[:, longer]
    )
    back = torch.cat([plain, longer]).argsort()
    states: State = map_leaves(lambda *parts: torch.cat(parts)[back], rest_state, moved)
    return torch.cat([rest, found], 1)[:, back], after, states


def _inserted(
    memory: Memory, x: Tensor, last: Tensor, state: State, resets: Tensor, left: Tensor
) -> tuple[Tensor, Tensor, State]:
    """`with_last_frames` where every column has some: each is put behind its step.

    Columns with fewer of them are padded behind their last one, where nothing is remembered.
    """
    number = left.cumsum(0) - left.long()  # last frames before each step
    count, most = left.sum(0), int(left.sum(0).max())
    padding = torch.where(number == count, most - count, 0)
    place = torch.arange(len(x), device=x.device).unsqueeze(-1) + number + padding  # [T, N]
    column = torch.arange(x.shape[1], device=x.device).expand_as(place)
    behind = place[left] + 1, column[left]
    rows = x.new_zeros(len(x) + most, *x.shape[1:])
    begins = resets.new_zeros(rows.shape[:2])
    rows[place, column], rows[behind], begins[place, column] = x, last, resets
    outputs, state = memory.sequence(rows, state, begins)
    return outputs[place, column], outputs[behind], state
