"""Bandit agents (Sutton & Barto 2018, chapter 2): epsilon-greedy, UCB, gradient, Thompson.

Reads top to bottom: config, formulas, rules, the algorithm. Every environment is a bandit with an
agent for itself: N environments are N experiments side by side, [N, C, K] for C contexts (what a
Discrete observation shows) and K arms. An agent learns from every pull and ignores what comes next.
Where fewer or more environments are shown, as in an evaluation, row i is answered by agent i mod N;
that means something only if all of them are the same bandit.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from rl_lab.algorithms.base import VALUES, Algorithm, Optimized, Roles, Version
from rl_lab.core.batch import ACTION, OBS, REWARD, Action, Array, Batch, CollectResult, Metrics, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Phase
from rl_lab.core.schedule import at
from rl_lab.core.schema import AlgorithmConfig
from rl_lab.core.spec import Discrete

MOST_CELLS = 100_000_000  # environments x contexts x arms


SMALLEST_STD = 1e-6

Cell = tuple[Array, ...]  # an index of agents and contexts


@dataclass(frozen=True, kw_only=True)
class BanditConfig(AlgorithmConfig):
    """What all agents share."""

    rollout_steps: int = option(1, "pulls between updates; 1 learns from every pull at once", low=1)


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedyConfig(BanditConfig):
    """A random arm now and then, the best one so far otherwise. Any float may be a schedule."""

    epsilon: float = option(0.1, "probability of a random arm", low=0, high=1)
    step_size: float | None = option(
        None, "constant step size; null averages all rewards of an arm", low=0, high=1
    )
    initial_value: float = option(
        0.0, "first estimate; a high one makes it try every arm", fixed=True
    )


@dataclass(frozen=True, kw_only=True)
class UCBConfig(BanditConfig):
    """The arm that could be the best: its estimate, and more the less it was tried."""

    c: float = option(2.0, "how much uncertainty counts", low=0)
    step_size: float | None = option(
        None, "constant step size; null averages all rewards of an arm", low=0, high=1
    )


@dataclass(frozen=True, kw_only=True)
class GradientBanditConfig(BanditConfig):
    """Preferences moved by stochastic gradient ascent on the expected reward."""

    step_size: float = option(0.1, "step size of the preferences", low=0)
    baseline: bool = option(True, "compare rewards with their average so far, not with 0")


@dataclass(frozen=True, kw_only=True)
class ThompsonConfig(BanditConfig):
    """Draw a bandit from what is known, and pull its best arm."""

    model: Literal["gaussian", "beta"] = option(
        "gaussian", "gaussian: any rewards; beta: rewards of 0 and 1 only"
    )
    prior_mean: float = option(0.0, "gaussian: what an untried arm is thought to pay")
    prior_std: float = option(1.0, "gaussian: how unsure that is", above=0)
    noise_std: float | None = option(
        1.0, "gaussian: known deviation of the rewards; null learns it for each arm", above=0
    )


# --------------------------------------------------------------------- formulas


def any_best(scores: Array, random: np.random.Generator) -> Array:
    """The best column of each row of scores [N, K]; of equally good ones any."""
    best = scores == scores.max(axis=1, keepdims=True)
    return np.where(best, random.random(scores.shape), -1.0).argmax(axis=1)


def upper_bound(values: Array, counts: Array, c: float) -> Array:
    """Estimates with a bonus, c sqrt(ln t / n) (eq. 2.10); an arm that was never tried is best."""
    now = counts.sum(axis=1, keepdims=True) + 1
    bonus = c * np.sqrt(np.log(now) / np.maximum(counts, 1))
    return np.where(counts == 0, np.inf, values + bonus)


def softmax(preferences: Array) -> Array:
    """Probabilities of the arms, each row of [N, K] by itself (eq. 2.11)."""
    weights = np.exp(preferences - preferences.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def greedy_probabilities(values: Array, epsilon: float) -> Array:
    """Probabilities of epsilon-greedy, each row of [N, K] by itself; equally good arms share."""
    best = values == values.max(axis=1, keepdims=True)
    share = best / best.sum(axis=1, keepdims=True)
    return np.asarray(epsilon / values.shape[1] + (1.0 - epsilon) * share)


def entropy(probabilities: Array) -> Array:
    """Of each row of probabilities [N, K], in nats."""
    return np.asarray(
        np.sum(
            probabilities * np.log(1.0 / np.where(probabilities > 0, probabilities, 1.0)), axis=1
        )
    )


def preference_step(preferences: Array, arm: Array, advantage: Array, step_size: float) -> Array:
    """Preferences [N, K] after one pull each (eq. 2.12)."""
    taken = np.arange(preferences.shape[1]) == arm[:, None]
    return np.asarray(preferences + step_size * advantage[:, None] * (taken - softmax(preferences)))


def precision(deviation: float) -> float:
    """1 / σ²; a schedule may fall to 0, which stands for a very small deviation."""
    return max(deviation, SMALLEST_STD) ** -2


def posterior(mean: Array, count: Array, now: ThompsonConfig) -> tuple[Array, Array]:
    """Mean and deviation of what an arm pays, given its average reward and a known noise."""
    assert now.noise_std is not None
    prior, evidence = precision(now.prior_std), count * precision(now.noise_std)
    return (prior * now.prior_mean + evidence * mean) / (prior + evidence), (
        prior + evidence
    ) ** -0.5


def posterior_unknown_noise(
    mean: Array, count: Array, squares: Array, now: ThompsonConfig
) -> tuple[Array, Array, Array, Array]:
    """The normal-inverse-gamma posterior: its mean, its weight, shape and scale of the variance.

    `squares` is the sum of squared distances from the average. The prior counts as much as one
    reward of variance 1, times prior_std^-2.
    """
    before = precision(now.prior_std)
    weight = before + count
    center = (before * now.prior_mean + count * mean) / weight
    distance = before * count * (mean - now.prior_mean) ** 2 / weight
    return center, weight, 1.0 + count / 2, 1.0 + (squares + distance) / 2


# ------------------------------------------------------------------------ rules


class Estimates(ABC):
    """What N agents know of their arms, and how they choose and learn: the base of the rules.

    Attributes:
        values: What a deterministic agent maximizes [N, C, K].
        counts: How often each arm was pulled [N, C, K].
    """

    def __init__(self, config: BanditConfig, shape: tuple[int, int, int]) -> None:
        self.values = np.zeros(shape, np.float64)
        self.counts = np.zeros(shape, np.int64)

    @abstractmethod
    def choose(self, cell: Cell, now: Any, random: np.random.Generator) -> Array:
        """An arm for each row; `cell` picks agents and contexts: `self.values[cell]` is [N, K]."""

    @abstractmethod
    def learn(self, cell: Cell, arm: Array, reward: Array, now: Any) -> None:
        """One pull of every agent, already counted."""

    def probabilities(self, values: Array, now: Any) -> Array | None:
        """Of the arms, by rows of `values` [N, K]; None where they are not known in closed form."""
        return None

    def average(self, cell: Cell, arm: Array, reward: Array, step_size: float | None) -> None:
        """Move the estimates of the arms towards their rewards: averages, or by constant steps."""
        place = (*cell, arm)
        step = 1.0 / self.counts[place] if step_size is None else step_size
        self.values[place] += step * (reward - self.values[place])

    def state_dict(self) -> dict[str, Array]:
        """The arrays, by name."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Copies of the arrays of a state."""
        if set(state) != set(vars(self)):
            raise UserError(f"the saved state is of another agent: it has {sorted(state)}")
        vars(self).update({name: value.copy() for name, value in state.items()})


