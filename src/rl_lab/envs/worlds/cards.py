"""Card games of memory: repeat an earlier card, repeat the first one, count what was dealt.

Rules, rewards and lengths are POPGym's (Morad et al. 2023, arXiv:2303.01859), written again for N
decks at once; with the default arguments they are its easy versions. All returns are in [−1, 1].
"""

from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.envs.worlds.world import Moved, State, World, WorldEnv

DECK = 52


class RepeatPrevious(World):
    """Say the suit of the card that was dealt `k` − 1 steps before the one that is shown.

    As in POPGym, `k` counts the shown card too: k = 4 is three steps back. The observation is the
    suit of the shown card. From the k-th card on, a right answer gives 1 / (cards − k), a wrong one
    takes as much; the episode ends with the last card. Best without a memory: −0.49 (of one deck).
    """

    optimum = 1.0

    def __init__(self, decks: int = 1, k: int = 4, suits: int = 4) -> None:
        self.cards, self.k, self.suits = _deck(decks, suits), k, suits
        self.max_steps = self.cards - 1
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k < self.cards:
            raise UserError(f"k must be a whole number from 1 to {self.cards - 1}, got {k!r}")
        self.observation_space = gym.spaces.Discrete(suits)
        self.action_space = gym.spaces.Discrete(suits)

    def begin(self, random: np.random.Generator) -> dict[str, Any]:
        """A shuffled pack; the first card is shown."""
        return {"pack": random.permutation(self.cards) % self.suits, "dealt": 1}

    def observe(self, state: State) -> Array:
        """The suit of the card dealt last."""
        return _card(state, state["dealt"] - 1)

    def move(self, state: State, action: Array, uniform: Array) -> Moved:
        """The answer, and another card."""
        dealt = state["dealt"]
        right = action == _card(state, np.maximum(dealt - self.k, 0))
        worth = np.where(dealt >= self.k, 1.0 / (self.cards - self.k), 0.0)
        return (
            state | {"dealt": dealt + 1},
            np.where(right, worth, -worth),
            dealt + 1 == self.cards,
        )


class RepeatFirst(World):
    """Say the suit of the first card, at every step; ±1 / (cards − 1) for each answer.

    Nothing marks the first card: it is the one that an episode begins with. The first answer can be
    given by looking. Best without a memory: −0.50.
    """

    optimum = 1.0

    def __init__(self, decks: int = 1, suits: int = 4) -> None:
        self.cards, self.suits = _deck(decks, suits), suits
        self.max_steps = self.cards - 1
        self.observation_space = gym.spaces.Discrete(suits)
        self.action_space = gym.spaces.Discrete(suits)

    def begin(self, random: np.random.Generator) -> dict[str, Any]:
        """A shuffled pack; the first card is shown."""
        return {"pack": random.permutation(self.cards) % self.suits, "dealt": 1}

    def observe(self, state: State) -> Array:
        """The suit of the card dealt last."""
        return _card(state, state["dealt"] - 1)

    def move(self, state: State, action: Array, uniform: Array) -> Moved:
        """The answer, and another card."""
        dealt, worth = state["dealt"] + 1, 1.0 / (self.cards - 1)
        reward = np.where(action == state["pack"][:, 0], worth, -worth)
        return state | {"dealt": dealt}, reward, dealt == self.cards


class CountRecall(World):
    """Say how often one kind of card was dealt so far; ±1 / (cards − 1) for each answer.

    The observation is (kind of the card dealt last, kind to be counted). There are 2 kinds, the
    colors, or as many as `kinds` says: 4 suits, 13 ranks.
    """

    optimum = 1.0

    def __init__(self, decks: int = 1, kinds: int = 2) -> None:
        self.cards, self.kinds = _deck(decks, kinds), kinds
        self.max_steps = self.cards - 1
        self.observation_space = gym.spaces.MultiDiscrete([kinds, kinds])
        self.action_space = gym.spaces.Discrete(self.cards // kinds + 1)

    def begin(self, random: np.random.Generator) -> dict[str, Any]:
        """Two shuffled packs: one is dealt, the other one has the kinds to be counted."""
        pack, asked = (random.permutation(self.cards) % self.kinds for _ in range(2))
        return {"pack": pack, "asked": asked, "dealt": 1}

    def observe(self, state: State) -> Array:
        """The card dealt last and the question."""
        last = state["dealt"] - 1
        return np.stack((_card(state, last), _card(state, last, "asked")), 1)

    def move(self, state: State, action: Array, uniform: Array) -> Moved:
        """The answer counts the shown card too; then another card and another question."""
        dealt, worth = state["dealt"], 1.0 / (self.cards - 1)
        question = _card(state, dealt - 1, "asked")
        same = state["pack"] == question[:, None]
        count = (same & (np.arange(self.cards) < dealt[:, None])).sum(1)
        reward = np.where(action == count, worth, -worth)
        return state | {"dealt": dealt + 1}, reward, dealt + 1 == self.cards


class RepeatPreviousEnv(WorldEnv):
    """One copy of `RepeatPrevious`."""

    kind = RepeatPrevious


class RepeatFirstEnv(WorldEnv):
    """One copy of `RepeatFirst`."""

    kind = RepeatFirst


class CountRecallEnv(WorldEnv):
    """One copy of `CountRecall`."""

    kind = CountRecall


def _deck(decks: int, kinds: int) -> int:
    """How many cards are in the pack; each kind is there equally often."""
    if isinstance(decks, bool) or not isinstance(decks, int) or decks < 1:
        raise UserError(f"decks must be a whole number from 1 on, got {decks!r}")
    if not isinstance(kinds, int) or kinds < 2 or DECK % kinds:
        raise UserError(f"{kinds!r} kinds of cards do not divide a deck: use 2, 4, 13, 26 or 52")
    return DECK * decks


def _card(state: State, place: Array, pack: str = "pack") -> Array:
    """The kind of the card at a place of each copy's pack, [N]."""
    return np.take_along_axis(state[pack], place[:, None], 1)[:, 0]
