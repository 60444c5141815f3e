"""A world model as an environment: Gymnasium's API, and nothing real behind it.

    env = DreamEnv(algorithm, starts, observation_space, action_space)

`algorithm` has a world model (`world_models`, `dreamer_v3`, …), `starts` are real frames [T, M, …]
as a sequence buffer gives them; each episode begins after one of the M windows.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from rl_lab.core.batch import Array, Batch, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import Imagination
from rl_lab.core.tree import first_leaf, map_leaves, picked
from rl_lab.envs.spaces import channel_axis

_SMALLEST = 4  # pixels: to a model, an image that is not larger is a vector


class HasImagination(Protocol):
    """An algorithm with a world model."""

    @property
    def imagination(self) -> Imagination:
        """How to roll the model out."""


class DreamEnv(gym.Env[Any, Any]):
    """Acts, frames and rewards of the model. Actions are in the units of its policy.

    An episode terminates with the probability that the model predicts, and is truncated after
    `max_episode_steps`. The same seed gives the same episode for the same actions.
    """

    def __init__(
        self,
        algorithm: HasImagination,
        starts: Batch,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        max_episode_steps: int = 1000,
        render_mode: str | None = None,
    ) -> None:
        self.algorithm, self.starts = algorithm, starts
        self.observation_space, self.action_space = observation_space, action_space
        self.max_episode_steps = max_episode_steps
        self.render_mode = render_mode
        self.generator: torch.Generator | None = None
        self.state: Any = None  # of the model: a tree of tensors [1, …]
        self.elapsed = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin after one of the real windows, drawn at random."""
        super().reset(seed=seed)
        luck = int(self.np_random.integers(2**31))
        window = int(self.np_random.integers(self.starts["reset"].shape[1]))
        seen = map_leaves(lambda leaf: leaf[:, window : window + 1], self.starts)
        first = torch.Generator().manual_seed(int(self.np_random.integers(2**31)))
        self.state = self.algorithm.imagination.start(seen, first)
        self.generator = torch.Generator(first_leaf(self.state).device).manual_seed(luck)
        self.elapsed = 0
        return self._frame(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One imagined step."""
        assert self.generator is not None, "reset comes first"
        rows = torch.as_tensor(np.asarray(action)).unsqueeze(0)
        imagination = self.algorithm.imagination
        self.state, reward, continues = imagination.step(self.state, rows, self.generator)
        self.elapsed += 1
        probability = float(continues)
        terminated = bool(self.np_random.random() >= probability)
        truncated = not terminated and self.elapsed >= self.max_episode_steps
        return self._frame(), float(reward), terminated, truncated, {"continues": probability}

    def render(self) -> Any:
        """The frame as it is."""
        return self._frame()

    def _frame(self) -> Any:
        return as_shown(
            self.observation_space, picked(self.algorithm.imagination.decode(self.state), 0)
        )


def as_shown(space: gym.Space[Any], looks: Obs, name: str = "") -> Any:
    """What a model shows, a tensor or several by name, as the environment that was learned does."""
    inner = f"{name}/" if name else ""
    if isinstance(space, spaces.Dict):
        return {key: as_shown(part, looks, f"{inner}{key}") for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_shown(part, looks, f"{inner}{at}") for at, part in enumerate(space))
    if isinstance(looks, Mapping):
        if name not in looks:
            raise UserError(
                f"the model shows no '{name}', only {', '.join(looks)}: leave it out of the "
                "observation space"
            )
        looks = looks[name]
    row: Array = looks.numpy(force=True)
    if isinstance(space, spaces.Discrete):
        return np.int64(row + space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return (row.reshape(space.shape) + space.start).astype(space.dtype)
    assert isinstance(space, spaces.Box | spaces.MultiBinary), space
    return _box(row, space)


def _box(row: Array, space: spaces.Box | spaces.MultiBinary) -> Array:
    """Bytes where it has bytes, channels last where it has them last, and within its bounds."""
    low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (0, 1)
    kind = np.dtype(space.dtype)
    if row.ndim == 3 and kind == np.uint8 and min(row.shape[1:]) > _SMALLEST:
        row = 255 * row
    if len(space.shape) == 3 and channel_axis(space.shape) == -1:
        row = row.transpose(1, 2, 0)
    whole = np.rint(row) if kind.kind in "iu" else row
    shown: Array = np.clip(whole.reshape(space.shape), low, high).astype(kind)
    return shown