class EpsilonGreedyRule(Estimates):
    """The best arm so far, sometimes a random one (section 2.2)."""

    def __init__(self, config: EpsilonGreedyConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        self.values[:] = config.initial_value

    def choose(self, cell: Cell, now: EpsilonGreedyConfig, random: np.random.Generator) -> Array:
        """The best estimate, or any arm."""
        best = any_best(self.values[cell], random)
        other = random.integers(self.values.shape[-1], size=len(best))
        return np.where(random.random(len(best)) < now.epsilon, other, best)

    def probabilities(self, values: Array, now: EpsilonGreedyConfig) -> Array:
        """Of the arms, by rows of `values` [N, K]."""
        return greedy_probabilities(values, now.epsilon)

    def learn(self, cell: Cell, arm: Array, reward: Array, now: EpsilonGreedyConfig) -> None:
        """Section 2.4 (averages) or 2.5 (constant steps)."""
        self.average(cell, arm, reward, now.step_size)


class UCBRule(Estimates):
    """The arm with the highest upper confidence bound (section 2.7)."""

    def choose(self, cell: Cell, now: UCBConfig, random: np.random.Generator) -> Array:
        """The highest upper confidence bound."""
        return any_best(upper_bound(self.values[cell], self.counts[cell], now.c), random)

    def learn(self, cell: Cell, arm: Array, reward: Array, now: UCBConfig) -> None:
        """As the epsilon-greedy agent."""
        self.average(cell, arm, reward, now.step_size)


class GradientRule(Estimates):
    """A softmax over learned preferences, which `values` are (section 2.8)."""

    def __init__(self, config: GradientBanditConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        self.average_reward = np.zeros(shape[:2])  # in every context [N, C]

    def choose(self, cell: Cell, now: GradientBanditConfig, random: np.random.Generator) -> Array:
        """A sample from the softmax of the preferences."""
        reached = softmax(self.values[cell]).cumsum(axis=1)
        # A sum that is rounded to less than 1 must not leave room for an arm that does not exist.
        drawn = random.random((len(reached), 1)) * reached[:, -1:]
        return np.asarray((reached <= drawn).sum(axis=1))

    def probabilities(self, values: Array, now: GradientBanditConfig) -> Array:
        """Of the arms, by rows of `values` [N, K]."""
        return softmax(values)

    def learn(self, cell: Cell, arm: Array, reward: Array, now: GradientBanditConfig) -> None:
        """The baseline is the average before this reward; for the first one it is that reward."""
        pulls = self.counts[cell].sum(axis=1)
        before = np.where(pulls == 1, reward, self.average_reward[cell])
        advantage = reward - before if now.baseline else reward
        self.values[cell] = preference_step(self.values[cell], arm, advantage, now.step_size)
        self.average_reward[cell] += (reward - self.average_reward[cell]) / pulls


class ThompsonRule(Estimates):
    """The best arm of a bandit drawn from the posterior; `values` are posterior means."""

    def __init__(self, config: ThompsonConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        self.averages = np.zeros_like(self.values)
        self.squares = np.zeros_like(self.values)  # sums of squared distances from the averages
        self.values[:] = self.expected(tuple(np.indices(shape)), at(config, 0))

    def expected(self, place: Cell, now: ThompsonConfig) -> Array:
        """What arms pay by the posterior mean."""
        count, mean = self.counts[place], self.averages[place]
        if now.model == "beta":
            return np.asarray((1.0 + count * mean) / (2.0 + count))
        if now.noise_std is None:
            return posterior_unknown_noise(mean, count, self.squares[place], now)[0]
        return posterior(mean, count, now)[0]

    def choose(self, cell: Cell, now: ThompsonConfig, random: np.random.Generator) -> Array:
        """The best arm of one bandit drawn from the posterior."""
        count, mean = self.counts[cell], self.averages[cell]
        if now.model == "beta":
            return any_best(random.beta(1 + count * mean, 1 + count * (1 - mean)), random)
        noise = random.standard_normal(mean.shape)
        if now.noise_std is not None:
            center, deviation = posterior(mean, count, now)
            return any_best(center + deviation * noise, random)
        known = posterior_unknown_noise(mean, count, self.squares[cell], now)
        center, weight, shape, scale = known
        variance = scale / random.standard_gamma(shape)
        return any_best(center + np.sqrt(variance / weight) * noise, random)

    def learn(self, cell: Cell, arm: Array, reward: Array, now: ThompsonConfig) -> None:
        """Count, average and squared distances are all that the posteriors need."""
        if now.model == "beta" and not np.isin(reward, (0.0, 1.0)).all():
            raise UserError(
                "algorithm.model=beta learns from rewards of 0 and 1 only: use gaussian, "
                "or environment.kwargs.rewards=bernoulli"
            )
        place = (*cell, arm)
        distance = reward - self.averages[place]
        self.averages[place] += distance / self.counts[place]
        self.squares[place] += distance * (reward - self.averages[place])
        self.values[place] = self.expected(place, now)


RULES: Mapping[type, type[Estimates]] = {
    EpsilonGreedyConfig: EpsilonGreedyRule,
    UCBConfig: UCBRule,
    GradientBanditConfig: GradientRule,
    ThompsonConfig: ThompsonRule,
}

# -------------------------------------------------------------------- algorithms


class BanditAgent(Algorithm):
    """An agent for each environment, whose config names the rule by which it chooses and learns."""

    actions: ClassVar[str] = "discrete"
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    uses_network: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    learned: ClassVar[tuple[str, ...]] = ("rule",)
    old_names: ClassVar[Mapping[str, str]] = {
        f"rule.{name}": f"{VALUES}.{name}"
        for name in ("values", "counts", "average_reward", "averages", "squares")
    }
    config: BanditConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Make the tables [N, C, K]."""
        super().initialize(context)
        self.collect_steps = self.config.rollout_steps
        shown, arms = context.spec.observation, context.spec.action
        if not isinstance(shown, Discrete) or not isinstance(arms, Discrete):
            raise UserError(
                "a bandit agent needs Discrete observations (its contexts) and Discrete actions "
                f"(its arms), these are {type(shown).__name__} and {type(arms).__name__}"
            )
        shape = (context.train_environment.num_envs, shown.n, arms.n)
        if shape[0] * shape[1] * shape[2] > MOST_CELLS:
            raise UserError(f"{shape[0]} agents for {shape[1]} contexts need too large a table")
        rule = next(rule for config, rule in RULES.items() if isinstance(self.config, config))
        self.rule = rule(self.config, shape)
        self.step = 0  # of the run, when the agents last acted
        self.action_rng = context.rng.numpy("actions")

    @property
    def now(self) -> BanditConfig:
        """The hyperparameters of this step of the run."""
        return at(self.config, self.step)

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """One pull each."""
        self.step = step
        return super().collect_step(step, phase=phase)

    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """Explore; deterministic: the first of the best arms by what is known."""
        context: Array = obs.cpu().numpy()
        values = self.rule.values
        cell = (np.arange(len(context)) % len(values), context)
        if deterministic:
            return Action(values[cell].argmax(axis=1))
        return Action(self.rule.choose(cell, self.now, self.action_rng))

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """The pulls [T, N], in time order."""
        counts, now = self.rule.counts, self.now
        agents = np.arange(len(counts))
        context, arm, reward = (batch[name].cpu().numpy() for name in (OBS, ACTION, REWARD))
        for row in range(len(reward)):
            cell = (agents, context[row])
            counts[(*cell, arm[row])] += 1
            self.rule.learn(cell, arm[row], reward[row].astype(np.float64), now)
        return {
            "reward": float(reward.mean()),
            "untried_share": float((counts == 0).mean()),
            **self.described((agents, context), now),
        }

    def described(self, cell: Cell, now: BanditConfig) -> Metrics:
        """Where `cell` was met: how arms differ, how evenly they were pulled, and the policy."""
        arms = self.rule.values.shape[-1]
        values = self.rule.values[cell].reshape(-1, arms)
        counts = self.rule.counts[cell].reshape(-1, arms)
        found = {
            "q_spread": float(np.ptp(values, axis=1).mean()),
            "choice_entropy": float(entropy(counts / counts.sum(axis=1, keepdims=True)).mean()),
        }
        probabilities = self.rule.probabilities(values, now)
        if probabilities is None:
            return found
        return {**found, "entropy": float(entropy(probabilities).mean())}


def _agent(doc: str, config: type) -> Version:
    return Version(BanditAgent, doc, config=config, phases=[], defaults={})


EpsilonGreedy = _agent(
    "Epsilon-greedy bandit: the best arm so far, sometimes a random one (section 2.2).",
    EpsilonGreedyConfig,
)
UCB = _agent(
    "UCB bandit: the arm with the highest upper confidence bound (section 2.7).", UCBConfig
)
GradientBandit = _agent(
    "Gradient bandit: softmax over learned preferences, which `values` are (section 2.8).",
    GradientBanditConfig,
)
Thompson = _agent(
    "Thompson sampling bandit: posterior sampling (Russo et al. 2018, arXiv:1707.02038).",
    ThompsonConfig,
)
