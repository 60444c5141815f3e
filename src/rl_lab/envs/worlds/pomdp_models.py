"""Three finite POMDPs of the literature's kind, small enough to know what the best policy gets."""

import numpy as np

from rl_lab.core.errors import UserError
from rl_lab.envs.worlds.pomdp import Pomdp, PomdpWorld
from rl_lab.envs.worlds.world import WorldEnv

CELLS, DOOR = 7, 2  # of the hallway


def tiger() -> Pomdp:
    """Kaelbling, Littman & Cassandra (1998): behind one of two doors there is a tiger.

    Actions: listen (−1), open the left door, open the right one (+10, or −100 with the tiger). What
    is heard is right with probability 0.85. After a door was opened, the tiger is placed again.
    """
    listen = np.array([[0.85, 0.15], [0.15, 0.85]])
    unknown = np.full((2, 2), 0.5)
    return Pomdp(
        start=np.array([0.5, 0.5]),
        first_view=unknown,
        transition=np.array([np.eye(2), unknown, unknown]),
        view=np.array([listen, unknown, unknown]),
        reward=np.array([[-1.0, -1.0], [-100.0, 10.0], [10.0, -100.0]]),
        ends=np.zeros((3, 2), np.bool_),
    )


def river_swim() -> Pomdp:
    """Strehl & Littman (2008): six places in a river that flows to the left. Nothing is hidden.

    Actions: left, which always succeeds, and right, against the current. The left end pays 0.005
    for going left, the right end 1 for going right: the task is to find that out.
    """
    left, right = np.zeros((6, 6)), np.zeros((6, 6))
    for place in range(6):
        left[place, max(place - 1, 0)] = 1.0
        right[place, max(place - 1, 0)] += 0.05
        right[place, place] += 0.6
        right[place, min(place + 1, 5)] += 0.35
    right[0], right[5] = [0.4, 0.6, 0, 0, 0, 0], [0, 0, 0, 0, 0.4, 0.6]
    reward = np.zeros((2, 6))
    reward[0, 0], reward[1, 5] = 0.005, 1.0
    return Pomdp(
        start=np.eye(6)[0],
        first_view=np.eye(6),
        transition=np.array([left, right]),
        view=np.array([np.eye(6), np.eye(6)]),
        reward=reward,
        ends=np.zeros((2, 6), np.bool_),
    )


def hallway() -> Pomdp:
    """A hallway of seven cells that look alike, but for its two ends; one has a hidden door.

    An episode begins anywhere. Actions: west, east (−0.05 each) and enter: +1 at the door, which
    ends the episode, and −1 elsewhere. To find the door, walk to an end and count.
    """
    west, east = np.zeros((CELLS, CELLS)), np.zeros((CELLS, CELLS))
    for cell in range(CELLS):
        west[cell, max(cell - 1, 0)] = 1.0
        east[cell, min(cell + 1, CELLS - 1)] = 1.0
    look = np.zeros((CELLS, 3))  # west end, between, east end
    look[0, 0] = look[1:-1, 1] = look[-1, 2] = 1.0
    at_door = np.arange(CELLS) == DOOR
    reward = np.array([np.full(CELLS, -0.05), np.full(CELLS, -0.05), np.where(at_door, 1.0, -1.0)])
    return Pomdp(
        start=np.full(CELLS, 1 / CELLS),
        first_view=look,
        transition=np.array([west, east, np.eye(CELLS)]),
        view=np.array([look, look, look]),
        reward=reward,
        ends=np.array([np.zeros(CELLS), np.zeros(CELLS), at_door], np.bool_),
    )


class Tiger(PomdpWorld):
    """Episodes of `tiger`."""

    def __init__(self, horizon: int = 20) -> None:
        super().__init__(tiger(), _steps(horizon))


class RiverSwim(PomdpWorld):
    """Episodes of `river_swim`."""

    def __init__(self, horizon: int = 50) -> None:
        super().__init__(river_swim(), _steps(horizon))


class Hallway(PomdpWorld):
    """Episodes of `hallway`."""

    def __init__(self, horizon: int = 20) -> None:
        super().__init__(hallway(), _steps(horizon))


class TigerEnv(WorldEnv):
    """One copy of `Tiger`."""

    kind = Tiger


class RiverSwimEnv(WorldEnv):
    """One copy of `RiverSwim`."""

    kind = RiverSwim


class HallwayEnv(WorldEnv):
    """One copy of `Hallway`."""

    kind = Hallway


def _steps(horizon: int) -> int:
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        raise UserError(f"horizon must be a whole number from 1 on, got {horizon!r}")
    return horizon
