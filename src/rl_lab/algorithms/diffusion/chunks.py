"""Acting in chunks with a receding horizon: what was seen last, and the actions still to be taken.

The memory of N environments is a dict of tensors: `seen` [N, To, …], the last To frames; `actions`
[N, Ta, A], the queue of chosen actions; `age` [N], steps of the episode so far. A new chunk is
decided every Ta steps of an episode. Collectors save memories, and begin them again with episodes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.batch import Obs
from rl_lab.core.spec import Observation, Space, observation_rows
from rl_lab.core.tree import map_leaves, picked, where_rows

SEEN, ACTIONS, AGE = "seen", "actions", "age"
Memory = dict[str, Any]
Decide = Callable[[Obs, Tensor], Tensor]  # (frames [B, To, …], which rows these are) -> [B, Ta, A]


def empty_memory(
    observation: Observation, batch: int, *, history: int, executed: int, size: int, device: str
) -> Memory:
    """As an episode begins."""

    def frames(space: Space) -> Tensor:
        kind = torch.from_numpy(np.empty(0, space.dtype)).dtype
        return torch.zeros(batch, history, *space.shape, dtype=kind, device=device)

    return {
        SEEN: observation_rows(observation, frames),
        ACTIONS: torch.zeros(batch, executed, size, device=device),
        AGE: torch.zeros(batch, dtype=torch.int64, device=device),
    }


def remembered(memory: Memory, obs: Obs) -> Obs:
    """The last frames with this one [N, To, …]; an episode's first frame stands for all before."""

    def shifted(past: Tensor, now: Tensor) -> Tensor:
        return torch.cat([past[:, 1:], now.unsqueeze(1).to(past.dtype)], 1)

    def repeated(past: Tensor, now: Tensor) -> Tensor:
        return now.unsqueeze(1).to(past.dtype).expand_as(past)

    begun = map_leaves(repeated, memory[SEEN], obs)
    return where_rows(memory[AGE] == 0, begun, map_leaves(shifted, memory[SEEN], obs))


def next_action(memory: Memory, obs: Obs, decide: Decide) -> tuple[Tensor, Memory]:
    """Actions [N, A] and the next memory; `decide` is called for rows whose queue is empty."""
    seen, age = remembered(memory, obs), memory[AGE]
    actions, executed = memory[ACTIONS], memory[ACTIONS].shape[1]
    due = age % executed == 0
    if bool(due.any()):
        rows = due.nonzero().squeeze(1)
        actions = actions.index_copy(0, rows, decide(picked(seen, rows), rows))
    return taken(actions, age), {SEEN: seen, ACTIONS: actions, AGE: age + 1}


def next_action_traced(memory: Memory, obs: Obs, decide: Decide) -> tuple[Tensor, Memory]:
    """The same without a decision in Python, which an export can trace: all rows are decided."""
    seen, age = remembered(memory, obs), memory[AGE]
    rows = torch.arange(age.shape[0], device=age.device)
    due = age % memory[ACTIONS].shape[1] == 0
    actions = where_rows(due, decide(seen, rows), memory[ACTIONS])
    return taken(actions, age), {SEEN: seen, ACTIONS: actions, AGE: age + 1}


def taken(actions: Tensor, age: Tensor) -> Tensor:
    """The action of each queue [N, Ta, A] whose turn it is at this age of the episode."""
    turn = (age % actions.shape[1]).view(-1, 1, 1).expand(-1, 1, actions.shape[2])
    return actions.gather(1, turn).squeeze(1)


def executed_slice(chunk: Tensor, history: int, executed: int) -> Tensor:
    """What is executed of a chunk [B, Tp, A]: it begins with the actions that led to the frame."""
    return chunk[:, history - 1 : history - 1 + executed]
