import numpy as np
import pytest

from rl_lab.core.running_stats import RewardNormalizer, RunningMoments
from rl_lab.core.state import join, split


def test_moments_do_not_depend_on_the_batches():
    rows = np.random.default_rng(0).normal(5.0, 3.0, size=(100, 2))
    moments = RunningMoments((2,))
    for start in (0, 1, 40):
        moments.update_statistics(rows[start : {0: 1, 1: 40, 40: 100}[start]])
    assert moments.count == 100
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-12)
    assert moments.mean.dtype == np.float64


def test_reward_scale_is_the_deviation_of_the_discounted_return():
    # gamma .5, rewards 1, 1, 1; a new episode begins with the third step.
    # returns: 1, 1.5, then 1 again (reset), not 1.75
    normalizer = RewardNormalizer(1)
    reset = np.array([[True], [False], [True]])
    scaled = normalizer(np.ones((3, 1)), reset, gamma=0.5)
    trace = np.array([1.0, 1.5, 1.0])
    assert normalizer.moments.mean == pytest.approx(trace.mean())
    np.testing.assert_allclose(scaled, 1 / np.sqrt(trace.var() + 1e-8), rtol=1e-6)
    assert normalizer.returns[0] == 1.0


def test_the_accumulator_continues_over_rollouts_unless_an_episode_begins():
    normalizer = RewardNormalizer(2)
    normalizer(np.ones((2, 2)), np.array([[True, True], [False, False]]), gamma=0.5)
    assert normalizer.returns.tolist() == [1.5, 1.5]
    other = RewardNormalizer(2)
    other.load_state_dict(join(*split(normalizer.state_dict())))
    other(np.ones((1, 2)), np.array([[True, False]]), gamma=0.5)
    assert other.returns.tolist() == [1.0, 1.75]


def test_rewards_are_scaled_not_centred_and_clipped():
    normalizer = RewardNormalizer(1)
    reset = np.ones((4, 1), dtype=bool)
    scaled = normalizer(np.array([[1.0], [1.01], [0.99], [1.0]]), reset, gamma=0.9)
    assert (scaled == 10.0).all()  # tiny deviation: everything hits the clip, nothing is centred
