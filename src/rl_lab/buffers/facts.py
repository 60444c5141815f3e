"""What can be said of all that a buffer has: its frames, its actions, its episodes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.buffers.storage import Steps, frame_layout, layout, row_bytes
from rl_lab.core.batch import ACTION, REWARD, TERMINATED, TRUNCATED, Array
from rl_lab.core.running_stats import RunningMoments
from rl_lab.core.spec import EnvSpec, observation_rows

PIECE = 16 * 2**20  # bytes that are read at a time


def frame_moments(ring: Steps, spec: EnvSpec) -> Any:
    """Mean and variance of every frame, final ones included; one for each part of a dict."""
    found = observation_rows(spec.observation, lambda space: RunningMoments(space.shape))
    columns = list(found.values()) if isinstance(found, dict) else [found]
    for number in _pieces(ring, row_bytes(frame_layout(spec))):
        final = number[ring.is_cut(number)]
        for name, moments in zip(ring.frame_names, columns, strict=True):
            moments.update_statistics(ring.take(name, number))
            if len(final):
                moments.update_statistics(ring.final_frame(name, final))
    return found


def frame_range(ring: Steps, spec: EnvSpec) -> tuple[Any, Any]:
    """The smallest and the largest number in each place of a frame, of final ones, too."""
    names = ring.frame_names
    low: dict[str, Array] = {}
    high: dict[str, Array] = {}
    for number in _pieces(ring, row_bytes(frame_layout(spec))):
        final = number[ring.is_cut(number)]
        for name in names:
            frames = ring.take(name, number)
            if len(final):
                frames = np.concatenate([frames, ring.final_frame(name, final)])
            low[name] = np.minimum(frames.min(0), low.get(name, frames[0]))
            high[name] = np.maximum(frames.max(0), high.get(name, frames[0]))
    found = observation_rows(spec.observation, lambda space: None)
    if not isinstance(found, dict):
        return low[names[0]], high[names[0]]
    columns = [dict(zip(found, each.values(), strict=True)) for each in (low, high)]
    return columns[0], columns[1]


def action_range(ring: Steps, spec: EnvSpec) -> tuple[Array, Array]:
    """The smallest and the largest number in each place of an action."""
    low, high = [], []
    for number in _pieces(ring, row_bytes({ACTION: layout(spec)[ACTION]})):
        action = ring.take(ACTION, number)
        low.append(action.min(0))
        high.append(action.max(0))
    return np.min(low, 0), np.max(high, 0)


def episode_returns(ring: Steps) -> NDArray[np.float64]:
    """Sums of rewards of the episodes that were played from their beginning to their end.

    They come in the order of their ends. What was cut off without a flag is not counted, nor is
    what follows the oldest row of a full buffer: the beginning of it is overwritten.
    """
    found = []
    total = np.zeros(ring.num_envs)
    whole = np.full(ring.num_envs, ring.oldest == 0)
    for number in _pieces(ring, 8):
        reward = ring.take(REWARD, number).astype(np.float64).reshape(-1, ring.num_envs)
        ended = ring.take(TERMINATED, number) | ring.take(TRUNCATED, number)
        ended = ended.reshape(-1, ring.num_envs)
        over_at = ended | ring.is_cut(number).reshape(-1, ring.num_envs)
        first = 0
        for step in np.flatnonzero(over_at.any(1)).tolist():
            total += reward[first : step + 1].sum(0)
            over = over_at[step]
            found.append(total[over & whole & ended[step]])
            total, whole = np.where(over, 0.0, total), whole | over
            first = step + 1
        total += reward[first:].sum(0)
    return np.concatenate(found) if found else np.zeros(0)


def best_transitions(ring: Steps, share: float) -> NDArray[np.int64]:
    """The numbers of all transitions of the best episodes by return, a share of them, rounded up.

    What was cut off without a flag counts as an episode, too. Of equal ones the first are taken.
    """
    number = np.concatenate(list(_pieces(ring, 8)))
    reward = ring.take(REWARD, number).astype(np.float64).reshape(-1, ring.num_envs).T
    cut = ring.is_cut(number).reshape(-1, ring.num_envs).T.copy()
    cut[:, -1] = True
    ends = cut.reshape(-1)
    episode = np.cumsum(ends) - ends  # of each transition, environment by environment
    returns = np.bincount(episode, reward.reshape(-1))
    wanted = int(np.ceil(share * len(returns)))
    best = np.zeros(len(returns), np.bool_)
    best[np.argsort(-returns, kind="stable")[:wanted]] = True
    found: NDArray[np.int64] = number.reshape(-1, ring.num_envs).T.reshape(-1)[best[episode]]
    return np.sort(found)


def _pieces(ring: Steps, size: int) -> Iterator[Array]:
    """The numbers of all transitions, whole vector steps at a time, about `PIECE` bytes."""
    count = ring.num_envs
    first, stop = ring.oldest * count, ring.total * count
    length = max(PIECE // max(size * count, 1), 1) * count
    for start in range(first, stop, length):
        yield np.arange(start, min(start + length, stop))
