"""A point that may go to any of four goals: the task that shows whether a policy keeps its options.

All four goals are equally good from the middle, so a policy with one mode finds one or two of them
and a maximum-entropy policy finds all (Haarnoja et al. 2017, arXiv:1702.08165, section 5.1).
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_lab.envs.canvas import Disc, draw

Position = NDArray[np.float32]

GOALS = np.array([[5, 0], [-5, 0], [0, 5], [0, -5]], np.float32)  # east, west, north, south
LIMIT = 7.0  # walls of the world, on both axes
THRESHOLD = 1.0  # nearer than this is there
GOAL, POINT = (60, 160, 90), (40, 80, 190)  # colors


class MultiGoalEnv(gym.Env[Position, Position]):
    """Observes its position, moves by the action, pays for distance and for effort.

    reward = −distance_cost · (distance to the nearest goal)² − action_cost · |action|², both after
    the step, and `goal_reward` on top when a goal is reached, which terminates the episode. In
    `info`, `reached` and `goal_0` … `goal_3` (east, west, north, south) are 1 where that happened.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    outcomes: ClassVar[tuple[str, ...]] = ("reached", "goal_0", "goal_1", "goal_2", "goal_3")

    def __init__(
        self,
        goal_reward: float = 10.0,
        action_cost: float = 30.0,
        distance_cost: float = 1.0,
        start_deviation: float = 0.1,
        render_mode: str | None = None,
    ) -> None:
        if start_deviation < 0:
            raise ValueError(f"start_deviation must be 0 or more, got {start_deviation}")
        self.goal_reward = goal_reward
        self.action_cost = action_cost
        self.distance_cost = distance_cost
        self.start_deviation = start_deviation
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-LIMIT, LIMIT, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.position: Position = np.zeros(2, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Position, dict[str, Any]]:
        """Near the middle, at a normally distributed place."""
        super().reset(seed=seed)
        start = self.start_deviation * self.np_random.standard_normal(2)
        self.position = np.clip(start, -LIMIT, LIMIT).astype(np.float32)
        return self.position.copy(), {}

    def step(self, action: Position) -> tuple[Position, float, bool, bool, dict[str, Any]]:
        """One move; bounds of the action and walls of the world hold."""
        move = np.clip(action, -1.0, 1.0)
        self.position = np.clip(self.position + move, -LIMIT, LIMIT).astype(np.float32)
        squares = np.square(GOALS - self.position).sum(axis=1)
        nearest = int(squares.argmin())
        reached = bool(squares[nearest] < THRESHOLD**2)
        reward = -self.distance_cost * float(squares[nearest])
        reward -= self.action_cost * float(np.square(move).sum())
        if reached:
            reward += self.goal_reward
        goals = {f"goal_{i}": float(reached and i == nearest) for i in range(len(GOALS))}
        info = {"reached": float(reached), **goals}
        return self.position.copy(), reward, reached, False, info

    def render(self) -> Any:
        """The point and the four goals; None without a render mode."""
        if self.render_mode is None:
            return None
        goals = [Disc(goal, THRESHOLD, GOAL) for goal in GOALS]
        return draw([*goals, Disc(self.position, THRESHOLD / 3, POINT)], LIMIT)
