"""A point with a given goal: the smallest task with goals, for hindsight replay.

It follows the convention of goal environments: a Dict with `observation`, `achieved_goal` and
`desired_goal`, and `compute_reward`, which pays any achieved goal against any desired one. Steps
and goals are small enough that chance hardly ever finds one: with both twice as large, SAC learns
the task without hindsight too.
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_lab.envs.canvas import Disc, draw

Frame = dict[str, NDArray[np.float32]]

LIMIT = 1.0  # walls of the world, on both axes
STRIDE = 0.05  # how far one step goes at full speed, on each axis
THRESHOLD = 0.05  # nearer than this is there
NEAREST = 0.3  # no goal is nearer to the start than this
GOAL, POINT = (60, 160, 90), (40, 80, 190)  # colors
MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)  # stay, and four ways


class PointGoalEnv(gym.Env[Frame, Any]):
    """Starts in the middle, pays −1 for every step that does not end at the goal and 0 otherwise.

    The action is a velocity, or with `discrete` one of five moves: stay, east, west, north, south.
    Episodes never terminate: reaching a goal means to stay there. `is_success` in `info` is 1
    while the point is at its goal; the last one of an episode is what counts.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    outcomes: ClassVar[tuple[str, ...]] = ("is_success",)

    def __init__(self, discrete: bool = False, render_mode: str | None = None) -> None:
        self.discrete = discrete
        self.render_mode = render_mode
        plane: gym.Space[Any] = gym.spaces.Box(-LIMIT, LIMIT, (2,), np.float32)
        parts = {"observation": plane, "achieved_goal": plane, "desired_goal": plane}
        self.observation_space: gym.Space[Any] = gym.spaces.Dict(parts)
        self.action_space: gym.Space[Any] = (
            gym.spaces.Discrete(len(MOVES))
            if discrete
            else gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        )
        self.position = np.zeros(2, np.float32)
        self.goal = np.zeros(2, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Back to the middle, with another goal anywhere but near to it."""
        super().reset(seed=seed)
        self.position = np.zeros(2, np.float32)
        goal = self.np_random.uniform(-LIMIT, LIMIT, 2)
        while np.linalg.norm(goal) < NEAREST:
            goal = self.np_random.uniform(-LIMIT, LIMIT, 2)
        self.goal = goal.astype(np.float32)
        return self._frame(), {}

    def step(self, action: NDArray[Any] | int) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """One move; the walls hold."""
        move = MOVES[int(action)] if self.discrete else np.clip(action, -1.0, 1.0)
        moved = self.position + STRIDE * move
        self.position = np.clip(moved, -LIMIT, LIMIT).astype(np.float32)
        reward = float(self.compute_reward(self.position, self.goal, {}))
        return self._frame(), reward, False, False, {"is_success": float(reward == 0.0)}

    def compute_reward(
        self, achieved: NDArray[Any], desired: NDArray[Any], info: object
    ) -> NDArray[np.float64]:
        """What goals [..., 2] are worth if others were wanted: 0 where they are near, else −1."""
        distance = np.linalg.norm(achieved - desired, axis=-1)
        return np.where(distance < THRESHOLD, 0.0, -1.0)

    def render(self) -> Any:
        """The point, and where it should go; None without a render mode."""
        if self.render_mode is None:
            return None
        discs = [Disc(self.goal, THRESHOLD, GOAL), Disc(self.position, THRESHOLD / 2, POINT)]
        return draw(discs, LIMIT)

    def _frame(self) -> Frame:
        return {
            "observation": self.position.copy(),
            "achieved_goal": self.position.copy(),
            "desired_goal": self.goal.copy(),
        }
