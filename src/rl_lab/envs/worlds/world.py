"""Small worlds of our own: the rules for N copies at once, and the two environments made of them.

`WorldEnv` is one copy as a Gymnasium environment, `WorldVector` is N copies in one call. Each copy
has its own random generator, so both give the same episodes for the same seeds, bit for bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from rl_lab.core.batch import Array, Step
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Demonstrator
from rl_lab.envs import snapshot
from rl_lab.envs.spaces import action_converter, describe
from rl_lab.envs.vector import Episodes

State = dict[str, Array]  # every array has N rows
Moved = tuple[State, Array, Array]  # state, reward [N], terminated [N]


class World(ABC):
    """The rules. A subclass sets the spaces and writes three functions without side effects."""

    observation_space: gym.Space[Any]
    action_space: gym.spaces.Discrete | gym.spaces.Box
    outcomes: ClassVar[tuple[str, ...]] = ()  # what `outcome` says of an episode that has ended
    max_steps: int | None = None  # an episode is truncated after this many steps
    optimum: float | None = None  # expected return of the best policy, if it is known
    draws: int = 0  # uniform random numbers that one step of one copy needs

    @abstractmethod
    def begin(self, random: np.random.Generator) -> dict[str, Any]:
        """One episode: the state of one copy, without the first axis."""

    @abstractmethod
    def observe(self, state: State) -> Array:
        """The observations [N, …] of N states, in an array of their own."""

    @abstractmethod
    def move(self, state: State, action: Array, uniform: Array) -> Moved:
        """One step of N copies; `uniform` is [N, draws]."""

    def outcome(self, state: State) -> dict[str, Array]:
        """Numbers [N] about N episodes that have ended, by the names in `outcomes`."""
        return {}

    @property
    def demonstrator(self) -> Demonstrator | None:
        """A scripted policy that solves the task, if there is one."""
        return None


class WorldEnv(gym.Env[Array, Any]):
    """One copy of a world. A subclass says which: its arguments are those of the world."""

    kind: ClassVar[type[World]]

    def __init__(self, render_mode: str | None = None, **arguments: Any) -> None:
        self.world = self.kind(**arguments)
        self.render_mode = render_mode
        self.observation_space = self.world.observation_space
        self.action_space = self.world.action_space
        self.optimum, self.max_episode_steps = self.world.optimum, self.world.max_steps
        self.outcomes = self.world.outcomes
        self.state: State = {}
        self.elapsed = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """The next episode."""
        super().reset(seed=seed)
        start = self.world.begin(self.np_random)
        self.state = {name: np.asarray(value)[None] for name, value in start.items()}
        self.elapsed = 0
        return self.world.observe(self.state)[0], {}

    @property
    def demonstrator(self) -> Demonstrator | None:
        """That of the world."""
        return self.world.demonstrator

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One step."""
        if not self.action_space.contains(action):
            raise ValueError(f"actions are {self.action_space}, got {action}")
        uniform = self.np_random.random((1, self.world.draws))
        self.state, reward, ended = self.world.move(self.state, np.array([action]), uniform)
        self.elapsed += 1
        terminated = bool(ended[0])
        truncated = not terminated and self.elapsed == self.max_episode_steps
        info = {}
        if terminated or truncated:
            told = self.world.outcome(self.state)
            info = {name: float(values[0]) for name, values in told.items()}
        return self.world.observe(self.state)[0], float(reward[0]), terminated, truncated, info


class WorldVector:
    """N copies stepped together; copy `i` is seeded with `seeds[i]`."""

    snapshot_level = "E0"

    def __init__(
        self, env: gym.Env[Any, Any], seeds: Sequence[int], id: str, max_steps: int | None = None
    ) -> None:
        if not seeds:
            raise ValueError("a vector needs at least one seed")
        assert isinstance(env.unwrapped, WorldEnv)
        self.world, self.num_envs = env.unwrapped.world, len(seeds)
        self.outcomes = self.world.outcomes
        self.spec = describe(env, id)
        self._convert = action_converter(self.world.action_space)
        limits = [limit for limit in (max_steps, self.world.max_steps) if limit is not None]
        self._limit = min(limits, default=np.inf)
        self._episodes = Episodes(seeds)
        self._random: list[np.random.Generator] = []
        self._state: State = {}
        self._elapsed = np.zeros(self.num_envs, np.int64)

    def reset(self, seeds: Sequence[int] | None = None) -> Array:
        """Reset every copy, with new seeds if given; the first observations [N, …]."""
        given = self._episodes.start(seeds)
        if given[0] is not None:
            self._random = [seeding.np_random(seed)[0] for seed in given]
        starts = [self.world.begin(random) for random in self._random]
        self._state = {name: np.array([start[name] for start in starts]) for name in starts[0]}
        self._elapsed = np.zeros(self.num_envs, np.int64)
        return self.world.observe(self._state)

    def step(self, action: Array) -> Step:
        """One decision per copy; ended episodes are already reset in `Step.obs`."""
        self._episodes.require_started()
        chosen = self._chosen(action)
        if self.world.draws:
            uniform = np.array([random.random(self.world.draws) for random in self._random])
        else:
            uniform = np.empty((self.num_envs, 0))
        self._state, reward, terminated = self.world.move(self._state, chosen, uniform)
        self._elapsed = self._elapsed + 1
        truncated = (self._elapsed >= self._limit) & ~terminated
        obs = next_obs = self.world.observe(self._state)
        over = terminated | truncated
        told = self.world.outcome(self._state) if self.outcomes else {}
        measures = {name: np.where(over, values, np.nan) for name, values in told.items()}
        ended = np.flatnonzero(over)
        if len(ended):
            self._restart(ended)
            obs = self.world.observe(self._state)
        return Step(obs, reward, terminated, truncated, next_obs, measures=measures)

    def _chosen(self, action: Array) -> Array:
        """Actions [N, …] as the world takes them; those of a Box are clipped to it."""
        if not isinstance(self.world.action_space, gym.spaces.Discrete):
            return self._convert(action)
        chosen = np.asarray(action, np.int64).reshape(self.num_envs)
        if chosen.min() < 0 or chosen.max() >= self.world.action_space.n:
            raise ValueError(f"actions of '{self.spec.id}' are {self.spec.action}, got {chosen}")
        return chosen

    def _restart(self, rows: Array) -> None:
        starts = [self.world.begin(self._random[row]) for row in rows]
        self._state = {name: values.copy() for name, values in self._state.items()}
        for name, values in self._state.items():
            values[rows] = [start[name] for start in starts]
        self._elapsed[rows] = 0
        self._episodes.resets += len(rows)

    def close(self) -> None:
        """Nothing is held."""

    def state_dict(self) -> dict[str, Any]:
        """Where every copy stands, and its place in its random numbers."""
        return self._episodes.state_dict() | {
            "state": {name: values.copy() for name, values in self._state.items()},
            "elapsed": self._elapsed.copy(),
            "random": [snapshot.generator_state(random) for random in self._random],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the saved vector stood."""
        if len(state["elapsed"]) != self.num_envs:
            raise UserError(f"state of {len(state['elapsed'])} envs cannot fill {self.num_envs}")
        self._episodes.load_state_dict(state)
        self._state = {name: np.array(values) for name, values in state["state"].items()}
        self._elapsed = np.array(state["elapsed"])
        self._random = [np.random.Generator(np.random.PCG64()) for _ in state["random"]]
        for random, saved in zip(self._random, state["random"], strict=True):
            random.bit_generator.state = saved
