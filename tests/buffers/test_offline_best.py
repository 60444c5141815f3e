"""The best episodes of a dataset, and the range of its frames."""

import numpy as np
import pytest

from rl_lab.buffers.offline import OfflineConfig, OfflineReplay
from rl_lab.core.batch import ACTION, OBS
from rl_lab.core.protocols import BufferSetup
from rl_lab.core.spec import Box, Dict, EnvSpec


def box(*shape):
    ones = np.ones(shape, np.float32)
    return Box(shape, np.dtype(np.float32), -9 * ones, 9 * ones)


def saved(folder, returns, length=3):
    """Episodes of three steps; their frames and actions say which episode they are of."""
    for index, each in enumerate(returns):
        np.savez(
            folder / f"{index}.npz",
            obs=np.full((length + 1, 2), index, np.float32) + np.float32([0.0, 0.5]),
            action=np.full((length, 1), index / 10, np.float32),
            reward=np.full(length, each / length, np.float32),
            terminated=np.zeros(length, np.bool_),
            truncated=np.arange(length) == length - 1,
        )
    return folder


def buffer(folder, seed=0, **options):
    spec = EnvSpec("Test-v0", box(2), box(1))
    setup = BufferSetup(spec, num_envs=1, rng=np.random.default_rng(seed))
    return OfflineReplay(OfflineConfig(path=str(folder), **options), setup)


@pytest.mark.parametrize(("share", "expected"), [(0.4, {1, 3}), (0.1, {3}), (1.0, {0, 1, 2, 3, 4})])
def test_only_the_best_episodes_are_drawn(tmp_path, share, expected):
    data = buffer(saved(tmp_path, [-5.0, 7.0, 2.0, 9.0, 0.0]), best=share)
    obs = data.sample(400)[OBS][0, :, 0]
    assert {int(each) for each in obs} == expected
    chunks = data.chunks(400, 2, 2)
    assert {round(10 * each) for each in chunks[ACTION][0, :, 0, 0].tolist()} == expected


def test_a_share_of_episodes_is_rounded_up_and_of_equal_ones_the_first_are_taken(tmp_path):
    data = buffer(saved(tmp_path, [1.0, 1.0, 1.0]), best=0.34)
    assert {int(each) for each in data.sample(200)[OBS][0, :, 0]} == {0, 1}


def test_the_range_of_all_frames_final_ones_included(tmp_path):
    data = buffer(saved(tmp_path, [0.0, 0.0]))
    low, high = data.observation_range()
    assert (low.tolist(), high.tolist()) == ([0.0, 0.5], [1.0, 1.5])
    np.savez(
        tmp_path / "9.npz",
        obs=np.float32([[0, 0], [0, 8]]),  # only the final frame is so far out
        action=np.zeros((1, 1), np.float32),
        reward=np.zeros(1, np.float32),
        terminated=np.ones(1, np.bool_),
        truncated=np.zeros(1, np.bool_),
    )
    assert buffer(tmp_path).observation_range()[1].tolist() == [1.0, 8.0]


def test_the_range_of_a_dict_is_told_part_by_part(tmp_path):
    np.savez(
        tmp_path / "0.npz",
        **{"obs/arm": np.float32([[1], [3]]), "obs/eye": np.float32([[0, 5], [2, 5]])},
        action=np.zeros((1, 1), np.float32),
        reward=np.zeros(1, np.float32),
        terminated=np.ones(1, np.bool_),
        truncated=np.zeros(1, np.bool_),
    )
    spec = EnvSpec("Test-v0", Dict({"arm": box(1), "eye": box(2)}), box(1))
    setup = BufferSetup(spec, num_envs=1, rng=np.random.default_rng(0))
    low, high = OfflineReplay(OfflineConfig(path=str(tmp_path)), setup).observation_range()
    assert (low["arm"].tolist(), high["arm"].tolist()) == ([1.0], [3.0])
    assert (low["eye"].tolist(), high["eye"].tolist()) == ([0.0, 5.0], [2.0, 5.0])


@pytest.mark.parametrize("share", [0.0, 1.5, -0.1])
def test_a_share_that_is_none_is_refused(tmp_path, share):
    with pytest.raises(ValueError, match=r"best must be in \(0, 1\]"):
        OfflineConfig(path=str(tmp_path), best=share)
