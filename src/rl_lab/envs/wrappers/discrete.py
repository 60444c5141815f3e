"""Wrappers between observations that are indices and observations that are vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.core import registry
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.core.options import limits
from rl_lab.envs.wrappers import arguments

Bins = Annotated[int | Sequence[int], limits(low=1, not_empty=True)]
Bounds = float | Sequence[float] | None


@dataclass(frozen=True)
class Grid:
    """A Box cut into cells of equal size; what lies outside belongs to the nearest cell."""

    bins: NDArray[np.int64]  # how many, for each component
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def over(cls, space: spaces.Box, bins: Bins, low: Bounds, high: Bounds) -> "Grid":
        """The grid that a user asked for; without `low` and `high`, the bounds of the space."""
        size = int(np.prod(space.shape))
        counts = [bins] * size if isinstance(bins, int) else bins
        if len(counts) != size:
            raise UserError(f"bins must be one number or a list of {size}, got {len(counts)}")
        cells = np.array(counts, np.int64)
        bottom = space.low.reshape(-1) if low is None else arguments.numbers(low, "low", size)
        top = space.high.reshape(-1) if high is None else arguments.numbers(high, "high", size)
        bottom, top = bottom.astype(np.float64), top.astype(np.float64)
        for index, (start, stop) in enumerate(zip(bottom, top, strict=True)):
            # CartPole's velocities are declared to be as large as a float32 can be.
            if max(abs(start), abs(stop)) > 1e30:
                raise UserError(f"component {index} has no bounds: give low and high")
            if start >= stop:
                raise UserError(f"low must be below high, got {start:g} and {stop:g}")
        return cls(cells, bottom, top)

    @property
    def cells(self) -> int:
        """How many there are."""
        total = 1
        for count in self.bins.tolist():  # Python integers do not overflow
            total *= count
        return total

    def indices(self, observation: Array) -> NDArray[np.int64]:
        """The bin of every component."""
        share = (np.reshape(observation, -1) - self.low) / (self.high - self.low)
        return np.clip(np.floor(share * self.bins), 0, self.bins - 1).astype(np.int64)

    def cell(self, observation: Array) -> int:
        """One index for the whole observation; the last component counts fastest."""
        return int(np.ravel_multi_index(tuple(self.indices(observation)), tuple(self.bins)))


@registry.register("wrapper", "DiscretizeObservation")
class DiscretizeObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Cuts a Box into `bins` per component: one index, or one for each with `joint: false`."""

    # Gymnasium's own takes no bounds, so it refuses every environment with an infinite one.

    def __init__(
        self,
        env: gym.Env[Any, Any],
        bins: Bins,
        low: Bounds = None,
        high: Bounds = None,
        joint: bool = True,
    ) -> None:
        super().__init__(env)
        self.grid = Grid.over(arguments.box(env), bins, low, high)
        self.joint = joint
        if self.joint and self.grid.cells > 2**31:
            raise UserError(f"{self.grid.cells} cells are too many: fewer bins, or joint: false")
        self.observation_space = (
            spaces.Discrete(self.grid.cells) if self.joint else spaces.MultiDiscrete(self.grid.bins)
        )

    def observation(self, observation: Array) -> int | Array:
        """The cell, or the bin of every component."""
        return self.grid.cell(observation) if self.joint else self.grid.indices(observation)


@registry.register("wrapper", "OneHotObservation")
class OneHotObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Turns an index (or several, for MultiDiscrete) into zeros with a one at its place."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            raise UserError(f"needs a Discrete observation, got {arguments.described(space)}")
        self.observation_space = spaces.Box(0, 1, (spaces.flatdim(space),), np.float32)

    def observation(self, observation: int) -> Array:
        """As float32, which is what networks eat."""
        return np.asarray(spaces.flatten(self.env.observation_space, observation), np.float32)


@registry.register("wrapper", "DiscreteEncoder")
class DiscreteEncoder(gym.ObservationWrapper[Any, Any, Any]):
    """Turns an index into a vector: its `binary` digits, a `onehot`, or the number (`array`)."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        encoding: Literal["binary", "onehot", "array"] = "binary",
    ) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Discrete):
            raise UserError(f"needs a Discrete observation, got {arguments.described(space)}")
        largest = int(space.n) - 1
        sizes = {"binary": max(1, largest.bit_length()), "onehot": largest + 1, "array": 1}
        if encoding not in sizes:
            hint = did_you_mean(str(encoding), sizes)
            raise UserError(f"unknown encoding {encoding!r}{hint}")
        self.encoding, self.start, self.size = encoding, int(space.start), sizes[encoding]
        top = largest if encoding == "array" else 1
        self.observation_space = spaces.Box(0, top, (self.size,), np.float32)

    def observation(self, observation: int) -> Array:
        """Counted from 0; of binary digits the highest comes first."""
        index = int(observation) - self.start
        if self.encoding == "array":
            return np.array([index], np.float32)
        if self.encoding == "onehot":
            return (np.arange(self.size) == index).astype(np.float32)
        return (index >> np.arange(self.size)[::-1] & 1).astype(np.float32)
