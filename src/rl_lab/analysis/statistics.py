"""Honest numbers from few seeds: intervals, aggregates, comparisons. Pure numpy.

The definitions are those of Agarwal et al. 2021 (arXiv:2108.13264). `Scores` are the results of one
method: an array for each task, a number for each seed. The tasks are strata: seeds are resampled
within a task, never across tasks. Every random number has a fixed seed, so that the same runs give
the same interval every time.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Scores = Sequence[Array]  # one array of seeds [N] for each task
Interval = tuple[float, float]
Statistic = Callable[[Array], Array]  # [..., N] -> [...]

SAMPLES = 2_000  # of a bootstrap
LEVEL = 0.95
EXACT_PAIRS = 14  # up to here all 2^N signs are tried
RANDOM_SIGNS = 20_000  # otherwise so many
NORMAL_95 = 1.96  # standard errors of a 95 % interval


def mean(values: Array) -> Array:
    """The mean over the last axis."""
    return np.asarray(values.mean(-1))


def iqm(values: Array) -> Array:
    """Interquartile mean over the last axis: the lowest and the highest quarter are left out.

    A quarter is rounded down, so the IQM of up to three numbers is their mean.
    """
    count = values.shape[-1]
    cut = count // 4
    return mean(np.sort(values, axis=-1)[..., cut : count - cut])


def optimality_gap(values: Array, target: float = 1.0) -> Array:
    """How far the scores are below the target on average; what is above it does not count."""
    return target - mean(np.minimum(values, target))


def pooled(scores: Scores) -> Array:
    """The results of all tasks in one row."""
    return np.concatenate([np.asarray(each, dtype=np.float64) for each in scores])


def normal_interval(mean: float, deviation: float, count: int) -> Interval:
    """The 95 % interval of a mean over `count` episodes with this standard deviation."""
    half = NORMAL_95 * deviation / max(count - 1, 1) ** 0.5
    return mean - half, mean + half


def interval(
    scores: Scores, statistic: Statistic = mean, *, samples: int = SAMPLES
) -> Interval | None:
    """95 % percentile interval of a statistic, by stratified bootstrap; None without a spread.

    One seed says nothing about other seeds: then there is no interval, not one of width zero.
    """
    if all(len(each) < 2 for each in scores):
        return None
    drawn = np.concatenate(_resampled(scores, samples, np.random.default_rng(0)), axis=-1)
    return _percentiles(statistic(drawn))


def probability_of_improvement(scores: Scores, others: Scores) -> float:
    """How likely a seed of the first beats one of the second on a task chosen at random.

    An equal result counts one half: the Mann-Whitney U statistic, as a share, mean over tasks.
    """
    wins = [_wins(x, y) for x, y in zip(scores, others, strict=True)]
    return float(np.mean(wins))


def improvement_interval(
    scores: Scores, others: Scores, *, samples: int = SAMPLES
) -> Interval | None:
    """95 % interval of it; both sides are resampled within each task."""
    if all(len(each) < 2 for each in [*scores, *others]):
        return None
    rng = np.random.default_rng(0)
    ours, theirs = _resampled(scores, samples, rng), _resampled(others, samples, rng)
    wins = [_wins(x, y) for x, y in zip(ours, theirs, strict=True)]
    return _percentiles(np.mean(wins, axis=0))


def performance_profile(scores: Scores, thresholds: Array) -> Array:
    """The share of runs above each threshold, mean over tasks, [thresholds]."""
    shares = [(np.asarray(each) > thresholds[:, None]).mean(-1) for each in scores]
    return np.asarray(np.mean(shares, axis=0))


def profile_band(
    scores: Scores, thresholds: Array, *, samples: int = SAMPLES
) -> tuple[Array, Array] | None:
    """95 % interval of the profile at each threshold."""
    if all(len(each) < 2 for each in scores):
        return None
    drawn = _resampled(scores, samples, np.random.default_rng(0))
    found = [
        np.percentile(np.mean([(each > one).mean(-1) for each in drawn], axis=0), _bounds())
        for one in thresholds
    ]
    low, high = np.transpose(found)
    return low, high


def paired_test(differences: Array) -> float | None:
    """Two-sided p-value that paired results have no direction; None for fewer than two pairs.

    A sign-flip permutation test of the mean: if the methods were equal, each difference could as
    well have the other sign. Exact for few pairs, where no p-value can be below 2 / 2^pairs.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2:
        return None
    if len(values) <= EXACT_PAIRS:
        codes = np.arange(2 ** len(values))[:, None] >> np.arange(len(values))
        signs = 1.0 - 2.0 * (codes & 1)
        extra = 0
    else:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(RANDOM_SIGNS, len(values)))
        extra = 1  # the signs as they are belong to the possible ones: no p-value is zero
    flipped = np.abs(signs @ values)
    # Sums of the same numbers in another order differ in their last bits.
    as_extreme = flipped >= abs(values.sum()) - 1e-9 * np.abs(values).sum()
    return float((as_extreme.sum() + extra) / (len(signs) + extra))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for several tests, in the order given: never below the plain p-value."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, dtype=np.float64)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(each) for each in corrected]


def _wins(x: Array, y: Array) -> Array:
    """[..., N], [..., M] -> [...]: share of pairs in which the first is greater; equal is half."""
    left, right = np.asarray(x)[..., :, None], np.asarray(y)[..., None, :]
    return np.asarray(((left > right) + 0.5 * (left == right)).mean((-2, -1)))


def _resampled(scores: Scores, samples: int, rng: np.random.Generator) -> list[Array]:
    """For each task [samples, N]: its seeds, drawn with replacement."""
    arrays = [np.asarray(each, dtype=np.float64) for each in scores]
    return [each[rng.integers(len(each), size=(samples, len(each)))] for each in arrays]


def _percentiles(drawn: Array) -> Interval:
    low, high = np.percentile(drawn, _bounds())
    return float(low), float(high)


def _bounds() -> list[float]:
    return [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
