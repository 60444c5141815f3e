"""What every contestant of `python -m benchmarks.peers` is given, and what each gives back."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

WARM_UP = 3  # rollouts before the clock of the steady state starts: imports, caches, compilers
EPISODES = 100  # returns are means over this many episodes, or fewer if there are fewer
JUDGED = 20  # episodes of one evaluation on the way to a return, in as many environments
IN_A_ROW = 2  # evaluations that must reach it: a single one may be luck


@dataclass(frozen=True, kw_only=True)
class Settings:
    """PPO with a 2 x 64 tanh actor and a separate critic of the same size; Adam with eps 1e-5.

    With a memory of 64 numbers before each of the two, if there is one.
    """

    env: str = "CartPole-v1"  # unless another one is asked for
    num_envs: int = 8
    rollout_steps: int
    batch_size: int
    epochs: int
    gamma: float
    gae_lambda: float
    learning_rate: float
    clip_range: float = 0.2
    decay: bool  # learning rate and clip range fall linearly to 0 over the run
    entropy_coefficient: float = 0.0
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    hidden: int = 64
    algorithm: str = "ppo"
    warm_up: int = WARM_UP
    memory: str = "none"
    sequence_length: int | None = None  # ours: steps that gradients flow through; None: the rollout

    @property
    def rows(self) -> int:
        """Environment steps of one rollout."""
        return self.num_envs * self.rollout_steps


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """DQN or SAC with a uniform buffer, one environment and ReLU layers."""

    algorithm: str  # dqn or sac
    env: str
    num_envs: int = 1
    train_every: int  # environment steps between updates: what is a rollout for the clock
    gradient_steps: int  # of each update
    batch_size: int
    capacity: int
    learning_starts: int
    gamma: float = 0.99
    learning_rate: float
    target_every: int  # gradient steps between two moves of the target
    target_rate: float
    explored: float = 1.0  # dqn: share of the run over which epsilon falls from 1
    epsilon: float = 0.0  # dqn: to this
    hidden: tuple[int, int]
    memory: str = "none"

    @property
    def rows(self) -> int:
        """Environment steps from one update to the next."""
        return self.train_every

    @property
    def warm_up(self) -> int:
        """Rollouts that are not counted: nothing is learned in most of them."""
        return self.learning_starts // self.train_every + WARM_UP


SETTINGS: dict[str, Settings | ReplaySettings] = {
    "matched": Settings(
        rollout_steps=128,
        batch_size=256,
        epochs=4,
        gamma=0.99,
        gae_lambda=0.95,
        learning_rate=2.5e-4,
        decay=False,
        entropy_coefficient=0.01,  # with 0, our loss leaves out what peers compute
    ),
    "zoo": Settings(
        rollout_steps=32,
        batch_size=256,
        epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=1e-3,
        decay=True,
    ),
    "lstm": Settings(
        rollout_steps=128,
        batch_size=256,
        epochs=4,
        gamma=0.99,
        gae_lambda=0.95,
        learning_rate=2.5e-4,
        decay=False,
        entropy_coefficient=0.01,
        memory="lstm",
    ),
    "gru": Settings(  # theirs is an LSTM: nobody else has another memory
        rollout_steps=128,
        batch_size=256,
        epochs=4,
        gamma=0.99,
        gae_lambda=0.95,
        learning_rate=2.5e-4,
        decay=False,
        entropy_coefficient=0.01,
        memory="gru",
    ),
    "lstm_32": Settings(
        rollout_steps=128,
        batch_size=256,
        epochs=4,
        gamma=0.99,
        gae_lambda=0.95,
        learning_rate=2.5e-4,
        decay=False,
        entropy_coefficient=0.01,
        memory="lstm",
        sequence_length=32,
    ),
    "quick": Settings(  # many environments and few, large minibatches: the least time to learn it
        num_envs=128,
        rollout_steps=32,
        batch_size=1024,
        epochs=6,
        gamma=0.98,
        gae_lambda=0.9,
        learning_rate=3e-3,
        decay=False,
    ),
    "halfcheetah": Settings(
        env="HalfCheetah-v5",
        rollout_steps=256,
        batch_size=64,
        epochs=10,
        gamma=0.99,
        gae_lambda=0.95,
        learning_rate=3e-4,
        decay=False,
    ),
    "dqn": ReplaySettings(  # CleanRL's
        algorithm="dqn",
        env="CartPole-v1",
        train_every=10,
        gradient_steps=1,
        batch_size=128,
        capacity=10_000,
        learning_starts=10_000,
        learning_rate=2.5e-4,
        target_every=50,
        target_rate=1.0,
        explored=0.5,
        epsilon=0.05,
        hidden=(120, 84),
    ),
    "dqn_zoo": ReplaySettings(  # those that RL Baselines3 Zoo tuned
        algorithm="dqn",
        env="CartPole-v1",
        train_every=256,
        gradient_steps=128,
        batch_size=64,
        capacity=100_000,
        learning_starts=1_000,
        learning_rate=2.3e-3,
        target_every=128,
        target_rate=1.0,
        explored=0.16,
        epsilon=0.04,
        hidden=(256, 256),
    ),
    "sac": ReplaySettings(
        algorithm="sac",
        env="Pendulum-v1",
        train_every=1,
        gradient_steps=1,
        batch_size=256,
        capacity=1_000_000,
        learning_starts=100,
        learning_rate=3e-4,
        target_every=1,
        target_rate=0.005,
        hidden=(256, 256),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training that is timed, in a process of its own."""

    env: str
    settings: str
    rollouts: int
    seed: int = 0
    compile: bool = False
    threads: int = 1  # and cores
    until: float | None = None  # stop where evaluations reach this return
    every: int = 0  # environment steps between these evaluations
    script: str | None = None  # of CleanRL, if it takes part
    cpu: bool = False  # seconds of this process, not of the clock on the wall

    @property
    def values(self) -> Any:
        """The settings by their name."""
        return SETTINGS[self.settings]

    @property
    def steps(self) -> int:
        """Environment steps of the whole training."""
        return self.rollouts * self.values.rows


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What one training was like."""

    steps_per_second: float  # steady state
    first_return: float  # mean of the episodes of the first rollout that finished any
    first_spread: float  # their standard deviation
    last_return: float  # mean of the last episodes
    steps: int = 0  # environment steps that were taken
    reached: bool = False  # the return that was asked for, in evaluations in a row

    @property
    def learned(self) -> bool:
        """The last episodes are better than the first by more than luck."""
        return self.last_return > self.first_return + self.first_spread


@dataclass
class Clock:
    """Looked at after every rollout and its update; everyone is timed by the same rule."""

    job: Job
    times: list[float] = field(default_factory=list)
    first: tuple[float, float] | None = None  # mean and deviation of the first finished episodes
    scores: list[float] = field(default_factory=list)  # of the evaluations

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return len(self.times) * self.job.values.rows

    def rollout_done(self, returns: Sequence[float]) -> None:
        """A rollout was collected and learned from; `returns` of the last finished episodes."""
        self.times.append(time.process_time() if self.job.cpu else time.perf_counter())
        if self.first is None and returns:
            self.first = fmean(returns), pstdev(returns)

    def reached(self, evaluate: Callable[[], float]) -> bool:
        """After a rollout: evaluate if it is time, and tell whether the training may end."""
        before = self.steps - self.job.values.rows
        if self.job.until is None or self.steps // self.job.every == before // self.job.every:
            return False
        self.scores.append(evaluate())
        return self.sustained

    @property
    def sustained(self) -> bool:
        """The last evaluations in a row have all reached the return that is asked for."""
        last, goal = self.scores[-IN_A_ROW:], self.job.until
        return goal is not None and len(last) == IN_A_ROW and min(last) >= goal

    def result(self, returns: Sequence[float]) -> Timed:
        """After the last rollout: the steady state, and how well it plays."""
        whole = len(self.times) == self.job.rollouts
        assert whole or self.sustained, (len(self.times), self.job.rollouts)
        mean, deviation = self.first or (float("nan"), float("nan"))
        skipped = min(self.job.values.warm_up, len(self.times) - 1)
        counted = len(self.times) - skipped
        return Timed(
            steps_per_second=counted
            * self.job.values.rows
            / (self.times[-1] - self.times[skipped - 1]),
            first_return=mean,
            first_spread=deviation,
            last_return=fmean(returns) if returns else float("nan"),
            steps=self.steps,
            reached=self.sustained,
        )
