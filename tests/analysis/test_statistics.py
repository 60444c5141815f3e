import itertools
import math

import numpy as np
import pytest

from rl_lab.analysis.statistics import (
    holm,
    improvement_interval,
    interval,
    iqm,
    mean,
    optimality_gap,
    paired_test,
    performance_profile,
    pooled,
    probability_of_improvement,
    profile_band,
)


def array(*values):
    return np.array(values, dtype=float)


def test_iqm_by_hand():
    # 8 numbers: a quarter is 2, so 100, 90 and 0, 1 go: (2 + 3 + 4 + 5) / 4 = 3.5
    assert iqm(array(100, 2, 0, 3, 1, 4, 90, 5)) == 3.5
    # 5 numbers: a quarter is 1.25, rounded down to 1: (2 + 3 + 4) / 3 = 3
    assert iqm(array(1, 2, 3, 4, 1000)) == 3.0
    # 3 numbers: nothing goes
    assert iqm(array(0, 0, 9)) == 3.0
    # over the last axis only
    assert iqm(np.array([[0.0, 1.0, 1.0, 9.0], [2.0, 2.0, 2.0, 2.0]])).tolist() == [1.0, 2.0]


def test_optimality_gap_by_hand():
    # 0.5 is 0.5 below 1, 1.5 is not below: (0.5 + 0) / 2
    assert optimality_gap(array(0.5, 1.5)) == 0.25
    assert optimality_gap(array(0.5, 1.5), target=2.0) == 1.0


def test_an_interval_of_two_seeds_by_hand():
    # Two seeds 0 and 1: the resampled means are 0, 0.5, 1 with 1/4, 1/2, 1/4: both ends are drawn.
    assert interval([array(0, 1)]) == (0.0, 1.0)


def test_an_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(1_000):
        low, high = interval([rng.normal(3.0, 1.0, size=30)], samples=500)
        hits += low <= 3.0 <= high
    assert 900 <= hits <= 970  # a percentile interval of 30 numbers is a little narrow


def test_seeds_are_resampled_within_their_task():
    # Both seeds of each task are equal: however they are drawn, the mean is that of the tasks.
    assert interval([array(0, 0), array(10, 10)]) == (5.0, 5.0)
    # Pooled without strata the mean would vary between 0 and 10.
    low, high = interval([array(0, 0, 10, 10)])
    assert low < 5.0 < high


def test_one_seed_has_no_interval():
    assert interval([array(1.0)]) is None
    assert interval([array(1.0), array(2.0)]) is None
    assert improvement_interval([array(1.0)], [array(2.0)]) is None
    assert profile_band([array(1.0)], array(0.0)) is None


def test_the_same_runs_give_the_same_interval():
    values = [np.random.default_rng(1).normal(size=9)]
    assert interval(values, iqm) == interval(values, iqm)


def test_probability_of_improvement_by_hand():
    # 1 beats 0 and ties with 1: 1.5 of 2; 2 beats both: 2 of 2; (1.5 + 2) / 4
    assert probability_of_improvement([array(1, 2)], [array(0, 1)]) == 0.875
    assert probability_of_improvement([array(0, 1)], [array(1, 2)]) == 0.125
    # The mean over tasks, whatever their number of seeds: (0.875 + 0) / 2
    first, second = [array(1, 2), array(0, 0, 0)], [array(0, 1), array(5)]
    assert probability_of_improvement(first, second) == 0.4375


def test_the_interval_of_a_certain_improvement_is_a_point():
    assert improvement_interval([array(5, 6, 7)], [array(1, 2, 3)]) == (1.0, 1.0)
    low, high = improvement_interval([array(1, 2, 3)], [array(1, 2, 3)])
    assert low < 0.5 < high


def test_a_performance_profile_by_hand():
    scores = [array(0.0, 0.5, 1.0, 1.0), array(0.2)]
    # above 0: (3/4 + 1) / 2, above 0.5: (2/4 + 0) / 2, above 1: none
    assert performance_profile(scores, array(0.0, 0.5, 1.0)).tolist() == [0.875, 0.25, 0.0]
    low, high = profile_band(scores, array(0.0, 0.5, 1.0))
    assert (low <= [0.875, 0.25, 0.0]).all() and (high >= [0.875, 0.25, 0.0]).all()
    assert low[0] == 0.625 and high[2] == 0.0  # two of four zeros are drawn in 5 % of samples


