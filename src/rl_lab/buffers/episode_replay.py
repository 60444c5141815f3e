"""Episode replay: finished episodes, each as likely as any other, however long it was.

Windows lie in one episode.
"""

from dataclasses import dataclass

import numpy as np

from rl_lab.buffers.frame_index import Positions, Stretches
from rl_lab.buffers.sequence import SequenceConfig, SequenceReplay
from rl_lab.core.batch import MASK, Batch
from rl_lab.core.errors import UserError
from rl_lab.core.options import option


@dataclass(frozen=True, kw_only=True)
class EpisodesConfig(SequenceConfig):
    """How episodes are chosen."""

    type: str = option("episodes", "finished episodes, each equally likely whatever its length")
    within_episodes: bool = option(True, "always: a window lies in one episode")
    recent_ratio: float = option(
        0.0, "share of every batch that comes from the newest episodes", low=0, high=1
    )
    recent: int = option(10, "how many episodes are the newest ones", low=1)

    def __post_init__(self) -> None:
        """Windows lie in one episode."""
        super().__post_init__()
        if not self.within_episodes:
            raise ValueError("within_episodes must be true for episodes, got false")


class EpisodeReplay(SequenceReplay):
    """Draws an episode, then a window in it. What is overwritten in part counts no more."""

    Config = EpisodesConfig
    config: EpisodesConfig

    def stretches(self) -> Stretches:
        """Finished episodes in the order of their ends, all of whose frames are there."""
        env, first, stop, _ = self.streams.finished().T
        whole = first >= self.streams.usable()[env]
        return Stretches(env[whole], first[whole], stop[whole])

    def sequences(self, batch_size: int, length: int, count: int = 1) -> Batch:
        """`count` batches of windows at once, [count, length, batch_size, …]."""
        chosen = self._choose(batch_size, count, length)
        room = chosen.stop - chosen.first - length + 1
        first = chosen.first + self.setup.rng.integers(room)
        return self.marked(self.read_windows(chosen.env, first, length, count))

    def episodes(self, batch_size: int, count: int = 1) -> Batch:
        """`count` batches of whole episodes, [count, longest, batch_size, …].

        MASK is False after the end of an episode; its final frame is repeated there.
        """
        chosen = self._choose(batch_size, count, 1)
        length = chosen.stop - chosen.first
        longest = int(length.max())
        offset = np.minimum(np.arange(longest)[:, None], length.reshape(count, 1, -1) - 1)
        lead = (count, longest, batch_size)
        position = chosen.first.reshape(count, 1, -1) + offset
        env = np.broadcast_to(chosen.env.reshape(count, 1, -1), lead)
        batch = self.as_tensors(self.frames_at(env.reshape(-1), position.reshape(-1)), lead)
        real = np.arange(longest)[:, None] < length.reshape(count, 1, -1)
        return batch | {MASK: self.as_tensor(real)}

    def _choose(self, batch_size: int, count: int, length: int) -> Stretches:
        """Episodes of `length` frames or more, with replacement; of every batch, new ones first."""
        there = self.stretches()
        frames = there.stop - there.first
        enough: Positions = np.flatnonzero(frames >= length)
        if not len(enough):
            raise UserError(
                f"there is no finished episode of {length} frames yet (the longest has "
                f"{frames.max(initial=0)}): collect more, or take shorter windows"
            )
        recent = round(self.config.recent_ratio * batch_size)
        newest = enough[-self.config.recent :]
        rng = self.setup.rng
        chosen = np.concatenate(
            [
                newest[rng.integers(len(newest), size=(count, recent))],
                enough[rng.integers(len(enough), size=(count, batch_size - recent))],
            ],
            axis=1,
        ).reshape(-1)
        return Stretches(there.env[chosen], there.first[chosen], there.stop[chosen])
