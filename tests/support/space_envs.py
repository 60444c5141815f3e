"""Tiny worlds with every kind of space, for tests."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core.errors import NonFiniteError

PARTS = {
    "camera": spaces.Box(0, 255, (18, 20, 3), np.uint8),
    "inner": spaces.Dict(
        {"speed": spaces.Box(-1, 1, (2,), np.float32), "flags": spaces.MultiBinary(3)}
    ),
    "room": spaces.Discrete(3, start=1),
}


class World(gym.Env[Any, Any]):
    """Begins an episode with `first`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.first()

    def first(self) -> tuple[Any, dict[str, Any]]:
        return self._shown(), {}

    def _shown(self) -> Any:
        return np.zeros(2, np.float32)


class Xor(World):
    """Pays 1 for `left` xor `right`: neither part says anything by itself."""

    def __init__(self) -> None:
        parts = {"left": spaces.Discrete(2), "right": spaces.Discrete(2)}
        self.observation_space: Any = spaces.Dict(parts)
        self.action_space = spaces.Discrete(2)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self.asked)
        return self._shown(), reward, True, False, {}

    def _shown(self) -> Any:
        left, right = (int(each) for each in self.np_random.integers(0, 2, 2))
        self.asked = left ^ right
        return {"left": left, "right": right}


class Rooms(World):
    """Pays 1 for the action that the room asks for. `shape` is dict or tuple."""

    def __init__(self, shape: str = "dict") -> None:
        self.shape = shape
        self.observation_space: Any = spaces.Dict(PARTS)
        if shape == "tuple":
            self.observation_space = spaces.Tuple(list(PARTS.values()))
        self.action_space = spaces.Discrete(3)
        self.room = 1

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self.room - 1)
        ended = bool(self.np_random.random() < 0.1)
        return self._shown(), reward, ended, False, {}

    def _shown(self) -> Any:
        draw = self.np_random
        self.room = int(draw.integers(1, 4))
        obs = {
            "camera": draw.integers(0, 256, (18, 20, 3), dtype=np.uint8),
            "inner": {
                "speed": draw.uniform(-1, 1, 2).astype(np.float32),
                "flags": draw.integers(0, 2, 3, dtype=np.int8),
            },
            "room": np.int64(self.room),
        }
        return obs if self.shape == "dict" else tuple(obs.values())


class Switches(World):
    """Shows bits and pays for every switch that is set as they are."""

    def __init__(self) -> None:
        self.observation_space = spaces.MultiBinary(4)
        self.action_space = spaces.MultiBinary(4)
        self.bits = np.zeros(4, np.int8)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = float((action == self.bits).mean())
        return self._shown(), reward, bool(self.np_random.random() < 0.1), False, {}

    def _shown(self) -> Any:
        self.bits = self.np_random.integers(0, 2, 4, dtype=np.int8)
        return self.bits.copy()


class Gates(World):
    """Some actions are forbidden and end the world; `info["action_mask"]` says which."""

    def __init__(self, several: bool = False, silent: bool = False) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space: Any = spaces.MultiDiscrete([3, 4]) if several else spaces.Discrete(5)
        self.sizes = [3, 4] if several else [5]
        self.silent = silent
        self.masks: list[Any] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = np.atleast_1d(action)
        for mask, each in zip(self.masks, chosen, strict=True):
            if not mask[int(each)]:
                raise RuntimeError(f"{action} is forbidden")
        obs, info = self.first()
        return obs, float(chosen.sum()), bool(self.np_random.random() < 0.1), False, info

    def first(self) -> tuple[Any, dict[str, Any]]:
        self.masks = []
        for size in self.sizes:
            mask = self.np_random.integers(0, 2, size, dtype=np.int8)
            mask[self.np_random.integers(size)] = 1
            self.masks.append(mask)
        info = {} if self.silent else {"action_mask": np.concatenate(self.masks)}
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), info


class Whole(World):
    """A Box of whole numbers, as some simulators have."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Box(0, 10, (2,), np.int32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return self._shown(), 0.0, False, False, {}


class BreaksDown(World):
    """Raises what a broken simulation raises, from the 20th step on."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps >= 20:
            raise NonFiniteError("the simulation broke down", {"step": self.steps})
        return self._shown(), 0.0, False, False, {}


for entry in (Rooms, Xor, Switches, Gates, Whole, BreaksDown):
    if f"{entry.__name__}-v0" not in gym.registry:
        gym.register(f"{entry.__name__}-v0", entry_point=entry, max_episode_steps=30)
