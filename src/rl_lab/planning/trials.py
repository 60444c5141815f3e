"""Candidates on trial in a vector of environments: which candidate plays where, and its return.

Every candidate of a generation plays the same episodes (the same seeds), so that luck is shared;
the next generation plays others. A round is one trial in each environment, so there are
population × episodes / N rounds, and what an environment plays after its trial counts for none.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ARRAYS = ("seeds", "scores", "playing", "totals")
NUMBERS = ("over", "elapsed")


class Trials:
    """The account of one generation. Trial number k is of candidate k % population."""

    def __init__(
        self, population: int, episodes: int, num_envs: int, rng: np.random.Generator
    ) -> None:
        self.population, self.episodes, self.num_envs = population, episodes, num_envs
        self.rng = rng
        self.begin_generation()

    def begin_generation(self) -> None:
        """New candidates, new seeds, and nothing known of either."""
        self.seeds = self.rng.integers(2**31, size=self.episodes)
        self.scores = np.zeros(self.episodes * self.population)
        self.over = 0  # trials
        self.playing = np.zeros(self.num_envs, np.bool_)  # whose trial of this round goes on
        self.totals = np.zeros(self.num_envs)
        self.elapsed = 0  # steps of this round

    @property
    def complete(self) -> bool:
        """True when every candidate has played every episode."""
        return self.over == len(self.scores)

    @property
    def in_round(self) -> bool:
        """True while a trial goes on."""
        return bool(self.playing.any())

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Which one each environment plays in this round, [N]."""
        return (self.over + np.arange(self.num_envs)) % self.population

    def begin_round(self) -> list[int]:
        """The seeds from which the environments must start now."""
        self.playing[:] = True
        self.totals[:] = 0.0
        self.elapsed = 0
        episodes = (self.over + np.arange(self.num_envs)) // self.population
        return [int(seed) for seed in self.seeds[episodes]]

    def forget_round(self) -> None:
        """It was disturbed: nothing of it counts, and it has to begin again."""
        self.playing[:] = False

    def count(self, reward: NDArray[Any], ended: NDArray[np.bool_], gamma: float) -> None:
        """Rewards [T, N] of the round's next steps, up to the first end in each column."""
        before: NDArray[np.int64] = np.cumsum(ended, axis=0) - ended  # ends before this row
        discount = gamma ** (self.elapsed + np.arange(len(reward)))
        counts = self.playing & (before == 0)
        self.totals += (discount[:, None] * reward.astype(np.float64) * counts).sum(0)
        self.playing &= ~ended.any(0)
        self.elapsed += len(reward)
        if not self.in_round:
            self.scores[self.over : self.over + self.num_envs] = self.totals
            self.over += self.num_envs

    def returns(self) -> NDArray[np.float64]:
        """The mean over episodes of each candidate, [population]."""
        return self.scores.reshape(self.episodes, self.population).mean(0)

    def state_dict(self) -> dict[str, Any]:
        """The account; the random stream is saved with the run's."""
        return {name: getattr(self, name) for name in (*ARRAYS, *NUMBERS)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in mid-trial."""
        for name in ARRAYS:
            assert state[name].shape == getattr(self, name).shape, f"trials of other sizes: {name}"
            setattr(self, name, state[name].copy())
        for name in NUMBERS:
            setattr(self, name, int(state[name]))
