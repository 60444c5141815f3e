"""Snapshot level E1: an episode is its seed and its actions, played again in a fresh environment.

For simulators whose memory cannot be read, such as Box2D. Exact if the environment is a function of
its seed and actions; `rl_lab.envs.check` proves it. The object is made again for every episode, in
every run: some simulators carry memory from one episode into the next.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.core import seeding

Make = Callable[[], gym.Env[Any, Any]]


class Replayed(gym.Wrapper[Any, Any, Any, Any]):
    """Records what is needed to play the current episode again."""

    def __init__(self, make: Make) -> None:
        super().__init__(make())
        self._make = make
        self._fresh = True
        self._seed: int | None = None  # of the first episode; later ones derive theirs from it
        self._episode = 0
        self._options: dict[str, Any] | None = None
        self._actions: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new object and a new episode, on a seed of its own."""
        if seed is not None or self._seed is None:
            self._seed = (
                int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
            )
            self._episode = 0
        else:
            self._episode += 1
        self._options, self._actions = options, []
        return self._begin()

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, remembered."""
        self._actions.append(np.array(action) if isinstance(action, np.ndarray) else action)
        return self.env.step(action)

    def record(self) -> dict[str, Any]:
        """The current episode: which seed, and the actions so far."""
        return {
            "seed": self._seed,
            "episode": self._episode,
            "options": self._options,
            "actions": _stacked(self._actions),
        }

    def replay(self, record: dict[str, Any]) -> None:
        """Play a recorded episode up to where it was recorded."""
        self._seed, self._episode = record["seed"], record["episode"]
        self._options = record["options"]
        self._actions = list(record["actions"])
        if self._seed is None:  # it was recorded before its first reset
            self._renew()
            return
        self._begin()
        for action in self._actions:
            self.env.step(action)

    def _begin(self) -> tuple[Any, dict[str, Any]]:
        self._renew()
        self._fresh = False
        seed = self._seed
        if seed is not None and self._episode:
            seed = seeding.integer(seed, "episode", self._episode)
        return self.env.reset(seed=seed, options=self._options)

    def _renew(self) -> None:
        if not self._fresh:
            self.env.close()
            self.env = self._make()
            self._fresh = True


class ResetOnResume(gym.Wrapper[Any, Any, Any, Any]):
    """Declares an environment E3: a resumed run starts new episodes, whatever could be captured."""


def _stacked(actions: list[Any]) -> Any:
    """One array if all actions are arrays of one kind: small on disk. Iterating gives them back."""
    kinds = {(each.dtype, each.shape) for each in actions if isinstance(each, np.ndarray)}
    alike = len(kinds) == 1 and all(isinstance(each, np.ndarray) and each.ndim for each in actions)
    return np.stack(actions) if alike else list(actions)
