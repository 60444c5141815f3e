"""Tabular Q-learning and SARSA (Sutton & Barto 2018, chapter 6): one number per state and action.

Reads top to bottom: config, targets, table, algorithms. Double Q-learning (van Hasselt 2010) keeps
two tables; Expected SARSA (section 6.6) averages over the next action instead of waiting for it.
Departures: the transitions of several environments go into the same table, one after the other in
time order; an episode that was cut short is bootstrapped from where it stopped, by Q-learning as
ever, by SARSA with the mean over the action that it would have taken next.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from rl_lab.algorithms.base import VALUES, Algorithm, Optimized, Roles
from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Action,
    Array,
    Batch,
    CollectResult,
    Metrics,
    Obs,
)
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Phase
from rl_lab.core.schedule import at
from rl_lab.core.schema import AlgorithmConfig, RunConfig
from rl_lab.core.spec import Discrete, EnvSpec, MultiDiscrete, Observation, Space

MOST_CELLS = 100_000_000  # of a table: 800 MB, and as much for the visits


@dataclass(frozen=True, kw_only=True)
class TabularConfig(AlgorithmConfig):
    """What the tabular methods share. Any float may be a schedule."""

    rollout_steps: int = option(
        1, "vector steps between updates; 1 learns from every step at once", low=1
    )
    gamma: float = option(0.99, "discount factor", low=0, high=1)
    epsilon: float = option(0.1, "probability of a random action", low=0, high=1)
    learning_rate: float = option(0.1, "step size", low=0, high=1)
    step_size: Literal["constant", "visits"] = option(
        "constant", "visits: learning_rate / visits^step_power, counted per state and action"
    )
    step_power: float = option(
        1.0, "visits: how fast step sizes fall; 1 with a rate of 1 averages", low=0
    )
    initial_value: float = option(
        0.0, "what the table begins with; a high one makes it explore", fixed=True
    )

    def check(self, run: RunConfig) -> list[str]:
        """A table is indexed by what the environment shows, and learns the rewards it pays."""
        ignored = ("normalize_obs", "normalize_reward")
        return [
            f"a table has no use for environment.{name}: leave it out"
            for name in ignored
            if getattr(run.environment, name)
        ]


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(TabularConfig):
    """Q-learning: the best next action counts, whatever is done."""

    double: bool = option(
        False,
        "double Q-learning: two tables, each evaluates the other's choice (no maximization bias)",
    )


@dataclass(frozen=True, kw_only=True)
class SarsaConfig(TabularConfig):
    """SARSA: the next action that is really taken counts."""

    expected: bool = option(False, "the mean over the next action instead of the one taken")


# ---------------------------------------------------------------------- targets


def expected_value(values: Array, epsilon: float) -> float:
    """What the epsilon-greedy policy gets on average from action values [A]."""
    return float(epsilon * values.mean() + (1.0 - epsilon) * values.max())


def double_value(tables: Array, which: int, state: int) -> float:
    """The best action by one of two tables [2, S, A], as the other one values it."""
    return float(tables[1 - which, state, tables[which, state].argmax()])


def epsilon_greedy(values: Array, epsilon: float, random: np.random.Generator) -> Array:
    """An action for each row of values [N, A]; of equally good ones any."""
    best = values == values.max(axis=1, keepdims=True)
    # The largest of equally distributed numbers: any of the best, or any at all.
    draws = random.random(values.shape)
    explore = random.random(len(values)) < epsilon
    return np.where(best | explore[:, None], draws, -1.0).argmax(axis=1)


def policy_entropy(values: Array, epsilon: float) -> Array:
    """Of the epsilon-greedy policy on each row of values [N, A], in nats."""
    best = values == values.max(axis=1, keepdims=True)
    share = epsilon / values.shape[1] + (1.0 - epsilon) * best / best.sum(axis=1, keepdims=True)
    return -np.sum(share * np.log(np.where(share > 0, share, 1.0)), axis=1)


def state_count(space: Observation, action: Space) -> int:
    """How many states a table has, or why there can be none."""
    if not isinstance(space, Discrete | MultiDiscrete):
        raise UserError(
            f"a table needs Discrete observations, these are {type(space).__name__}: "
            "environment.wrappers=[{id: DiscretizeObservation, bins: 10}] makes cells of a Box"
        )
    if not isinstance(action, Discrete):
        raise UserError(f"a table needs Discrete actions, these are {type(action).__name__}")
    count = space.n if isinstance(space, Discrete) else _product(space.nvec)
    if count * action.n > MOST_CELLS:
        raise UserError(
            f"a table of {count} states x {action.n} actions is too large: "
            f"{MOST_CELLS} cells are the most (fewer bins?)"
        )
    return count


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:  # Python integers do not overflow
        total *= size
    return total


# ------------------------------------------------------------------------ table


class ActionTable:
    """Action values by state, acted on epsilon-greedily: what both algorithms hold.

    Attributes:
        tables: Values [K, S, A] of K tables, S states and A actions.
        visits: How often each was moved [K, S, A].
    """

    def __init__(self, config: TabularConfig, spec: EnvSpec, count: int = 1) -> None:
        self.space = spec.observation
        states = state_count(spec.observation, spec.action)
        assert isinstance(spec.action, Discrete)
        shape = (count, states, spec.action.n)
        self.tables = np.full(shape, config.initial_value, np.float64)
        self.visits = np.zeros(shape, np.int64)

    def state_dict(self) -> dict[str, Array]:
        """Values and visits."""
        return {"tables": self.tables, "visits": self.visits}

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Copies of the arrays of a state."""
        self.tables, self.visits = state["tables"].copy(), state["visits"].copy()

    def states(self, obs: Obs) -> Array:
        """Rows of the table for observations [..., N]; of several indices the last counts fast."""
        indices: Array = obs.cpu().numpy()
        if isinstance(self.space, MultiDiscrete):
            by_index = tuple(np.moveaxis(indices, -1, 0))
            return np.asarray(np.ravel_multi_index(by_index, self.space.nvec))
        return indices

    def values(self, obs: Obs) -> Array:
        """Action values [N, A], means over the tables."""
        return np.asarray(self.tables[:, self.states(obs)].mean(axis=0))

    def act(
        self, obs: Obs, epsilon: float, random: np.random.Generator, *, deterministic: bool
    ) -> Action:
        """Epsilon-greedy; deterministic: the first of the best."""
        values = self.values(obs)
        if deterministic:
            return Action(values.argmax(axis=1))
        return Action(epsilon_greedy(values, epsilon, random))

    def describe(self, obs: Obs) -> Mapping[str, Tensor]:
        """The value of each action, and of the best one."""
        values = torch.from_numpy(self.values(obs))
        return {"q_values": values, "value": values.amax(-1)}

    def rows(self, batch: Batch) -> dict[str, Array]:
        """A rollout [T, N] in numpy, with states instead of observations."""
        plain = (ACTION, REWARD, TERMINATED, TRUNCATED, RESET)
        rows = {name: batch[name].cpu().numpy() for name in plain}
        return rows | {name: self.states(batch[name]) for name in (OBS, NEXT_OBS)}

    def learn(
        self, now: TabularConfig, state: int, action: int, target: float, which: int = 0
    ) -> float:
        """Move one cell towards its target; returns the TD error before that."""
        cell = (which, state, action)
        self.visits[cell] += 1
        rate = now.learning_rate
        if now.step_size == "visits":
            rate /= float(self.visits[cell]) ** now.step_power
        error = target - float(self.tables[cell])
        self.tables[cell] += rate * error
        return error

    def metrics(self, now: TabularConfig, errors: list[float], states: Array) -> Metrics:
        """TD errors of a rollout, and the policy in the states that were visited."""
        size = float(np.mean(np.abs(errors))) if errors else 0.0
        values = self.tables[:, np.unique(states)].mean(axis=0)
        return {
            "td_error": size,
            "q_max": float(values.max(axis=1).mean()),
            "q_spread": float(np.ptp(values, axis=1).mean()),
            "entropy": float(policy_entropy(values, now.epsilon).mean()),
            "epsilon": now.epsilon,
            "learning_rate": now.learning_rate,
            "visited_share": float((self.visits > 0).mean()),
        }


