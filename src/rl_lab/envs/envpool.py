"""EnvPool's environments, which are stepped by C++ threads: `vectorization: envpool`.

Only an id that EnvPool has itself is made, never another version of it. EnvPool resets an ended
episode one step late, as Gymnasium's vectors may; `GymnasiumVector` makes real transitions of it.
A pool takes its seeds when it is made and cannot be saved. Where a task ends in the very step in
which the time is over, it only tells that the time is over.
"""

import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec as Registered

from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.envs.vector import GymnasiumVector

# Ids that Gymnasium has too, with another observation.
_DIFFERENT = {"Blackjack-v1": "an array instead of a tuple"}
_ENDLESS = 2**31 - 1  # EnvPool's number for an episode without a limit


_LIMITLESS = ("CliffWalking", "Catch")  # tasks that ignore a limit, and then tell ends wrongly


class Pool(gym.vector.VectorEnv[Any, Any, Any]):
    """A pool of `count` environments that can be seeded at every `reset`, by making it again."""

    def __init__(self, id: str, count: int, threads: int, max_episode_steps: int | None) -> None:
        self.num_envs = count
        self._id, self._settings = id, {"num_threads": min(threads, count)}
        if max_episode_steps is not None:
            if id.startswith(_LIMITLESS):
                raise UserError(
                    f"EnvPool's '{id}' does not obey environment.max_episode_steps: "
                    "leave it out, or use environment.vectorization=sync"
                )
            self._settings["max_episode_steps"] = max_episode_steps
        single = self._make([0])
        if single.config["max_num_players"] > 1:
            raise UserError(f"EnvPool's '{id}' has several players, which is not supported")
        self.metadata = dict(single.metadata)
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        limit = single.config["max_episode_steps"]
        known = gym.registry.get(id)
        self.spec = Registered(
            "rl_lab/EnvPool-v0",
            max_episode_steps=None if limit == _ENDLESS else int(limit),
            reward_threshold=known.reward_threshold if known else None,
        )
        single.close()
        self._pool: Any = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every environment, with generators seeded by `seed` if it is given."""
        if self._pool is None or seed is not None:
            self.close()
            material = np.random.SeedSequence(seed).generate_state(self.num_envs)  # type: ignore[arg-type]
            self._pool = self._make([int(each >> 1) for each in material])
        frames, info = self._pool.reset()
        return frames, info

    def step(self, actions: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One decision per environment; an ended one only resets itself, whatever its action."""
        frames, reward, terminated, truncated, info = self._pool.step(actions)
        return frames, reward, terminated, truncated, info

    def close(self, **kwargs: object) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _make(self, seeds: list[int]) -> Any:
        pool: Any = _package().make(
            self._id, env_type="gymnasium", num_envs=len(seeds), seed=seeds, **self._settings
        )
        with warnings.catch_warnings():
            # It makes its spaces when they are first read, and warns that bounds become float32.
            warnings.simplefilter("ignore")
            assert pool.observation_space is not None and pool.action_space is not None
        return pool


def make_pool(
    id: str, seeds: Sequence[int], *, threads: int, max_episode_steps: int | None = None
) -> GymnasiumVector:
    """As many of EnvPool's environments as there are seeds, or a `UserError`."""
    check(id)
    return GymnasiumVector(Pool(id, len(seeds), threads, max_episode_steps), seeds, id)


def check(id: str) -> None:
    """Refuse an id that EnvPool does not have, or has with another meaning."""
    ids: list[str] = _package().list_all_envs()
    if id in _DIFFERENT:
        raise UserError(
            f"EnvPool's '{id}' is not Gymnasium's, it shows {_DIFFERENT[id]}: "
            "use environment.vectorization=sync"
        )
    if id in ids:
        return
    stem = id.rpartition("/")[2].rpartition("-v")[0].lower()
    versions = [each for each in ids if each.rpartition("-v")[0].lower() == stem]
    hint = f", only {' and '.join(sorted(versions))}" if versions else did_you_mean(id, ids)
    raise UserError(f"EnvPool has no '{id}'{hint}: use environment.vectorization=sync")


def _package() -> ModuleType:
    try:
        import envpool
    except ImportError as error:
        raise UserError(
            "environment.vectorization=envpool needs a package: run `pip install 'rl-lab[envpool]'`"
        ) from error
    package: ModuleType = envpool
    return package
