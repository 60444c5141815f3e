"""CMA-ES: the same search as the library's own, the right sign, and the same after any resume."""

import sys
from importlib import import_module

import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.core.state import fingerprint, join, split
from rl_lab.planning.cma_es import CMAES

pytestmark = pytest.mark.needs("cma")


def sphere(x):
    return float(np.square(x).sum())


def rosenbrock(x):
    return float((100 * np.square(x[1:] - x[:-1] ** 2) + np.square(1 - x[:-1])).sum())


def search(n, *, sigma=0.5, population=12, seed=1, start=None):
    start = np.full(n, 0.1) if start is None else start
    return CMAES(start, sigma, population, np.random.default_rng(seed))


def generations(es, cost, count):
    for _ in range(count):
        es.tell(np.array([-cost(each) for each in es.ask()]))
    return es


@pytest.mark.parametrize(("cost", "count"), [(sphere, 150), (rosenbrock, 700)])
def test_it_finds_the_minimum_of_ten_numbers(cost, count):
    es = generations(search(10), cost, count)
    assert cost(es.mean) < 1e-8


@pytest.mark.parametrize("cost", [sphere, rosenbrock])
def test_it_is_the_search_of_the_library(cost):
    rng = np.random.default_rng(1)
    options = {"verbose": -9, "popsize": 12, "seed": np.nan}
    options["randn"] = lambda *size: rng.standard_normal(size)
    plain = import_module("cma").CMAEvolutionStrategy(np.full(10, 0.1), 0.5, options)
    ours = search(10)
    for _ in range(60):
        theirs = plain.ask()
        assert np.array_equal(np.stack(theirs), ours.ask())
        plain.tell(theirs, [cost(each) for each in theirs])
        ours.tell(np.array([-cost(each) for each in ours.ask()]))
    assert ours.sigma == plain.sigma and ours.generation == 60


def test_more_is_better():
    # The return of x is x itself: the search must climb, and quickly.
    es = search(2, sigma=1.0, start=np.zeros(2))
    for _ in range(30):
        es.tell(es.ask().sum(1))
    assert es.mean.sum() > 10


def test_candidates_stay_the_same_until_they_are_told():
    es = search(3)
    first = es.ask().copy()
    assert np.array_equal(es.ask(), first)
    es.tell(np.arange(12.0))
    assert not np.array_equal(es.ask(), first)


@pytest.mark.parametrize(
    ("n", "population", "asked"), [(10, 9, False), (10, 9, True), (7, 4, True), (41, 9, True)]
)
def test_saved_in_any_generation_it_goes_on_bit_for_bit(n, population, asked):
    rng = np.random.default_rng(3)
    straight = CMAES(np.zeros(n), 0.5, population, rng)
    saved, streams, seen = [], [], []
    for moment in range(40):
        if asked:
            straight.ask()
        if moment < 20:
            saved.append(join(*split(straight.state_dict())))  # as it would come from a disk
            streams.append(rng.bit_generator.state)
        seen.append((straight.ask().copy(), straight.mean, straight.sigma))
        generations(straight, rosenbrock, 1)
    for moment in range(0, 20, 4 if n > 20 else 1):
        state, stream = saved[moment], streams[moment]
        rng = np.random.default_rng(99)
        resumed = generations(CMAES(np.ones(n), 2.0, population, rng), rosenbrock, moment % 3)
        rng.bit_generator.state = stream  # saved with the run's streams
        resumed.load_state_dict(state)
        for candidates, mean, sigma in seen[moment : moment + 20]:
            assert np.array_equal(resumed.ask(), candidates), moment
            assert np.array_equal(resumed.mean, mean) and resumed.sigma == sigma
            generations(resumed, rosenbrock, 1)


def test_so_it_does_with_very_many_parameters():
    """For which the library would take another rule for the step size.

    Its axes follow the covariance only every few generations: they are saved as they are.
    """
    rngs = [np.random.default_rng(seed) for seed in (3, 4)]
    straight, resumed = (CMAES(np.zeros(310), 0.5, 8, rng) for rng in rngs)
    generations(straight, sphere, 13)
    assert 0 < straight.strategy.sm.last_update < 13
    resumed.load_state_dict(join(*split(straight.state_dict())))
    rngs[1].bit_generator.state = rngs[0].bit_generator.state
    for _ in range(12):
        assert np.array_equal(resumed.ask(), straight.ask())
        generations(straight, sphere, 1)
        generations(resumed, sphere, 1)


def test_what_is_saved_comes_back_as_it_was():
    es = generations(search(6), sphere, 5)
    es.ask()
    other = search(6, seed=7)
    other.load_state_dict(join(*split(es.state_dict())))
    assert fingerprint(other.state_dict()) == fingerprint(es.state_dict())


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(UserError, match=r"pip install 'rl-lab\[es\]'"):
        search(2)