OLD_NAMES = {f"table.{name}": f"{VALUES}.{name}" for name in ("tables", "visits")}

# -------------------------------------------------------------------- algorithms


class QLearning(Algorithm):
    """Tabular Q-learning: off-policy TD control; learns the values of the greedy policy."""

    Config: ClassVar[type | None] = QLearningConfig
    actions: ClassVar[str] = "discrete"
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    uses_network: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    learned: ClassVar[tuple[str, ...]] = ("table",)
    old_names: ClassVar[Mapping[str, str]] = OLD_NAMES
    config: QLearningConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Make the table, or two of them for double Q-learning."""
        super().initialize(context)
        self.collect_steps = self.config.rollout_steps
        self.table = ActionTable(self.config, context.spec, 1 + self.config.double)
        self.epsilon = at(self.config, 0).epsilon
        self.action_rng = context.rng.numpy("actions")
        self.coin_rng = context.rng.numpy("tables")

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Interact with the epsilon of this step."""
        self.epsilon = at(self.config, step).epsilon
        return super().collect_step(step, phase=phase)

    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """Epsilon-greedy; deterministic: the first of the best."""
        return self.table.act(obs, self.epsilon, self.action_rng, deterministic=deterministic)

    def describe(self, obs: Obs, state: object) -> Mapping[str, Tensor]:
        """The value of each action, and of the best one."""
        return self.table.describe(obs)

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Every transition of a rollout [T, N], in time order."""
        now, rows, errors = at(self.config, phase["step"]), self.table.rows(batch), []
        tables, shape = self.table.tables, rows[REWARD].shape
        coins = self.coin_rng.integers(2, size=shape) if now.double else np.zeros(shape, np.int64)
        for place in np.ndindex(shape):
            which, next_state = int(coins[place]), int(rows[NEXT_OBS][place])
            target = float(rows[REWARD][place])
            if not rows[TERMINATED][place]:
                future = (
                    double_value(tables, which, next_state)
                    if now.double
                    else float(tables[0, next_state].max())
                )
                target += now.gamma * future
            state, action = int(rows[OBS][place]), int(rows[ACTION][place])
            errors.append(self.table.learn(now, state, action, target, which))
        return self.table.metrics(now, errors, rows[OBS])


class Sarsa(Algorithm):
    """Tabular SARSA: on-policy TD control; learns the values of the policy that acts.

    A transition waits until the action after it is known, also beyond the end of a rollout.
    """

    Config: ClassVar[type | None] = SarsaConfig
    actions: ClassVar[str] = "discrete"
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    uses_network: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    learned: ClassVar[tuple[str, ...]] = ("table",)
    old_names: ClassVar[Mapping[str, str]] = OLD_NAMES
    config: SarsaConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Make the table, and room for one transition of each environment that waits."""
        super().initialize(context)
        self.collect_steps = self.config.rollout_steps
        self.table = ActionTable(self.config, context.spec)
        self.epsilon = at(self.config, 0).epsilon
        self.action_rng = context.rng.numpy("actions")
        count = context.train_environment.num_envs
        self.waits = np.zeros(count, np.bool_)
        self.waiting_from = np.zeros(count, np.int64)  # its state
        self.waiting_action = np.zeros(count, np.int64)
        self.waiting_reward = np.zeros(count, np.float64)
        self.waiting_at = np.zeros(count, np.int64)  # its next state

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Interact with the epsilon of this step."""
        self.epsilon = at(self.config, step).epsilon
        return super().collect_step(step, phase=phase)

    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """Epsilon-greedy; deterministic: the first of the best."""
        return self.table.act(obs, self.epsilon, self.action_rng, deterministic=deterministic)

    def describe(self, obs: Obs, state: object) -> Mapping[str, Tensor]:
        """The value of each action, and of the best one."""
        return self.table.describe(obs)

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Every transition whose next action is known, in time order."""
        now, rows, errors = at(self.config, phase["step"]), self.table.rows(batch), []
        for place in np.ndindex(rows[REWARD].shape):
            env = place[1]
            state, action = int(rows[OBS][place]), int(rows[ACTION][place])
            reward, next_state = float(rows[REWARD][place]), int(rows[NEXT_OBS][place])
            if self.waits[env]:
                # Whoever resumes where an environment could not be saved meets another episode.
                continues = not rows[RESET][place] and state == self.waiting_at[env]
                errors.append(self._learn_waiting(now, env, action if continues else None))
            if rows[TERMINATED][place]:
                errors.append(self.table.learn(now, state, action, reward))
                continue
            self.waits[env] = True
            self.waiting_from[env], self.waiting_action[env] = state, action
            self.waiting_reward[env], self.waiting_at[env] = reward, next_state
            if rows[TRUNCATED][place] or now.expected:
                errors.append(self._learn_waiting(now, env, None))
        return self.table.metrics(now, errors, rows[OBS])

    def _learn_waiting(self, now: SarsaConfig, env: int, next_action: int | None) -> float:
        """Learn from the waiting transition; without a next action, from the mean over it."""
        values = self.table.tables[0, self.waiting_at[env]]
        future = expected_value(values, now.epsilon) if next_action is None else values[next_action]
        target = float(self.waiting_reward[env] + now.gamma * future)
        self.waits[env] = False
        state, action = int(self.waiting_from[env]), int(self.waiting_action[env])
        return self.table.learn(now, state, action, target)
