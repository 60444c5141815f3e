"""The T-maze of any length: a sign at the beginning says which way is right at the end.

After Bakker (2001), in the two modes of Ni et al. (2023, arXiv:2307.03864). Passive: the agent is
carried along the corridor, so the only thing to learn is to remember. Active: it walks, and has to
go and look at the sign first.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.envs.worlds.world import Moved, State, World, WorldEnv

NORTH, SOUTH, EAST, WEST = range(4)
LIMIT = 3  # an active episode is truncated after LIMIT × length steps


class TMaze(World):
    """Cells 0 … `length` in a row; the sign hangs at cell 0, the junction is the last cell.

    North (0) or south (1) at the junction ends the episode: +1 if the sign said so, else −1. An
    observation is (sign, junction): ±1 at cell 0, and 1 at the junction; in between, nothing.
    Passive: an episode begins at cell 0, and every step before the junction moves one cell to the
    east at no cost. Active: it begins at cell 1, there are the actions east (2) and west (3), too,
    and every step costs 1 / length, but for one to the east in the corridor and the one that ends
    the episode. Without a memory the best is 0.
    """

    def __init__(self, length: int = 10, active: bool = False) -> None:
        if isinstance(length, bool) or not isinstance(length, int) or length < 2:
            raise UserError(f"length must be a whole number from 2 on, got {length!r}")
        self.length, self.active = length, active
        self.max_steps = LIMIT * length if active else length + 1
        self.optimum = 1.0 - (1.0 / length if active else 0.0)  # one step west to read the sign
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(4 if active else 2)

    def begin(self, random: np.random.Generator) -> dict[str, Any]:
        """At the sign, or one cell to the east of it."""
        return {"position": int(self.active), "sign": 2 * random.integers(2) - 1}

    def observe(self, state: State) -> Array:
        """The sign where it hangs, and whether this is the junction."""
        sign = np.where(state["position"] == 0, state["sign"], 0)
        return np.stack((sign, state["position"] == self.length), 1).astype(np.float32)

    def move(self, state: State, action: Array, uniform: Array) -> Moved:
        """Walls hold: a step against one costs like one to the west."""
        position, junction = state["position"], state["position"] == self.length
        terminated = junction & (action <= SOUTH)
        right = np.where(action == NORTH, 1, -1) == state["sign"]
        forward = (action == EAST) & ~junction if self.active else ~junction
        reward = np.where(
            terminated, np.where(right, 1.0, -1.0), np.where(forward, 0.0, -1.0 / self.length)
        )
        position = np.clip(position + forward - (action == WEST), 0, self.length)
        return state | {"position": position}, reward, terminated


class TMazeEnv(WorldEnv):
    """One copy of `TMaze`."""

    kind = TMaze
