"""Finite POMDPs as tables, the best return that any policy can have in them, and their world."""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_lab.core.batch import Array
from rl_lab.envs.worlds.world import Moved, State, World

Table = NDArray[np.float64]
DIGITS = 10  # beliefs that agree so far are one belief


class Pomdp(NamedTuple):
    """S states, A actions, O observations. Rows of probabilities sum to 1."""

    start: Table  # [S]
    first_view: Table  # [S, O]: what is seen at the beginning
    transition: Table  # [A, S, S]
    view: Table  # [A, S, O]: what is seen after an action that led to a state
    reward: Table  # [A, S]: expected reward of an action in a state
    ends: NDArray[np.bool_]  # [A, S]: does this action end the episode in this state?


def optimal_return(model: Pomdp, horizon: int, discount: float = 1.0) -> float:
    """Expected return of the best policy with a memory, over `horizon` steps at most.

    Exact value iteration over the beliefs that can be reached; there must be few of them.
    """
    beliefs: dict[bytes, int] = {}
    states: list[Table] = []

    def place(belief: Table) -> int:
        rounded = np.round(belief, DIGITS) + 0.0  # no negative zeros
        index = beliefs.setdefault(rounded.tobytes(), len(states))
        if index == len(states):
            states.append(belief)
        return index

    first = [
        (float(row.sum()), place(row / row.sum())) for row in _seen(model.start, model.first_view)
    ]
    rows: list[list[list[tuple[float, int]]]] = []  # [belief][action]: (probability, next belief)
    for _ in range(horizon):
        for belief in states[len(rows) :]:
            rows.append(
                [
                    [(float(each.sum()), place(each / each.sum())) for each in _seen(after, view)]
                    for after, view in zip(_after(model, belief), model.view, strict=True)
                ]
            )
    count, known = len(states), len(rows)
    follow = np.zeros((len(model.reward), known, count))
    for b, actions in enumerate(rows):
        for a, nexts in enumerate(actions):
            for probability, index in nexts:
                follow[a, b, index] += probability
    reward = model.reward @ np.array(states[:known]).T  # [A, B]
    value = np.zeros(count)
    for _ in range(horizon):
        value[:known] = (reward + discount * follow @ value).max(0)
    return float(sum(probability * value[index] for probability, index in first))


def _after(model: Pomdp, belief: Table) -> Table:
    """[A, S]: how probable each state is after each action, episodes that ended left out."""
    return np.einsum("s,as,ast->at", belief, ~model.ends, model.transition)


def _seen(states: Table, view: Table) -> list[Table]:
    """States [S] split by what is seen in them; what cannot be seen is left out."""
    return [row for row in (states[:, None] * view).T if row.sum() > 0]


class PomdpWorld(World):
    """Episodes of a finite POMDP. They terminate after `horizon` steps: that is the task."""

    draws = 2  # where it leads, and what is seen there

    def __init__(self, model: Pomdp, horizon: int) -> None:
        self.model, self.max_steps = model, horizon
        self.optimum = optimal_return(model, horizon)
        self.observation_space = gym.spaces.Discrete(model.view.shape[-1])
        self.action_space = gym.spaces.Discrete(len(model.reward))

    def begin(self, random: np.random.Generator) -> dict[str, Any]:
        """A state by the table of starts, and what is seen of it."""
        first, second = random.random(2)
        state = _choose(self.model.start, first)
        return {"state": state, "seen": _choose(self.model.first_view[state], second), "time": 0}

    def observe(self, state: State) -> Array:
        """What was seen last."""
        return state["seen"].copy()

    def move(self, state: State, action: Array, uniform: Array) -> Moved:
        """By the tables."""
        here, time, model = state["state"], state["time"] + 1, self.model
        there = _choose(model.transition[action, here], uniform[:, 0])
        seen = _choose(model.view[action, there], uniform[:, 1])
        terminated = model.ends[action, here] | (time == self.max_steps)
        return {"state": there, "seen": seen, "time": time}, model.reward[action, here], terminated


def _choose(probabilities: Table, uniform: Any) -> Any:
    """One index of each row [..., K], by numbers in [0, 1)."""
    passed = np.cumsum(probabilities, -1)[..., :-1] <= np.asarray(uniform)[..., None]
    return passed.sum(-1)
