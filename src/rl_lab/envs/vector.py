"""The only file that knows Gymnasium's autoreset rules. Everyone else sees `Step`.

Our own vectors reset an ended episode within the same `step`, so every row is a real transition.
Arrays in a `Step` are fresh: nothing that was returned is written again. Where no episode ended,
`obs` and `next_obs` may be one and the same array.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rl_lab.core import seeding
from rl_lab.core.batch import Array, Obs, Step
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Discrete
from rl_lab.core.tree import assign, copied, picked
from rl_lab.envs import snapshot
from rl_lab.envs.contract import RESET, STEP, Contract, ContractError
from rl_lab.envs.spaces import Frames, MisfitError, action_converter, describe

FIRST_STEPS = 16  # vector steps that are checked fully; later ones for what cannot be stored
FIRST_RESETS = 2  # of every environment
_FLAGS = (bool, np.bool_)
_UNFIT = (MisfitError, ValueError, TypeError, KeyError, IndexError, AttributeError)
log = logging.getLogger(__name__)


class SyncVector:
    """Environments of one kind, stepped one after the other in this process.

    Environment `i` is seeded with `seeds[i]` at its first reset only; later resets go on with its
    own generator. `first` is the number of the first one in messages.
    """

    def __init__(
        self, envs: Sequence[gym.Env[Any, Any]], seeds: Sequence[int], id: str, first: int = 0
    ) -> None:
        self.envs = list(envs)
        self.num_envs = _same_length(self.envs, seeds)
        self.spec = describe(self.envs[0], id)
        self._frames = Frames(self.envs[0].observation_space)
        self._to_env = action_converter(self.envs[0].action_space)
        self._python_actions = isinstance(self.spec.action, Discrete)
        self._tables = snapshot.static_tables(self.envs)
        self._episodes = Episodes(seeds)
        self.snapshot_level = self._level()
        self.goal_reward = goal_reward(self.envs[0])
        self._measures, self.outcomes = declared(self.envs[0])
        space = self.envs[0].observation_space
        self._contracts = [Contract(space, id, first + i, self._doubt) for i in range(len(seeds))]
        self._steps, self._checked_resets = 0, [0] * self.num_envs
        self._known_doubts: set[str] = set()
        self._doubts: list[tuple[str, str]] = []  # warnings that wait for the next step

    def reset(self, seeds: Sequence[int] | None = None) -> Obs:
        """Reset every environment, with new seeds if given; the first observations [N, …]."""
        first = self._episodes.resets == 0
        obs = self._frames.empty(self.num_envs)
        given = self._episodes.start(seeds)
        for index, (env, seed) in enumerate(zip(self.envs, given, strict=True)):
            self._put_first(obs, index, index, env.reset(seed=seed))
        if first:
            # Some environments build their simulator in `reset`.
            self.snapshot_level = self._level()
        return self._frames.converted(obs)

    def step(self, action: Array) -> Step:
        """One decision per environment; ended episodes are already reset in `Step.obs`."""
        self._episodes.require_started()
        count = self.num_envs
        actions: Any = self._to_env(action)
        if self._python_actions:
            actions = actions.tolist()
        self._steps += 1
        checking = self._steps <= FIRST_STEPS
        next_obs, put = self._frames.empty(count), self._frames.put
        reward = np.empty(count, np.float64)
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        resets: dict[int, Any] = {}
        measures = {name: np.empty(count, np.float64) for name in self._measures}
        outcomes = {name: np.full(count, np.nan) for name in self.outcomes}
        for index, env in enumerate(self.envs):
            returned = env.step(actions[index])
            if checking:
                self._contracts[index].check(STEP, returned, self._steps)
            try:
                frame, reward[index], ended, cut, info = returned
                put(next_obs, index, frame)
                over = ended or cut
                if over and not (type(ended) in _FLAGS and type(cut) in _FLAGS):
                    self._contracts[index].check(STEP, returned, self._steps)
            except _UNFIT as error:
                raise self._explained(index, STEP, returned, error) from error
            for name, values in measures.items():
                values[index] = _told(info, name)
            if over:
                for name, values in outcomes.items():
                    values[index] = _told(info, name)
                terminated[index] = ended
                truncated[index] = not ended  # both flags: it is a termination
                resets[index] = env.reset()
        if self._doubts:
            self._tell_doubts()
        shown = self._frames.converted(next_obs)
        obs = shown
        if resets:
            starts = self._frames.empty(len(resets))
            for row, (index, returned) in enumerate(resets.items()):
                self._put_first(starts, row, index, returned)
            obs = copied(shown)
            assign(obs, list(resets), self._frames.converted(starts))
            self._episodes.resets += len(resets)
        return Step(obs, reward, terminated, truncated, shown, measures=measures | outcomes)

    def close(self) -> None:
        """Free what the environments hold."""
        for env in self.envs:
            env.close()

    def state_dict(self) -> dict[str, Any]:
        """Every simulator where it can be saved; at E3 only what seeds the fresh start."""
        state = self._episodes.state_dict() | {"level": self.snapshot_level}
        if self.snapshot_level in snapshot.SAVED:
            state["envs"] = [snapshot.capture(env, self._tables) for env in self.envs]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly, or at E3 with new episodes on new seeds: the next call is `reset`."""
        self._episodes.load_state_dict(state)
        self.snapshot_level = state["level"]
        if self.snapshot_level not in snapshot.SAVED:
            self._episodes.start_afresh()
            return
        if len(state["envs"]) != self.num_envs:
            raise UserError(f"state of {len(state['envs'])} envs cannot fill {self.num_envs}")
        for env, tree in zip(self.envs, state["envs"], strict=True):
            snapshot.restore(env, tree)

    def _level(self) -> str:
        return snapshot.level(self.envs[0])

    def _put_first(self, rows: Obs, row: int, index: int, returned: tuple[Any, Any]) -> None:
        """The frame that environment `index` returned from `reset`, into a row."""
        if self._checked_resets[index] < FIRST_RESETS:
            self._checked_resets[index] += 1
            self._contracts[index].check(RESET, returned, self._steps)
        try:
            frame, _ = returned
            self._frames.put(rows, row, frame)
        except _UNFIT as error:
            raise self._explained(index, RESET, returned, error) from error

    def _explained(self, index: int, method: str, returned: object, error: Exception) -> Exception:
        """What an environment returned and cannot be stored, as the contract says it."""
        try:
            self._contracts[index].check(method, returned, self._steps)
        except ContractError as breach:
            return breach
        return error

    def _doubt(self, about: str, sentence: str) -> None:
        if about not in self._known_doubts:
            self._known_doubts.add(about)
            self._doubts.append((about, sentence))

    def _tell_doubts(self) -> None:
        """Log new warnings. Those of the first reset wait for a step: then the run listens."""
        for about, sentence in self._doubts:
            log.warning("%s", sentence, extra={"once": about})
        self._doubts.clear()


