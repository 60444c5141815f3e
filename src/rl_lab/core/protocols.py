"""The shapes that layers agree on without importing each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Generator, Tensor

from rl_lab.core.batch import Action, Array, Batch, CollectResult, Obs, Step
from rl_lab.core.schema import RunConfig
from rl_lab.core.seeding import Streams
from rl_lab.core.spec import EnvSpec
from rl_lab.core.state import Stateful

# name, type, progress in [0, 1], policy, buffer, and the extra keys of its YAML block;
# step: environment steps of the run when this cycle began, which is where schedules are read;
# env_steps and phase_steps: those of the run and of the phase so far
Phase = Mapping[str, Any]


class VectorEnv(Stateful, Protocol):
    """N environments behind one transition contract. Seeds are given when it is made."""

    num_envs: int
    spec: EnvSpec
    snapshot_level: str  # E0 state captured, E1 replayed, E3 reset on resume (inexact)

    def reset(self, seeds: Sequence[int] | None = None) -> Obs:
        """Reset every environment, with new seeds if given; the first observations [N, …]."""

    def step(self, action: Array) -> Step:
        """One decision per environment; ended episodes are already reset in `Step.obs`."""

    def close(self) -> None:
        """Free what the environments hold."""


class Buffer(Stateful, Protocol):
    """Where collected data waits for its updates."""

    def add(self, trajectory: Batch) -> None:
        """Store the trajectory of one collect call."""

    def ready(self) -> bool:
        """True when an update may run."""

    def sample(self) -> Batch:
        """The batch for one call of an update hook."""

    def done(self) -> None:
        """The cycle's updates are over: a rollout forgets its rows, a replay keeps them."""


@runtime_checkable
class Replay(Stateful, Protocol):
    """A buffer that stores transitions and samples them at random."""

    def __len__(self) -> int:
        """Transitions that it holds."""

    def sample(
        self, batch_size: int, count: int = 1, *, n_step: int = 1, beta: float = 1.0
    ) -> Batch:
        """`count` minibatches at once, [count, batch_size, …].

        With n_step > 1, REWARD is a window [count, batch_size, n_step] (zeros after its end), STEPS
        its real length, and NEXT_OBS, TERMINATED, TRUNCATED are those of the window's last row.
        Prioritized buffers add INDEX and WEIGHT, which `beta` shapes.
        """

    def reprioritize(self, index: Tensor, error: Tensor) -> None:
        """Set the priorities of rows from their |TD error|; no effect without priorities."""


@runtime_checkable
class Chunks(Stateful, Protocol):
    """A buffer that gives frames and the actions that were taken from them on.

    For policies that decide on several actions at once from the last few frames. All replay buffers
    are such buffers.
    """

    def ready(self) -> bool:
        """True once there is anything to sample."""

    def chunks(
        self, batch_size: int, past: int, future: int, count: int = 1, *, before: int = 0
    ) -> Batch:
        """`count` minibatches at once of random transitions, each equally likely.

        OBS [count, batch_size, past, …]: the frame in which the transition begins comes last.
        ACTION [count, batch_size, before + future, …]: what was done from that frame on, with the
        `before` actions that led to it. All of it is of one episode: what would lie before its
        beginning or after its end repeats its first or last row. MASK [count, batch_size, before +
        future] is False for such actions.
        """


@runtime_checkable
class Dataset(Replay, Protocol):
    """A replay buffer that never changes, so that it can be described."""

    def observation_statistics(self) -> Any:
        """`RunningMoments` over all frames, or one for each part: `mean`, `std`, `count`."""

    def action_range(self) -> tuple[Array, Array]:
        """The smallest and the largest number in each place of an action."""

    def episode_returns(self) -> Array:
        """Undiscounted returns of the episodes that were played to their end, in their order."""


@runtime_checkable
class Sequences(Stateful, Protocol):
    """A buffer that stores frames in their order and samples windows of them."""

    def ready(self, length: int = 1) -> bool:
        """True once there is a window of `length` frames."""

    def window_length(self, most: int) -> int:
        """`most` frames, or as many as the longest episode has."""

    def sequences(self, batch_size: int, length: int, count: int = 1) -> Batch:
        """Windows [count, length, batch_size, …] in arrival form: one row for every frame.

        OBS is the frame, PREVIOUS_ACTION and REWARD are how it was reached, RESET is True at the
        first frame of an episode, TERMINATED or TRUNCATED at the last one.
        """

    def newest(self, length: int) -> Batch | None:
        """The newest window of one episode, [length, 1, …] or shorter, if any. For pictures."""


