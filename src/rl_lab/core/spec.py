"""What an environment looks like from outside: sizes come from here, never from YAML."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from rl_lab.core.batch import Array


@dataclass(frozen=True)
class Discrete:
    """Integers 0 … n-1."""

    shape: ClassVar[tuple[int, ...]] = ()
    dtype: ClassVar[np.dtype[np.int64]] = np.dtype(np.int64)
    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """A vector of integers, component i in 0 … nvec[i]-1."""

    dtype: ClassVar[np.dtype[np.int64]] = np.dtype(np.int64)
    nvec: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """One index per component."""
        return (len(self.nvec),)


@dataclass(frozen=True, eq=False)
class Box:
    """An array with bounds (possibly infinite) for each element."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    low: Array
    high: Array

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def bounded(self) -> bool:
        """True when every element has two finite bounds."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())


Space = Discrete | MultiDiscrete | Box


@dataclass(frozen=True, eq=False)
class Dict:
    """Named parts, without nesting: `outer/inner` is one name."""

    parts: Mapping[str, Space]


Observation = Space | Dict


def observation_rows(space: Observation, make: Callable[[Space], Any]) -> Any:
    """`make` of the space, or of each part of it by name: the shape that observations have."""
    if isinstance(space, Dict):
        return {name: make(part) for name, part in space.parts.items()}
    return make(space)


@dataclass(frozen=True)
class Demonstrator:
    """A scripted policy that solves a task.

    It maps observations [N, …] and luck [N, draws] to actions [N, …] in the units of the
    environment. Luck is uniform in [0, 1) and stays the same within an episode.
    """

    decide: Callable[[Array, Array], Array]
    draws: int


@dataclass(frozen=True, eq=False)
class EnvSpec:
    """One environment of a vector."""

    id: str
    observation: Observation
    action: Space
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    optimum: float | None = None  # expected return of the best policy, where it is known
    demonstrator: Demonstrator | None = None  # where the environment brings one
    stack: int = 1  # frames of the past that an observation is made of, the newest last
