"""An environment that only counts: every frame says which episode and which step it belongs to."""

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.float32]


class CounterEnv(gym.Env[Frame, np.int64]):
    """Observes `[episode, t]`, pays `t + 1`, and ends after the given number of steps.

    `lengths` are the lengths of episode 0, 1, …, repeated for ever. `ends` says which flag the last
    step sets. Deterministic, so any mistake about resets, final frames or episode borders is
    visible in the numbers.
    """

    def __init__(
        self,
        lengths: Sequence[int] = (5,),
        ends: Literal["terminated", "truncated", "both"] = "terminated",
        render_mode: str | None = None,
    ) -> None:
        if not lengths or min(lengths) < 1:
            raise ValueError(f"lengths must be positive numbers of steps, got {lengths}")
        self.lengths = tuple(int(length) for length in lengths)
        self.ends = ends
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0.0, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.episode = -1
        self.t = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """The next episode; a seed starts again at episode 0."""
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.t = 0
        return self._frame(), {}

    def step(self, action: int | np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """One step; the action changes nothing."""
        self.t += 1
        over = self.t >= self.lengths[self.episode % len(self.lengths)]
        terminated = over and self.ends in ("terminated", "both")
        truncated = over and self.ends in ("truncated", "both")
        return self._frame(), float(self.t), terminated, truncated, {}

    def _frame(self) -> Frame:
        return np.array([self.episode, self.t], dtype=np.float32)
