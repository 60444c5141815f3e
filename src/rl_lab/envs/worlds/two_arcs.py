"""Two arcs: around a disc, above or below; whether a policy keeps two ways of doing a thing apart.

A point is led from the left to a goal on the right by 16 waypoints. Where it is cannot be seen,
only where it began and how late it is: a policy has to commit itself to a side and remember it, as
one that decides on whole chunks of actions does. The mean of all demonstrations leads through the
disc.
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from rl_lab.core.batch import Array
from rl_lab.core.spec import Demonstrator
from rl_lab.envs.worlds.world import Moved, State, World, WorldEnv

WAYPOINTS = 16
REACH = 1.25  # coordinates of a waypoint, for an action of 1
RADIUS = 0.4  # of the disc, which is in the middle
START = 0.1  # the point begins at (-1, y) with |y| up to this
GOAL = np.array([1.0, 0.0])
NEAR = 0.1  # of the goal
LONGEST = 0.3  # way between two waypoints; a demonstration has 0.2
HEIGHT = 0.7  # of a demonstrated arc, ± SPREAD
SPREAD = 0.05


class TwoArcs(World):
    """1 for a path that does not touch the disc, makes no leaps and ends at the goal; else 0.

    The observation is (y of the start, time in [0, 1]), with `sees_position` also the position;
    the action is the next waypoint.
    """

    max_steps = WAYPOINTS
    optimum = 1.0
    outcomes: ClassVar[tuple[str, ...]] = ("above", "below")

    def __init__(self, sees_position: bool = False) -> None:
        self.sees_position = sees_position
        size = 4 if sees_position else 2
        self.observation_space = gym.spaces.Box(-REACH, REACH, (size,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def begin(self, random: np.random.Generator) -> dict[str, Any]:
        """A start on the left."""
        y = START * (2 * random.random() - 1)
        return {"start": y, "position": np.array([-1.0, y]), "middle": 0.0, "good": True, "time": 0}

    def observe(self, state: State) -> Array:
        """Where the episode began, and its time."""
        columns = [state["start"], state["time"] / WAYPOINTS]
        if self.sees_position:
            columns += [state["position"][:, 0], state["position"][:, 1]]
        return np.stack(columns, 1).astype(np.float32)

    def move(self, state: State, action: Array, uniform: Array) -> Moved:
        """To the waypoint in a straight line."""
        here, time = state["position"], state["time"] + 1
        there = REACH * np.asarray(action, np.float64)
        clear = distance_to_segment(here, there) >= RADIUS
        good = state["good"] & clear & (np.linalg.norm(there - here, axis=1) <= LONGEST)
        passes = (here[:, 0] < 0) & (there[:, 0] >= 0)  # the middle: which side is it?
        middle = np.where(passes, there[:, 1], state["middle"])
        ended = time == WAYPOINTS
        good &= ~ended | (np.linalg.norm(there - GOAL, axis=1) <= NEAR)
        moved = {"position": there, "middle": middle, "good": good, "time": time}
        return state | moved, np.where(ended & good, 1.0, 0.0), ended

    def outcome(self, state: State) -> dict[str, Array]:
        """Which side a successful path took; both are 0 for others."""
        good, above = state["good"], state["middle"] > 0
        return {
            "above": np.where(good & above, 1.0, 0.0),
            "below": np.where(good & ~above, 1.0, 0.0),
        }

    @property
    def demonstrator(self) -> Demonstrator:
        """An arc above or below with equal chances, a little higher or lower each time."""
        return Demonstrator(demonstrate, draws=2)


def demonstrate(obs: Array, luck: Array) -> Array:
    """The next waypoint of an arc: luck is its side and its height."""
    start, share = obs[:, 0].astype(np.float64), obs[:, 1] + 1 / WAYPOINTS
    side = np.where(luck[:, 0] < 0.5, -1.0, 1.0)
    height = HEIGHT + SPREAD * (2 * luck[:, 1] - 1)
    y = start * (1 - share) + side * height * np.sin(np.pi * share)
    return (np.stack([2 * share - 1, y], 1) / REACH).astype(np.float32)


def distance_to_segment(here: Array, there: Array) -> Array:
    """How near to the origin the straight lines from `here` to `there` [N, 2] come."""
    way = there - here
    length = np.maximum((way * way).sum(1), 1e-12)
    share = np.clip(-(here * way).sum(1) / length, 0.0, 1.0)
    return np.linalg.norm(here + share[:, None] * way, axis=1)


class TwoArcsEnv(WorldEnv):
    """One copy of `TwoArcs`."""

    kind = TwoArcs
