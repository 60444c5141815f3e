"""Several buffers as one: every minibatch has a fixed share of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.batch import INDEX, STEPS, WEIGHT, Array, Batch
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.core.options import option
from rl_lab.core.protocols import Buffer, BufferSetup, Chunks, Replay
from rl_lab.core.schema import BufferConfig
from rl_lab.core.tree import first_leaf, map_leaves


@dataclass(frozen=True, kw_only=True)
class UnionConfig(BufferConfig):
    """Which buffers, and how much of each."""

    type: str = option("union", "a mixture of buffers that are named before it")
    of: dict[str, float] = option(
        {},
        "share of each buffer by name: {replay: 0.75, demos: 0.25}",
        above=0,
        not_empty=True,
    )


class UnionReplay:
    """Samples from other buffers by share. What is added goes into the first one that takes it."""

    Config = UnionConfig
    bytes_needed = 0

    def __init__(self, config: UnionConfig, setup: BufferSetup) -> None:
        for name in config.of:
            if name not in setup.others:
                hint = did_you_mean(name, setup.others)
                raise UserError(f"union: no buffer '{name}' is named before it{hint}")
            if not isinstance(setup.others[name], Replay):
                raise UserError(f"union: '{name}' is not a replay buffer")
        self.shares = config.of
        self.parts = {name: setup.others[name] for name in config.of}

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())

    def ready(self) -> bool:
        """True once every part has something."""
        return all(len(part) > 0 for part in self.parts.values())

    def done(self) -> None:
        """Each part reports its own."""

    def add(self, trajectory: Batch) -> None:
        """Into the buffer that is named first, of those that are not only read."""
        self.collecting.add(trajectory)

    @property
    def collecting(self) -> Buffer:
        """The part that takes what is collected."""
        for part in self.parts.values():
            if not getattr(part, "read_only", False):
                return cast(Buffer, part)
        raise UserError(
            f"union of {', '.join(self.parts)}: all of them are only read; "
            "name a buffer that can be collected into"
        )

    def sample(
        self,
        batch_size: int,
        count: int = 1,
        *,
        n_step: int = 1,
        beta: float = 1.0,
        only: Sequence[str] = (),
    ) -> Batch:
        """`count` minibatches at once: in each the rows of the first part, then of the second, …

        Fields that one of the parts does not give are left out.
        """
        sizes = divided(batch_size, self.shares)
        found = [
            part.sample(sizes[name], count, n_step=n_step, beta=beta)
            for name, part in self.parts.items()
        ]
        if any(INDEX in each for each in found):
            found = [self._numbered(batch, position) for position, batch in enumerate(found)]
        wanted = {*only, STEPS, INDEX, WEIGHT} if only else set(found[0])
        return _joined([{key: each[key] for key in each if key in wanted} for each in found])

    def chunks(
        self, batch_size: int, past: int, future: int, count: int = 1, *, before: int = 0
    ) -> Batch:
        """The same of frames and the actions from them on; each part must have them."""
        found = []
        for name, size in divided(batch_size, self.shares).items():
            part = self.parts[name]
            if not isinstance(part, Chunks):
                raise UserError(f"union: '{name}' has no chunks of actions")
            found.append(part.chunks(size, past, future, count, before=before))
        return _joined(found)

    def reprioritize(self, index: Tensor, error: Tensor) -> None:
        """Hand each part the priorities of its rows."""
        owner = index % len(self.parts)
        for position, part in enumerate(self.parts.values()):
            own = owner == position
            part.reprioritize(index[own] // len(self.parts), error[own])

    def _numbered(self, batch: Batch, position: int) -> Batch:
        """INDEX says whose row it is too; rows without priorities count fully."""
        rows = first_leaf(batch)
        place = batch.get(INDEX, torch.zeros(rows.shape[:2], dtype=torch.int64, device=rows.device))
        weight = batch.get(WEIGHT, torch.ones(rows.shape[:2], device=rows.device))
        return batch | {INDEX: place * len(self.parts) + position, WEIGHT: weight}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the parts are saved by themselves."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing was saved."""


def _joined(batches: Sequence[Batch]) -> Batch:
    """Rows [K, B, …] of all, one after the other; fields that one of them has not are left out."""
    first, *others = batches
    return {
        key: map_leaves(lambda *rows: torch.cat(rows, 1), rows, *(each[key] for each in others))
        for key, rows in first.items()
        if all(key in each for each in others)
    }


def divided(batch_size: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers of rows by the largest remainder; the first name wins a tie."""
    exact: Array = np.array(list(shares.values()), np.float64)
    exact = exact / exact.sum() * batch_size
    sizes = np.floor(exact).astype(int)
    missing = batch_size - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:missing]] += 1
    if not sizes.all():
        none = list(shares)[int(np.argmin(sizes))]
        raise UserError(
            f"union: a batch of {batch_size} has no row of '{none}': take larger batches"
        )
    return dict(zip(shares, map(int, sizes), strict=True))