def test_the_paired_test_by_hand():
    # |1 + 2 + 3| = 6 is reached by +++ and --- only: 2 of 8
    assert paired_test(array(1, 2, 3)) == 0.25
    # 3 + 3 - 1 = 5: reached or passed by ++-, +++ and their opposites: 4 of 8
    assert paired_test(array(3, 3, -1)) == 0.5
    assert paired_test(array(0, 0, 0)) == 1.0
    assert paired_test(array(1)) is None
    # 10 pairs of one direction: 2 of 1024
    assert paired_test(np.arange(1.0, 11.0)) == 2 / 1024


def test_sums_in_another_order_are_the_same_sum():
    # In whole numbers nothing is rounded; in tenths equal sums differ in their last bit.
    whole = array(7, -6, -8, 7, -9)
    assert paired_test(whole) == paired_test(whole / 10) == 20 / 32


def test_many_pairs_are_sampled_and_never_certain():
    assert paired_test(np.ones(40)) == 1 / 20_001
    p = paired_test(np.tile([1.0, -1.0], 20))
    assert p == 1.0


def test_a_fair_coin_is_seldom_significant():
    rng = np.random.default_rng(3)
    found = [paired_test(rng.normal(size=8)) for _ in range(400)]
    assert np.mean(np.array(found) <= 0.05) <= 0.08  # 0.05 and noise


def test_holm_by_hand():
    # sorted 0.01, 0.03, 0.04 times 3, 2, 1 = 0.03, 0.06, 0.04; never falling: 0.03, 0.06, 0.06
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_pooled_is_every_run_once():
    assert pooled([array(1), array(2, 3)]).tolist() == [1.0, 2.0, 3.0]


# ------------------------------------------------------------------- against other programs


def random_scores(runs=7, tasks=4):
    return np.random.default_rng(5).normal(0.6, 0.5, size=(runs, tasks))


def test_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    for count in (3, 4, 7, 10, 28):
        values = np.random.default_rng(count).normal(size=count)
        assert iqm(values) == pytest.approx(stats.trim_mean(values, 0.25))
    x, y = np.random.default_rng(1).integers(0, 6, size=(2, 9)).astype(float)
    u = stats.mannwhitneyu(x, y).statistic
    assert probability_of_improvement([x], [y]) == pytest.approx(u / 81)
    differences = np.random.default_rng(2).normal(0.4, 1.0, size=9)
    theirs = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert paired_test(differences) == pytest.approx(theirs.pvalue)


def test_a_bootstrap_against_all_possible_draws():
    # 4 seeds: all 256 draws can be listed; the percentiles must agree with the sampled ones.
    values = array(0.0, 1.0, 4.0, 9.0)
    all_means = [np.mean(draw) for draw in itertools.product(values, repeat=4)]
    low, high = np.percentile(all_means, [2.5, 97.5])
    found = interval([values], mean, samples=20_000)
    assert math.isclose(found[0], low, abs_tol=0.26) and math.isclose(found[1], high, abs_tol=0.26)


@pytest.mark.filterwarnings("ignore")  # its own, of old libraries
def test_against_rliable():
    metrics = pytest.importorskip("rliable.metrics")
    library = pytest.importorskip("rliable.library")
    scores, others = random_scores(), random_scores() + 0.1
    ours, theirs = list(scores.T), list(others.T)
    assert iqm(pooled(ours)) == pytest.approx(metrics.aggregate_iqm(scores))
    assert optimality_gap(pooled(ours)) == pytest.approx(metrics.aggregate_optimality_gap(scores))
    assert probability_of_improvement(ours, theirs) == pytest.approx(
        metrics.probability_of_improvement(scores, others)
    )
    thresholds = np.linspace(-0.5, 2.0, 21)
    profiles, _ = library.create_performance_profile({"a": scores}, thresholds, reps=10)
    assert performance_profile(ours, thresholds) == pytest.approx(profiles["a"])
    _, bounds = library.get_interval_estimates(
        {"a": scores}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=2_000
    )
    assert interval(ours, iqm) == pytest.approx(bounds["a"].ravel(), abs=0.05)
