"""PocMemory: a cue, then a walk; whether the memory works at all, in a minute.

The rules are those of the environment of the same name in M. Pleines' recurrent PPO, with the point
frozen while the cue is shown: otherwise its position would carry the cue, and no memory is needed.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.core.batch import Array
from rl_lab.envs.worlds.world import Moved, State, World, WorldEnv

EDGE = 5  # steps from the middle to either end
NEAREST_START = 2  # an episode begins at most this far from the middle
SHOWN = 2  # observations that show the cue; the actions taken there move nothing
PRICE = 0.1  # of a move that does not end the episode
PRIZE = 1.0 + PRICE * (EDGE + SHOWN - 1)


class PocMemory(World):
    """A point on a line, moved left (0) or right (1). One end is good: +1.6; the other: −1.6.

    The observation is (left end, position, right end), where an end is +1 or −1 by its worth at
    first and 0 later. Best without a memory: the nearer end, −0.28 on average.
    """

    max_steps = 32
    optimum = PRIZE - PRICE * (EDGE - 1)  # a good end is 5 moves away on average

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def begin(self, random: np.random.Generator) -> dict[str, Any]:
        """A place near the middle, and a good end."""
        position = random.integers(-NEAREST_START, NEAREST_START + 1)
        return {"position": position, "good": 2 * random.integers(2) - 1, "time": 0}

    def observe(self, state: State) -> Array:
        """The ends while they are shown, and the position in units of the way to an end."""
        right = np.where(state["time"] < SHOWN, state["good"], 0)
        columns = (-right, state["position"] / EDGE, right)
        return np.stack(columns, 1).astype(np.float32)

    def move(self, state: State, action: Array, uniform: Array) -> Moved:
        """A move costs a little, and nothing while the point is frozen."""
        free = state["time"] >= SHOWN
        position = state["position"] + np.where(free, 2 * action - 1, 0)
        ended = abs(position) >= EDGE
        reward = np.where(
            ended, np.where(position * state["good"] > 0, PRIZE, -PRIZE), np.where(free, -PRICE, 0)
        )
        return state | {"position": position, "time": state["time"] + 1}, reward, ended


class PocMemoryEnv(WorldEnv):
    """One copy of `PocMemory`."""

    kind = PocMemory
