"""Whole episodes: equally likely, never in pieces, and what only warms a memory up is marked."""

import numpy as np
import pytest
import torch

from rl_lab.buffers.episode_replay import EpisodeReplay, EpisodesConfig
from rl_lab.core.errors import UserError
from rl_lab.core.state import join, split
from transition_stream import Stream, arrivals, setup


def made(capacity=400, num_envs=2, **options):
    config = EpisodesConfig(capacity=capacity, **options)
    return EpisodeReplay(config, setup(num_envs=num_envs))


def filled(steps=60, ends=0.15, capacity=400, num_envs=2, **options):
    buffer, stream = made(capacity, num_envs, **options), Stream(num_envs, seed=3, ends=ends)
    for _ in range(steps // 5):
        buffer.add(stream.trajectory(5))
    return buffer, stream


def whole(stream, rows):
    """Finished episodes of which everything is there: (env, fragment) -> frames."""
    found = {}
    for frames in arrivals(stream, rows):
        pieces = {}
        for frame in frames:
            pieces.setdefault(frame[:2], []).append(frame)
        for key, piece in pieces.items():
            if piece[0][5] and (piece[-1][6] or piece[-1][7]):
                found[key] = piece
    return found


def test_windows_lie_in_whole_finished_episodes():
    buffer, stream = filled(capacity=60)  # of 120 frames and more
    expected = whole(stream, 30)
    drawn = buffer.sequences(2000, 4)
    pairs = set(map(tuple, drawn["obs"][0, :, :, :2].reshape(-1, 2).tolist()))
    assert pairs == {key for key, frames in expected.items() if len(frames) >= 4}
    assert (drawn["obs"][0, 1:, :, 2] - drawn["obs"][0, :-1, :, 2] == 1).all()
    assert not drawn["reset"][0, 1:].any()


def test_episodes_are_equally_likely_whatever_their_length():
    buffer, stream = filled()
    expected = {key: frames for key, frames in whole(stream, 200).items() if len(frames) >= 3}
    sizes = {len(frames) for frames in expected.values()}
    assert max(sizes) > 3 * min(sizes)
    drawn = buffer.sequences(20_000, 3)["obs"][0, 0]
    keys = {key: number for number, key in enumerate(expected)}
    counts = np.bincount([keys[tuple(row)] for row in drawn[:, :2].tolist()], minlength=len(keys))
    mean, freedom = 20_000 / len(keys), len(keys) - 1
    assert ((counts - mean) ** 2 / mean).sum() < freedom + 5 * np.sqrt(2 * freedom)


def test_burn_in_is_for_windows_that_begin_in_the_middle():
    buffer, _ = filled(burn_in=2)
    batch = buffer.sequences(300, 5, 2)
    begins = batch["reset"][:, 0]
    assert begins.any() and not begins.all()
    warming = batch["burn_in"]
    assert warming.shape == (2, 5, 300) and warming.dtype == torch.bool
    assert not warming[:, 2:].any()
    assert torch.equal(warming[:, 0], ~begins) and torch.equal(warming[:, 1], ~begins)
    with pytest.raises(UserError, match="a window of 2 frames has none left after a burn_in of 2"):
        buffer.sequences(3, 2)


def test_a_share_comes_from_the_newest_episodes():
    buffer, stream = filled(recent_ratio=0.5, recent=2)
    ends = {}
    for env, history in enumerate(stream.rows):
        for step, row in enumerate(history[:-1]):
            if history[step + 1]["fragment"] != row["fragment"]:
                ends[(env, row["fragment"])] = (step, env)
    long = [key for key, frames in whole(stream, 200).items() if len(frames) >= 3]
    newest = sorted(long, key=ends.get)[-2:]
    drawn = buffer.sequences(8, 3, 50)["obs"][:, 0, :, :2].tolist()
    keys = [[tuple(row) for row in batch] for batch in drawn]
    assert {key for batch in keys for key in batch[:4]} == set(newest)
    assert len({key for batch in keys for key in batch[4:]}) == len(long)


def test_whole_episodes_are_filled_up():
    buffer, stream = filled()
    expected = whole(stream, 200)
    batch = buffer.episodes(6, 3)
    count, longest, size = batch["mask"].shape
    assert (count, size) == (3, 6)
    lengths = batch["mask"].sum(1)
    assert lengths.max() == longest and lengths.min() < longest
    for turn in range(count):
        for column in range(size):
            rows = int(lengths[turn, column])
            assert batch["mask"][turn, :rows, column].all()
            frames = batch["obs"][turn, :, column].tolist()
            told = expected[tuple(frames[0][:2])]
            assert [tuple(frame) for frame in frames[:rows]] == [frame[:3] for frame in told]
            assert all(frame == frames[rows - 1] for frame in frames[rows:])
            assert batch["reward"][turn, :rows, column].tolist() == [f[4] for f in told]


def test_nothing_before_an_episode_has_ended():
    buffer, stream = made(), Stream(2, seed=3, ends=0.0)
    buffer.add(stream.trajectory(9))
    assert len(buffer) == 18 and not buffer.ready()
    stream.restart()
    buffer.add(stream.trajectory(1))
    assert buffer.ready(10) and not buffer.ready(11)
    with pytest.raises(UserError, match=r"no finished episode of 11 frames .*longest has 10"):
        buffer.sequences(2, 11)


def test_saved_and_loaded_equals_never_saved():
    options = {"recent_ratio": 0.25, "burn_in": 1, "capacity": 60}
    kept, stream = filled(**options)
    moved = made(**options)
    moved.load_state_dict(join(*split(kept.state_dict())))
    moved.setup.rng.bit_generator.state = kept.setup.rng.bit_generator.state
    for _ in range(5):
        left, right = kept.sequences(8, 3), moved.sequences(8, 3)
        assert all(torch.equal(left[key], right[key]) for key in left)
        trajectory = stream.trajectory(4)
        kept.add(trajectory)
        moved.add(trajectory)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"within_episodes": False}, "within_episodes must be true for episodes, got false"),
        ({"burn_in": -1}, "burn_in must be at least 0, got -1"),
        ({"recent_ratio": 1.5}, r"recent_ratio must be in \[0, 1\], got 1.5"),
        ({"recent": 0}, "recent must be at least 1, got 0"),
    ],
)
def test_values_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        EpisodesConfig(**options)
