"""Bandits: k arms, one pull per step, and nothing that a pull changes but the clock.

`Arms` is N bandits at once. `BanditVector` makes a vector of them, which is what a testbed of a
thousand bandits needs; `Bandit` makes a Gymnasium environment of one, for wrappers and for users.
The expected rewards of the arms are returned beside the transition, as measures that are logged and
that no agent sees.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rl_lab.core.batch import Array, Step
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.core.spec import Discrete, EnvSpec
from rl_lab.envs import snapshot
from rl_lab.envs.vector import Episodes, joint_seed

ID = "Bandit-v0"
Rewards = Literal["normal", "bernoulli"]


class Settings:
    """The arguments of the environment, checked."""

    def __init__(
        self,
        arms: int = 10,
        contexts: int = 1,
        means: object = None,
        stds: object = 1.0,
        rewards: Rewards = "normal",
        drift: float = 0.0,
        episode_length: int = 1000,
        redraw: bool = False,
    ) -> None:
        given = None if means is None else _numbers(means, "means")
        if given is not None:  # they say how many arms and contexts there are
            arms = given.shape[-1] if given.ndim else 0
            contexts = given.shape[0] if given.ndim == 2 else contexts
        for name, count, least in (
            ("arms", arms, 2),
            ("contexts", contexts, 1),
            ("episode_length", episode_length, 1),
        ):
            if isinstance(count, bool) or not isinstance(count, int) or count < least:
                raise UserError(f"{ID}: {name} must be a whole number from {least} on, got {count}")
        if rewards not in ("normal", "bernoulli"):
            raise UserError(f"{ID}: rewards must be normal or bernoulli, got {rewards!r}")
        self.arms, self.contexts, self.episode_length = arms, contexts, episode_length
        self.binary, self.redraw = rewards == "bernoulli", bool(redraw)
        self.means = None if given is None else _table(given, "means", contexts, arms)
        self.stds = _table(_numbers(stds, "stds"), "stds", contexts, arms)
        self.drift = float(_table(_numbers(drift, "drift"), "drift", 1, 1).item())
        if self.stds.min() < 0 or self.drift < 0:
            raise UserError(f"{ID}: stds and drift must not be negative")
        if self.binary and given is not None and (given.min() < 0 or given.max() > 1):
            raise UserError(f"{ID}: with rewards=bernoulli, means are probabilities within [0, 1]")


def make_settings(arguments: Mapping[str, Any]) -> Settings:
    """Of `environment.kwargs`; an unknown argument is an error that names the nearest one."""
    known = inspect.signature(Settings).parameters
    for name in arguments:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UserError(f"{ID}: unknown argument environment.kwargs.{name}{hint}")
    return Settings(**arguments)


class Arms:
    """N bandits: what their arms pay on average, and in which context each of them is."""

    def __init__(self, count: int, settings: Settings) -> None:
        self.settings = settings
        self.rows = np.arange(count)
        self.means = np.zeros((count, settings.contexts, settings.arms))
        self.context = np.zeros(count, np.int64)
        self.elapsed = np.zeros(count, np.int64)

    def draw(self, random: np.random.Generator, which: Array) -> None:
        """New bandits in the rows `which`: the given means, or ones drawn from N(0, 1)."""
        settings, shape = self.settings, (len(which), *self.means.shape[1:])
        if settings.means is not None:
            self.means[which] = settings.means
        elif settings.binary:
            self.means[which] = random.random(shape)
        else:
            self.means[which] = random.standard_normal(shape)

    def begin(self, random: np.random.Generator, which: Array) -> None:
        """An episode begins in the rows `which`; the bandits stay, unless `redraw`."""
        if self.settings.redraw:
            self.draw(random, which)
        self.elapsed[which] = 0
        self.show(random, which)

    def show(self, random: np.random.Generator, which: Array) -> None:
        """The next context of the rows `which`."""
        if self.settings.contexts > 1:
            self.context[which] = random.integers(self.settings.contexts, size=len(which))

    def pull(self, random: np.random.Generator, arm: Array) -> tuple[Array, dict[str, Array]]:
        """One arm each: rewards [N], and how good the choice was. Then the means drift."""
        settings = self.settings
        here = self.means[self.rows, self.context]  # [N, K]
        mean, best = here[self.rows, arm], here.max(axis=1)
        if settings.binary:
            reward = (random.random(len(mean)) < mean).astype(np.float64)
        else:
            noise = random.standard_normal(len(mean))
            reward = mean + settings.stds[self.context, arm] * noise
        if settings.drift:
            self.means += settings.drift * random.standard_normal(self.means.shape)
            if settings.binary:
                np.clip(self.means, 0.0, 1.0, out=self.means)
        self.elapsed += 1
        # By the true means: the regret has no noise.
        right = (mean == best).astype(np.float64)
        return reward, {"reward": reward, "regret": best - mean, "optimal": right}


class BanditVector:
    """N bandits stepped together. All share one generator, seeded by all seeds jointly.

    The bandits are drawn when the vector is seeded; later episodes meet the same ones.
    """

    snapshot_level = "E0"

    def __init__(
        self, seeds: Sequence[int], max_steps: int | None = None, **arguments: object
    ) -> None:
        if not seeds:
            raise ValueError("a vector needs at least one seed")
        self.settings = make_settings(arguments)
        self.num_envs = len(seeds)
        self.max_steps = max_steps
        self.spec = EnvSpec(
            id=ID,
            observation=Discrete(self.settings.contexts),
            action=Discrete(self.settings.arms),
            max_episode_steps=max_steps or self.settings.episode_length,
        )
        self.arms = Arms(self.num_envs, self.settings)
        self._episodes = Episodes(seeds)
        self._random = np.random.Generator(np.random.PCG64())

    def reset(self, seeds: Sequence[int] | None = None) -> Array:
        """Reset every environment; with seeds, and the first time, with new bandits."""
        seed = joint_seed(self._episodes.start(seeds))
        if seed is not None:
            self._random = np.random.Generator(np.random.PCG64(seed))
            self.arms.draw(self._random, self.arms.rows)
        self.arms.begin(self._random, self.arms.rows)
        return self.arms.context.copy()

    def step(self, action: Array) -> Step:
        """One pull per bandit; ended episodes are already reset in `Step.obs`."""
        self._episodes.require_started()
        arms = self.arms
        arm = np.asarray(action, np.int64).reshape(self.num_envs)
        if arm.min() < 0 or arm.max() >= self.settings.arms:
            raise ValueError(f"actions of '{ID}' are 0 … {self.settings.arms - 1}, got {arm}")
        reward, measures = arms.pull(self._random, arm)
        terminated = arms.elapsed >= self.settings.episode_length
        truncated = np.zeros_like(terminated)
        if self.max_steps is not None:
            truncated = (arms.elapsed >= self.max_steps) & ~terminated
        arms.show(self._random, arms.rows)
        obs = next_obs = arms.context.copy()
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            arms.begin(self._random, ended)
            self._episodes.resets += len(ended)
            obs = arms.context.copy()
        return Step(obs, reward, terminated, truncated, next_obs, measures=measures)

    def close(self) -> None:
        """Nothing is held."""

    def state_dict(self) -> dict[str, Any]:
        """What the arms pay, where every episode stands, and the place in the random numbers."""
        return self._episodes.state_dict() | {
            "means": self.arms.means.copy(),
            "context": self.arms.context.copy(),
            "elapsed": self.arms.elapsed.copy(),
            "random": snapshot.generator_state(self._random),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the saved vector stood."""
        if state["means"].shape != self.arms.means.shape:
            raise UserError(f"state of {len(state['means'])} envs cannot fill {self.num_envs}")
        self._episodes.load_state_dict(state)
        for name in ("means", "context", "elapsed"):
            setattr(self.arms, name, state[name].copy())
        self._random.bit_generator.state = state["random"]


