"""CMA-ES by the `cma` library: ask for candidates, tell how well they did, save at any moment.

What `cma` keeps from one generation to the next is few arrays and numbers. They are read out of it
and put back into a new one, so nothing is pickled and a resumed search goes on bit for bit.
"""

import importlib
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl_lab.core.errors import UserError

Floats = NDArray[np.float64]

# No seed: the run's stream is used. No change of coordinates where they are very unequal, and none
# of the candidates that the library injects into small populations: both have state of their own.
OPTIONS = {
    "verbose": -9,
    "verb_log": 0,
    "seed": np.nan,
    "conditioncov_alleviate": None,
    "CMA_mirrors": 0,
}
STRATEGY = ("sigma", "countiter", "countevals")  # numbers of the strategy
PATHS = ("mean", "pc")  # arrays of it
SAMPLER = ("count_tell", "count_eigen", "last_update")  # its covariance may lag behind the returns


class CMAES:
    """A search for the largest return among vectors. Candidates are rows [population, n]."""

    def __init__(
        self, start: Floats, sigma: float, population: int, rng: np.random.Generator
    ) -> None:
        library = require_cma()

        def randn(*size: int) -> Floats:
            return rng.standard_normal(size)

        options: dict[str, Any] = {**OPTIONS, "popsize": population, "randn": randn}
        # Else it is another one with hidden state where there are very many parameters.
        options["AdaptSigma"] = library.sigma_adaptation.CMAAdaptSigmaCSA
        self.strategy = library.CMAEvolutionStrategy(np.asarray(start, np.float64), sigma, options)
        self.strategy.timer = library.utilities.utils.ElapsedWCTime()  # expected after a resume
        self.population = population
        self.pending: Floats | None = None  # drawn, and not evaluated yet

    @property
    def mean(self) -> Floats:
        """The middle of the search: better than any one candidate where returns are noisy."""
        return np.array(self.strategy.mean)

    @property
    def sigma(self) -> float:
        """How far around it candidates are drawn."""
        return float(self.strategy.sigma)

    @property
    def generation(self) -> int:
        """Number of evaluated candidates."""
        return int(self.strategy.countiter)

    def ask(self) -> Floats:
        """The candidates of this generation; the same ones until their returns are known."""
        if self.pending is None:
            self.pending = np.stack(self.strategy.ask())
        return self.pending

    def tell(self, returns: Floats) -> None:
        """How well each of them did: more is better."""
        candidates = self.ask()
        # They are our own: checking them would depend on what the library remembers of its asking.
        costs = [-float(each) for each in returns]  # the library minimizes
        self.strategy.tell(list(candidates), costs, check_points=False)
        self.pending = None

    def state_dict(self) -> dict[str, Any]:
        """All that the next generations depend on, but for the random stream."""
        sampler = self.strategy.sm
        return {
            "numbers": {name: float(getattr(self.strategy, name)) for name in STRATEGY},
            "paths": {name: np.array(getattr(self.strategy, name)) for name in PATHS},
            "step_path": np.array(self.strategy.adapt_sigma.ps),
            "sampler": {name: int(getattr(sampler, name)) for name in SAMPLER},
            "covariance": np.array(sampler.C),
            "axes": np.array(sampler.B, order="C"),
            # A product sums in another order if its matrix lies in memory in another order.
            "axes_by_columns": bool(sampler.B.flags.f_contiguous),
            "lengths": np.array(sampler.D),
            "pending": self.pending,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become that search: the next candidates are the ones it would have asked for."""
        strategy, sampler = self.strategy, self.strategy.sm
        assert state["paths"]["mean"].shape == strategy.mean.shape, "a search of another size"
        for name in STRATEGY:
            number = state["numbers"][name]
            setattr(strategy, name, number if name == "sigma" else int(number))
        for name in PATHS:
            setattr(strategy, name, state["paths"][name].copy())
        strategy.mean_old = strategy.mean  # it is read, and not used
        strategy.adapt_sigma.ps = state["step_path"].copy()
        for name in SAMPLER:
            setattr(sampler, name, int(state["sampler"][name]))
        order: Literal["F", "C"] = "F" if state["axes_by_columns"] else "C"
        sampler.C, sampler.D = state["covariance"].copy(), state["lengths"].copy()
        sampler.B = np.array(state["axes"], order=order)
        strategy._updateBDfromSM(sampler)
        self.pending = None if state["pending"] is None else state["pending"].copy()
        self._pretend_asked()

    def _pretend_asked(self) -> None:
        """The library only takes answers to what it was asked."""
        count = 0 if self.pending is None else len(self.pending)
        self.strategy._flgtelldone = count == 0
        self.strategy.number_of_solutions_asked = count
        self.strategy.number_of_injections = 0
        self.strategy._is_independent_sample = [True] * count
        self.strategy.evaluations_per_f_value = 1


def require_cma() -> Any:
    """The library, or a `UserError` that says how to install it."""
    try:
        return importlib.import_module("cma")
    except ImportError as error:
        raise UserError("CMA-ES needs a package: run `pip install 'rl-lab[es]'`") from error