class GymnasiumVector:
    """Any `gymnasium.vector.VectorEnv`, in whichever of the three autoreset modes it declares.

    A NEXT_STEP environment resets itself one step late: that row is marked in `Step.valid`, and
    `Step.obs` at an episode's end is the final frame, whose action is ignored.
    """

    def __init__(
        self, env: gym.vector.VectorEnv[Any, Any, Any], seeds: Sequence[int], id: str
    ) -> None:
        self.env = env
        self.num_envs = _same_length(range(env.num_envs), seeds)
        self.spec = describe(env, id)
        self.snapshot_level = "E3"
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise UserError(f"the vector of '{id}' does not say its autoreset mode: use sync")
        self._mode = mode
        self._to_env = action_converter(env.single_action_space)
        self._frames = Frames(env.single_observation_space)
        self._one_seed_each = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._episodes = Episodes(seeds)
        self._ended = np.zeros(self.num_envs, np.bool_)

    def reset(self, seeds: Sequence[int] | None = None) -> Obs:
        """Reset every environment, with new seeds if given; the first observations [N, …]."""
        given: Any = self._episodes.start(seeds)
        self._ended = np.zeros(self.num_envs, np.bool_)
        obs, _ = self.env.reset(seed=given if self._one_seed_each else joint_seed(given))
        return self._own(obs)

    def step(self, action: Array) -> Step:
        """One decision per environment, as real transitions whatever the autoreset mode."""
        self._episodes.require_started()
        frames, rewards, terminations, truncations, infos = self.env.step(self._to_env(action))
        terminated = np.array(terminations, np.bool_)
        truncated = np.array(truncations, np.bool_)
        ended = terminated | truncated
        self._episodes.resets += int(ended.sum())
        valid, obs = None, self._own(frames)
        next_obs = obs
        if self._mode is AutoresetMode.NEXT_STEP:
            valid = ~self._ended
        elif ended.any():
            if self._mode is AutoresetMode.SAME_STEP:
                next_obs = self._with_final_frames(frames, infos, ended)
            else:
                first_frames, _ = self.env.reset(options={"reset_mask": ended.copy()})
                obs = copied(obs)
                assign(obs, ended, picked(self._own(first_frames), ended))
        self._ended = ended
        reward = np.array(rewards, np.float64)
        return Step(obs, reward, terminated, truncated & ~terminated, next_obs, valid)

    def close(self) -> None:
        """Free what the environments hold."""
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """What seeds the fresh start."""
        return self._episodes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take other seeds: the next call must be `reset`."""
        self._episodes.load_state_dict(state)
        self._episodes.start_afresh()

    def _own(self, frames: object) -> Obs:
        return self._frames.converted(self._frames.batch(frames))

    def _with_final_frames(self, frames: object, infos: dict[str, Any], ended: Array) -> Obs:
        whole = self._frames.batch(frames)
        for index in np.flatnonzero(ended):
            self._frames.put(whole, int(index), infos["final_obs"][index])
        return self._frames.converted(whole)


class NativeCartPole:
    """Gymnasium's vectorized CartPole, with the resets done here so that every row is real.

    All environments share one generator, seeded by all seeds jointly.
    """

    snapshot_level = "E0"

    def __init__(self, env: CartPoleVectorEnv, seeds: Sequence[int], id: str) -> None:
        self.env = env
        self.num_envs = _same_length(range(env.num_envs), seeds)
        self.spec = describe(env, id)
        self._to_env = action_converter(env.single_action_space)
        self._episodes = Episodes(seeds)

    def reset(self, seeds: Sequence[int] | None = None) -> Array:
        """Reset every environment, with new seeds if given; the first observations [N, 4]."""
        obs, _ = self.env.reset(seed=joint_seed(self._episodes.start(seeds)))
        return np.ascontiguousarray(obs)

    def step(self, action: Array) -> Step:
        """One decision per environment; ended episodes are already reset in `Step.obs`."""
        self._episodes.require_started()
        env = self.env
        frames, reward, terminated, truncated, _ = env.step(self._to_env(action))
        next_obs = obs = np.ascontiguousarray(frames)
        ended = env.prev_done
        if ended.any():
            count = int(ended.sum())
            start = env.np_random.uniform(env.low, env.high, (4, count))
            state: Any = env.state
            state[:, ended] = start
            env.steps[ended] = 0
            env.prev_done = np.zeros(self.num_envs, np.bool_)  # or it would reset them once more
            obs = next_obs.copy()
            obs[ended] = start.T
            self._episodes.resets += count
            truncated &= ~terminated
        return Step(obs, reward.astype(np.float64), terminated, truncated, next_obs)

    def close(self) -> None:
        """Free what the environment holds."""
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """The simulator's arrays and its generator."""
        state = self._episodes.state_dict()
        if self._episodes.started:
            state["state"], state["steps"] = np.array(self.env.state), self.env.steps.copy()
            state["random"] = snapshot.generator_state(self.env.np_random)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the saved vector stood."""
        self._episodes.load_state_dict(state)
        if not self._episodes.started:
            return
        if state["state"].shape != (4, self.num_envs):
            raise UserError(f"state of {state['state'].shape[1]} envs cannot fill {self.num_envs}")
        self.env.reset(seed=0)  # gives it a generator and its reset bounds
        simulator: Any = self.env
        simulator.state, simulator.steps = np.array(state["state"]), np.array(state["steps"])
        self.env.np_random.bit_generator.state = state["random"]


class Episodes:
    """Which seeds the next reset gets: the given ones the first time, none later."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = [int(seed) for seed in seeds]
        self.started = False
        self.resets = 0

    def start(self, seeds: Sequence[int] | None) -> list[int] | list[None]:
        """The seeds of a reset of all; new ones if given."""
        if seeds is not None:
            _same_length(self.seeds, seeds)
            self.seeds = [int(seed) for seed in seeds]
        first = seeds is not None or not self.started
        self.started = True
        self.resets += len(self.seeds)
        return self.seeds if first else [None] * len(self.seeds)

    def require_started(self) -> None:
        """A step comes after a reset."""
        if not self.started:
            raise RuntimeError("call reset() before step()")

    def start_afresh(self) -> None:
        """Seeds that depend on how far the run was: it does not play its first episodes again."""
        self.started = False
        self.seeds = [seeding.integer(seed, "fresh start", self.resets) for seed in self.seeds]

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {"started": self.started, "resets": self.resets, "seeds": list(self.seeds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All of it."""
        self.started, self.resets = bool(state["started"]), int(state["resets"])
        self.seeds = [int(seed) for seed in state["seeds"]]


def declared(env: gym.Env[Any, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What an environment's `info` tells the log, and no agent: `measures` and `outcomes`.

    A measure is a number of every step. An outcome is a number of an episode's end, NaN elsewhere.
    """
    own = env.unwrapped
    return tuple(getattr(own, "measures", ())), tuple(getattr(own, "outcomes", ()))


def _told(info: dict[str, Any], name: str) -> float:
    if name not in info:
        raise UserError(
            f"the environment declares '{name}' in its measures or outcomes, "
            "but its info does not have it: add it there, or remove the name"
        )
    return float(info[name])


def goal_reward(env: gym.Env[Any, Any]) -> Callable[[Array, Array], Array] | None:
    """What a task with goals pays: (achieved [B, …], desired [B, …]) -> [B]. None: it has none.

    It is the task's own, so there is none where a wrapper changes what is paid.
    """
    layer: Any = env
    while layer is not env.unwrapped:
        if isinstance(layer, gym.RewardWrapper) or getattr(layer, "changes_reward", False):
            return None
        layer = layer.env
    compute: Any = getattr(env.unwrapped, "compute_reward", None)
    if compute is None:
        return None
    return lambda achieved, desired: np.asarray(compute(achieved, desired, {}), np.float64)


def _same_length(envs: Sequence[Any], seeds: Sequence[int]) -> int:
    if len(envs) != len(seeds) or not seeds:
        raise ValueError(f"{len(envs)} environments need as many seeds, got {len(seeds)}")
    return len(seeds)


def joint_seed(seeds: list[int] | list[None]) -> int | None:
    """One seed made of all seeds."""
    given = [seed for seed in seeds if seed is not None]
    if not given:
        return None
    return int(np.random.SeedSequence(given).generate_state(1)[0] >> 1)