class Bandit(gym.Env[np.int64, np.int64]):
    """One bandit. `means` gives the arms, or they are drawn from N(0, 1) when it is seeded.

    `means` and `stds` are one number per arm, or such a list per context. An episode is
    `episode_length` pulls and then terminates; `drift` is the deviation of the means' random walk.
    """

    measures = ("reward", "regret", "optimal")

    def __init__(self, render_mode: str | None = None, **arguments: object) -> None:
        self.render_mode = render_mode
        self.arms = Arms(1, make_settings(arguments))
        self.drawn = False
        self.observation_space = gym.spaces.Discrete(self.arms.settings.contexts)
        self.action_space = gym.spaces.Discrete(self.arms.settings.arms)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """The next episode; with a seed, and the first time, of a new bandit."""
        super().reset(seed=seed)
        if seed is not None or not self.drawn:
            self.arms.draw(self.np_random, self.arms.rows)
            self.drawn = True
        self.arms.begin(self.np_random, self.arms.rows)
        return np.int64(self.arms.context[0]), {}

    def step(self, action: int | np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """One pull; the measures are in the last dict."""
        if not self.action_space.contains(action):
            raise ValueError(f"actions of '{ID}' are {self.action_space}, got {action}")
        arms = self.arms
        reward, measures = arms.pull(self.np_random, np.array([action]))
        arms.show(self.np_random, arms.rows)
        over = bool(arms.elapsed[0] >= arms.settings.episode_length)
        info = {name: float(value[0]) for name, value in measures.items()}
        return np.int64(arms.context[0]), float(reward[0]), over, False, info


def _numbers(value: object, name: str) -> Array:
    try:
        numbers = np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{ID}: {name} must be numbers, got {value!r}") from error
    if not np.isfinite(numbers).all():
        raise UserError(f"{ID}: {name} must be finite, got {value!r}")
    return numbers


def _table(numbers: Array, name: str, contexts: int, arms: int) -> Array:
    """One number for each arm in each context, [C, K]."""
    try:
        return np.broadcast_to(numbers, (contexts, arms)).copy()
    except ValueError as error:
        wanted = f"{arms} numbers, or {contexts} lists of {arms}"
        raise UserError(f"{ID}: {name} must be {wanted}, got {numbers.tolist()}") from error
