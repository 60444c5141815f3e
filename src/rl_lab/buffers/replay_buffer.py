"""Uniform replay: the newest `capacity` transitions, each as likely as any other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.buffers.ram import require_room
from rl_lab.buffers.storage import Ring, Steps, needed_bytes
from rl_lab.core.batch import (
    ACTION,
    MASK,
    NEXT_OBS,
    OBS,
    REWARD,
    STEPS,
    TERMINATED,
    TRUNCATED,
    Array,
    Batch,
)
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.core.options import option
from rl_lab.core.protocols import BufferSetup
from rl_lab.core.schema import BufferConfig
from rl_lab.core.spec import Dict
from rl_lab.core.tree import map_leaves

KEYS = (OBS, ACTION, REWARD, TERMINATED, TRUNCATED, NEXT_OBS)


@dataclass(frozen=True, kw_only=True)
class UniformConfig(BufferConfig):
    """Options of every replay buffer."""

    type: str = option("uniform", "all transitions are equally likely")
    capacity: int = option(1_000_000, "how many transitions are kept, the newest ones", low=1)
    only: list[str] = option([], "what a sample has of obs, action, …; empty: everything")

    def __post_init__(self) -> None:
        """`only` names parts of a transition."""
        super().__post_init__()
        for key in self.only:
            if key not in KEYS:
                raise ValueError(f"only must name {', '.join(KEYS)}, got {key}")


class UniformReplay:
    """Remembers the newest transitions and gives random ones, with windows of n steps if wanted.

    `capacity` is rounded down to whole vector steps.
    """

    Config: type[Any] = UniformConfig

    def __init__(self, config: UniformConfig, setup: BufferSetup) -> None:
        self.config, self.setup = config, setup
        rows = config.capacity // setup.num_envs
        if rows == 0:
            raise UserError(
                f"capacity {config.capacity} is less than one step of {setup.num_envs} environments"
            )
        require_room(self.needed_bytes, rows, setup.num_envs, setup.others)
        self.bytes_needed = self.needed_bytes(rows)
        self.ring = self.make_ring(rows)

    def make_ring(self, rows: int) -> Steps:
        """The storage of n vector steps."""
        return Ring(self.setup.spec, rows, self.setup.num_envs)

    def needed_bytes(self, rows: int) -> int:
        """RAM of n vector steps, in bytes."""
        return needed_bytes(self.setup.spec, rows, self.setup.num_envs)

    def __len__(self) -> int:
        return len(self.ring)

    def ready(self) -> bool:
        """True once there is anything to sample."""
        return len(self) > 0

    def done(self) -> None:
        """A replay buffer keeps its rows when a cycle is over."""

    def add(self, trajectory: Batch) -> None:
        """Take a copy of what one collect call brought; the oldest rows make room for it."""
        self.ring.add(trajectory)

    def sample(
        self,
        batch_size: int,
        count: int = 1,
        *,
        n_step: int = 1,
        beta: float = 1.0,
        only: Sequence[str] = (),
    ) -> Batch:
        """`count` minibatches at once, [count, batch_size, …]; `beta` has no meaning here."""
        number = self.draw(batch_size * count)
        batch = self.transitions(number, n_step, self.wanted(only))
        return self.as_tensors(batch, (count, batch_size))

    def chunks(
        self, batch_size: int, past: int, future: int, count: int = 1, *, before: int = 0
    ) -> Batch:
        """Random transitions with the frames before them and the actions from them on.

        OBS [count, batch_size, past, …] ends with the frame in which the transition begins, ACTION
        [count, batch_size, before + future, …] has `before` actions before its own, which is the
        first of `future` ones. Nothing is of another episode: before the first frame of one (or the
        oldest that is left of it) that frame is repeated, after the last action that action is.
        MASK [count, batch_size, before + future] is False where an action is such a repetition.
        """
        number = self.draw(batch_size * count)
        batch = self.read_chunks(number, past, future, before=before)
        return self.as_tensors(batch, (count, batch_size))

    def read_chunks(self, number: Array, past: int, future: int, *, before: int = 0) -> Batch:
        """The same of these transitions, in arrays [B, …]."""
        ring = self.ring
        earlier = ring.steps_before(number, max(past - 1, before))
        later = ring.window(number, future)[1] - 1
        frame = np.maximum(np.arange(1 - past, 1), -earlier[:, None])
        wanted = np.arange(-before, future)
        action = np.clip(wanted, -earlier[:, None], later[:, None])
        number = number[:, None]
        return {
            OBS: self.observation(number + ring.num_envs * frame),
            ACTION: ring.take(ACTION, number + ring.num_envs * action),
            MASK: action == wanted,
        }

    def last(self, count: int, *, only: Sequence[str] = ()) -> Batch:
        """The newest `count` transitions (or all, if there are fewer) in time order, [count, …]."""
        stop = self.ring.total * self.ring.num_envs
        number = np.arange(stop - min(count, len(self)), stop)
        batch = self.transitions(number, 1, self.wanted(only))
        return self.as_tensors(batch, (len(number),))

    def reprioritize(self, index: Tensor, error: Tensor) -> None:
        """All rows are equal here."""

    def draw(self, count: int) -> Array:
        """Numbers of random transitions, with replacement."""
        assert len(self) > 0, "ask ready() first"
        oldest = self.ring.oldest * self.ring.num_envs
        return oldest + self.setup.rng.integers(len(self), size=count)

    def wanted(self, only: Sequence[str]) -> Sequence[str]:
        """The keys of a sample: those of this call, or of the configuration, or all."""
        for key in only:
            if key not in KEYS:
                raise UserError(f"a sample has no '{key}'{did_you_mean(key, KEYS)}")
        return only or self.config.only or KEYS

    def transitions(self, number: Array, n_step: int, wanted: Sequence[str] = KEYS) -> Batch:
        """What is known of these transitions, in arrays [B, …]."""
        ring = self.ring
        batch: Batch = {}
        last = number
        if OBS in wanted:
            batch[OBS] = self.observation(number)
        if ACTION in wanted:
            batch[ACTION] = ring.take(ACTION, number)
        if n_step == 1:
            if REWARD in wanted:
                batch[REWARD] = ring.take(REWARD, number)
        else:
            every, steps = ring.window(number, n_step)
            last = number + (steps - 1) * ring.num_envs
            batch[STEPS] = steps
            if REWARD in wanted:
                real = np.arange(n_step) < steps[:, None]
                batch[REWARD] = np.where(real, ring.take(REWARD, every), np.float32(0))
        for key in (TERMINATED, TRUNCATED):
            if key in wanted:
                batch[key] = ring.take(key, last)
        if NEXT_OBS in wanted:
            batch[NEXT_OBS] = self.next_observation(last)
        return batch

    def observation(self, number: Array) -> Any:
        """What was seen before these transitions."""
        return self._observation({name: self.ring.take(name, number) for name in self.frames})

    def next_observation(self, number: Array) -> Any:
        """Where these transitions really ended."""
        return self._observation({name: self.ring.next_frame(name, number) for name in self.frames})

    @property
    def frames(self) -> list[str]:
        """Columns that make up an observation."""
        return self.ring.frame_names

    def _observation(self, columns: dict[str, Array]) -> Any:
        if isinstance(self.setup.spec.observation, Dict):
            return {name.removeprefix(f"{OBS}/"): each for name, each in columns.items()}
        return columns[OBS]

    def as_tensors(self, batch: Batch, lead: tuple[int, ...]) -> Batch:
        """Arrays [B, …] as tensors [*lead, …] on the device."""
        return map_leaves(lambda rows: self.as_tensor(rows.reshape(*lead, *rows.shape[1:])), batch)

    def as_tensor(self, rows: Array) -> Tensor:
        """An array as a tensor on the device."""
        return torch.from_numpy(rows).to(self.setup.device)

    def state_dict(self) -> dict[str, Any]:
        """The rows, most of them as sealed chunks. The random stream is saved with the run's."""
        return self.ring.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same rows at the same places."""
        self.ring.load_state_dict(state)
