"""A world model as an environment: Gymnasium's API, and nothing real behind it.

    env = DreamEnv(workflow, starts, observation_space, action_space)

`workflow` is an algorithm that dreams (`world_models` does), `starts` are real frames [T, M, …] as
a sequence buffer gives them; each episode begins after one of the M windows.
"""

from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_lab.core.batch import Batch
from rl_lab.core.tree import map_leaves

State = Any  # of a dream: a tree of tensors [N, …]


class Dreams(Protocol):
    """What a workflow must offer to be dreamt in. N dreams at once."""

    def begin_dream(self, seen: Batch) -> State:
        """Where the model stands at the last of real frames [T, N, …]."""

    def dream_step(
        self, state: State, action: Any, generator: torch.Generator
    ) -> tuple[State, Tensor, Tensor]:
        """After actions [N, …]: the state, rewards [N], and chances to go on [N]."""

    def look(self, state: State) -> Tensor:
        """What states look like: images [N, C, H, W] in [0, 1]."""


class DreamEnv(gym.Env[Any, Any]):
    """Acts, frames and rewards of the model. Actions are in the units of its policy.

    An episode terminates by the chance that the model gives it, and is truncated after
    `max_episode_steps`. The same seed gives the same dream for the same actions.
    """

    def __init__(
        self,
        workflow: Dreams,
        starts: Batch,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        max_episode_steps: int = 1000,
        render_mode: str | None = None,
    ) -> None:
        self.workflow, self.starts = workflow, starts
        self.observation_space, self.action_space = observation_space, action_space
        self.max_episode_steps = max_episode_steps
        self.render_mode = render_mode
        self.generator = torch.Generator()
        self.state: State = None
        self.elapsed = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin after one of the real windows, drawn at random."""
        super().reset(seed=seed)
        self.generator.manual_seed(int(self.np_random.integers(2**31)))
        window = int(self.np_random.integers(self.starts["reset"].shape[1]))
        seen = map_leaves(lambda leaf: leaf[:, window : window + 1], self.starts)
        self.state = self.workflow.begin_dream(seen)
        self.elapsed = 0
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What the model makes of it."""
        rows = torch.as_tensor(np.asarray(action)).unsqueeze(0)
        self.state, reward, going_on = self.workflow.dream_step(self.state, rows, self.generator)
        self.elapsed += 1
        chance = float(going_on)
        terminated = bool(self.np_random.random() >= chance)
        truncated = not terminated and self.elapsed >= self.max_episode_steps
        return self._frame(), float(reward), terminated, truncated, {"continues": chance}

    def render(self) -> Any:
        """The frame as it is."""
        return self._frame()

    def _frame(self) -> Any:
        """As the environment that was learnt shows it: channels last, bytes if it has bytes."""
        image = self.workflow.look(self.state)[0].permute(1, 2, 0).numpy(force=True)
        if self.observation_space.dtype == np.uint8:
            return (255 * image).round().astype(np.uint8)
        return image.astype(self.observation_space.dtype)