@dataclass(frozen=True)
class BufferSetup:
    """What a buffer is made for, beside its own configuration."""

    spec: EnvSpec
    num_envs: int
    rng: np.random.Generator  # saved with the run's streams
    device: str = "cpu"
    others: Mapping[str, Any] = field(default_factory=dict)  # the buffers made before it, by name
    # goal-conditioned environments: (achieved [B, …], desired [B, …]) -> reward [B]
    goal_reward: Callable[[Array, Array], Array] | None = None
    latent_size: int = 0  # numbers of a recurrent state, if the algorithm can tell


class Act(Protocol):
    """A policy as the collector sees it."""

    def __call__(self, obs: Obs, state: Any, *, deterministic: bool) -> Action:
        """Decide for N environments."""


class Policy(NamedTuple):
    """A policy as a pure function of all it reads, for rollouts that are compiled whole."""

    decide: Callable[..., tuple[Tensor, dict[str, Tensor]]]  # (weights, obs, noise): action, extras
    weights: dict[str, Tensor]
    noise: Callable[[int], Tensor]  # the random numbers of that many vector steps, [T, N, …]


MakePolicy = Callable[[], Policy | None]


@runtime_checkable
class Simulator(Protocol):
    """A vector of environments whose step is a pure function of tensors."""

    state: Array
    elapsed: Array

    def advance(self, state: Tensor, elapsed: Tensor, action: Tensor, uniform: Tensor) -> Any:
        """One step: state, elapsed, obs, reward, terminated, truncated, next_obs."""

    def uniforms(self, count: int) -> Array:
        """The random numbers of the next `count` vector steps."""

    def move_to(self, state: Array, elapsed: Array) -> None:
        """Stand where a loop of `advance` ended."""


class Collector(Stateful, Protocol):
    """The only caller of `env.step` in training."""

    def collect(
        self,
        act: Act,
        *,
        steps: int,
        state: Any = None,
        policy: MakePolicy | None = None,
        arrays: bool = False,
    ) -> CollectResult:
        """`steps` rows of every environment, played with `act`; every row is a real transition.

        Rows are in the order of time and without gaps. Vectors that reset a step late may bring
        rows that an earlier call had no room for, and play more of them than the result has.
        `state` is what a memory starts an episode with, for N environments. `policy` makes `act`
        as a pure function, if there is one: the collector may use it instead. With `arrays`, `act`
        is given numpy arrays, else tensors.
        """

    def restart(self, seeds: Sequence[int] | None = None) -> None:
        """Begin new episodes everywhere, with new seeds if given.

        For environments that cannot be put back (level E3), and for candidates that are compared:
        with new seeds, the next rollout begins with what they play.
        """


class Imagination(Protocol):
    """How to roll a world model out, N rollouts at once. States are trees of tensors [N, …]."""

    def start(self, seen: Batch, generator: Generator) -> Any:
        """The states after the last of real frames [T, N, …]; latents may be sampled."""

    def step(self, state: Any, action: object, generator: Generator) -> tuple[Any, Tensor, Tensor]:
        """After actions [N, …]: the states, rewards [N], and continue probabilities [N]."""

    def decode(self, state: Any) -> Any:
        """The observations of states: images [N, C, H, W] in [0, 1], vectors in their own units.

        A tensor, or one for each part of the observation, by name.
        """


@dataclass(frozen=True)
class AlgorithmContext:
    """Everything an algorithm may use, passed to `initialize`."""

    config: RunConfig
    spec: EnvSpec
    device: str
    train_environment: VectorEnv
    collector: Collector
    components: Mapping[str, Any]
    buffers: Mapping[str, Buffer]
    optimizers: Mapping[str, Any]
    rng: Streams
    initial_observation: Obs

    def buffer(self, phase: Phase) -> Buffer:
        """The buffer that the phase names, or the first one."""
        return self.buffers[phase["buffer"] or next(iter(self.buffers))]


WorkflowContext = AlgorithmContext  # the name in earlier versions
