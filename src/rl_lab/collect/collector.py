"""The only `env.step` in training: preallocated `[T, N]` storage, every row a real transition."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.collect.episodes import EpisodeTracker, MeasureTracker, outcomes_of
from rl_lab.collect.simulate import Simulation, first_frames
from rl_lab.core.batch import (
    ACTION,
    ACTION_MASK,
    LOG_PROB,
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    STATE,
    TERMINATED,
    TRUNCATED,
    Action,
    Array,
    Batch,
    CollectResult,
    Metrics,
    Obs,
)
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.failure import defined_at
from rl_lab.core.flops import FlopCount
from rl_lab.core.protocols import Act, MakePolicy, Policy, VectorEnv
from rl_lab.core.spec import Box, Dict, MultiDiscrete, Space
from rl_lab.core.state import Tree
from rl_lab.core.tree import assign, copied, map_leaves, named_leaves, picked, where_rows

SAMPLE_EVERY = 16  # decisions; a GPU has to be waited for twice at each that is measured


class Stopwatch:
    """How long a policy takes to decide: seconds of a few of the real decisions of a run."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.is_cuda = device.startswith("cuda")
        self.seconds = 0.0
        self.measured = 0
        self.flops = 0  # of one decision for all environments, in torch
        self._decisions = 0

    def decide(self, act: Act, obs: Obs, state: Any) -> Action:
        """What `act` samples; one of `SAMPLE_EVERY` decisions is measured, a run's first is not."""
        self._decisions += 1
        # At decisions 1, 3, 7, 15, … until some are seen: a run may begin with random actions, and
        # of a policy in numpy there are none.
        if not self.flops and not self._decisions & (self._decisions + 1):
            with FlopCount() as count:
                action = act(obs, state, deterministic=False)
            self.flops = count.total
            return action
        if self._decisions % SAMPLE_EVERY:
            return act(obs, state, deterministic=False)
        if self.is_cuda:  # a GPU computes on while Python goes on: its work counts too
            torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        action = act(obs, state, deterministic=False)
        if self.is_cuda:
            torch.cuda.synchronize(self.device)
        self.seconds += time.perf_counter() - started
        self.measured += 1
        return action


class RolloutCollector:
    """Steps a vector of environments with a policy and remembers where it stands."""

    def __init__(
        self,
        env: VectorEnv,
        *,
        device: str = "cpu",
        first: Obs = None,
        simulation: Simulation | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.env = env
        self.device = device
        self.simulation = simulation  # for policies that are pure functions
        self.stopwatch = stopwatch or Stopwatch(device)
        self.obs: Obs = env.reset() if first is None else first
        self.is_first: NDArray[np.bool_] = np.ones(env.num_envs, dtype=np.bool_)
        self.memory: Tree = None  # the policy's state before the next step
        # Transitions beyond the rows of the last call, which the next one begins with: `rows`
        # [S, N, …] (zeros where there is none), and the `count` of each column. The slowest
        # column has none. Only vectors that reset a step late have any.
        self.carried: dict[str, Any] | None = None
        self.episodes = EpisodeTracker(env.num_envs)
        self.measures = MeasureTracker(env.num_envs, outcomes_of(env))

    def collect(
        self,
        act: Act,
        *,
        steps: int,
        state: Any = None,
        policy: MakePolicy | None = None,
        arrays: bool = False,
    ) -> CollectResult:
        """`steps` real transitions of every environment, in time order, without gaps.

        A vector that resets a step late brings fewer transitions of an environment whose episodes
        are short. What the others play meanwhile is carried over: the next call begins with it.
        The result counts a transition when it is played. Only carried transitions of a policy
        without log-probs are dropped when one with log-probs takes over: it learns from its own
        actions.

        `arrays`: `act` takes observations as numpy arrays, as they are. `state` is what a memory
        starts an episode with; a memory of other names and shapes is
        another policy's and is not taken over. A bad number in an observation or a reward
        raises before anything of this call has reached a buffer or a statistic.
        """
        if state is None or _shapes(self.memory) != _shapes(state):  # another policy has played
            self.memory = state
        if policy is not None and self.simulation is not None and (pure := policy()) is not None:
            return self._simulate(self.simulation, pure, steps)
        start = self.memory
        rows, filled = self._begin(steps, state)
        values: dict[str, Any] = rows
        wanted = (self.env.num_envs, *self.env.spec.action.shape)
        row = taken = finished = 0
        # A step in which an environment only resets itself is no transition. As long as there was
        # none, all columns have `row` rows; else column i has `filled[i]`.
        while (row if filled is None else filled.min()) < steps:
            obs = self.obs if arrays else to_tensor(self.obs, self.device)
            decision = self.stopwatch.decide(act, obs, self.memory)
            action = action_of(decision, act, wanted)
            step = self.env.step(action)
            ended = step.terminated | step.truncated
            values = {
                OBS: self.obs,
                ACTION: action,
                REWARD: step.reward,
                TERMINATED: step.terminated,
                TRUNCATED: step.truncated,
                NEXT_OBS: step.next_obs,
                RESET: self.is_first,
            }
            values |= {name: to_array(extra) for name, extra in decision.extras.items()}
            if self.carried is not None and LOG_PROB in values and LOG_PROB not in rows:
                self.carried = None
                rows, filled = self._begin(steps, state)
            if step.valid is None:
                assert filled is None, "a vector either marks its rows always, or never"
                _make_room(rows, values)
                for name, value in values.items():
                    assign(rows[name], row, value)
                row += 1
                taken += len(ended)
                fresh = ended
            else:
                if self.memory is not None:  # any row may be the first one of a later call
                    values[STATE] = map_leaves(to_array, self.memory)
                _make_room(rows, values)
                filled = np.zeros(len(ended), np.int64) if filled is None else filled
                columns = np.flatnonzero(step.valid)
                places = filled[columns], columns
                filled[columns] += 1
                if filled.max() > len(rows[REWARD]):
                    rows = map_leaves(_doubled, rows)
                for name, value in values.items():
                    assign(rows[name], places, picked(value, columns))
                taken += len(columns)
                ended, fresh = ended & step.valid, ~step.valid
            finished += self.episodes.add(step.reward, ended, step.valid)
            if step.measures:
                self.measures.add(step.measures)
            self.obs, self.is_first, self.memory = step.obs, fresh, decision.state
            if self.memory is not None and fresh.any():  # cleared where an episode begins
                self.memory = where_rows(to_tensor(fresh, self.device), state, self.memory)
        rows = {name: rows[name] for name in values}  # no extras of a policy that acted before
        _check_finite(rows)
        if isinstance(rows[OBS], dict) and ACTION_MASK in rows[OBS]:
            _check_masks(rows[OBS][ACTION_MASK][:steps], self.env.spec.action)
        if filled is not None:
            self.carried = _beyond(rows, filled, steps)
            rows = picked(rows, slice(steps))
        if STATE in rows:
            start = to_tensor(picked(rows.pop(STATE), 0), self.device)
        trajectory: Batch = to_tensor(rows, self.device)
        trajectory[STATE] = start
        return CollectResult(taken, finished, self._metrics(), trajectory)

    def _begin(self, steps: int, state: Any) -> tuple[dict[str, Any], NDArray[np.int64] | None]:
        """Storage for `steps` rows and more, where the carried ones are already in, and how many.

        None if nothing was carried.
        """
        waiting, count, length = {}, None, 0
        if self.carried is not None:
            waiting, count = self.carried["rows"], self.carried["count"].copy()
            length = len(waiting[REWARD])
            if STATE in waiting and _shapes(picked(waiting[STATE], 0)) != _shapes(state):
                waiting = {name: waiting[name] for name in waiting if name != STATE}
        lead, observation = (length + steps, self.env.num_envs), self.env.spec.observation
        frame = dict(observation.parts) if isinstance(observation, Dict) else observation
        action = self.env.spec.action
        # As the policy sampled it: an environment of integers in a Box gets it rounded.
        action_dtype = np.float32 if isinstance(action, Box) else action.dtype
        rows = {
            OBS: map_leaves(partial(_zeros, lead), frame),
            ACTION: np.zeros((*lead, *action.shape), action_dtype),
            REWARD: np.zeros(lead, np.float32),
            TERMINATED: np.zeros(lead, np.bool_),
            TRUNCATED: np.zeros(lead, np.bool_),
            NEXT_OBS: map_leaves(partial(_zeros, lead), frame),
            RESET: np.zeros(lead, np.bool_),
        }
        if waiting:
            _make_room(rows, picked(waiting, 0))
            assign({name: rows[name] for name in waiting}, slice(length), waiting)
        return rows, count

    def _simulate(self, simulation: Simulation, policy: Policy, steps: int) -> CollectResult:
        """The same in one program, for environments and policies that are pure functions."""
        rows, obs = simulation.rollout(policy, torch.from_numpy(self.obs), steps)
        ended = rows[TERMINATED] | rows[TRUNCATED]
        rows[RESET] = first_frames(ended, self.is_first)
        arrays = {name: value.numpy() for name, value in rows.items()}
        _check_finite(arrays)
        self.obs, self.is_first = obs.numpy(), ended[-1].numpy().copy()
        finished = self.episodes.add_rollout(arrays[REWARD], ended.numpy())
        rows[STATE] = self.memory
        return CollectResult(ended.numel(), finished, self._metrics(), rows)

    def _metrics(self) -> Metrics:
        numbers = self.episodes.metrics() | self.measures.metrics()
        return {f"collect/{key}": value for key, value in numbers.items()}

    def restart(self, seeds: Sequence[int] | None = None) -> None:
        """Begin new episodes everywhere; the open ones are forgotten.

        Carried transitions stay, and an episode that is given up in them counts as truncated.
        With new seeds, nothing of what was played before may come back: they are dropped.
        """
        self.carried = None if seeds is not None else _cut_off(self.carried)
        self.obs = self.env.reset(seeds)
        self.is_first = np.ones(self.env.num_envs, dtype=np.bool_)
        self.memory = None
        self.episodes.drop_open()

    def state_dict(self) -> dict[str, Any]:
        """Where each environment stands, its memory, open episodes, and carried transitions."""
        return {
            "obs": self.obs,
            "is_first": self.is_first,
            "memory": self.memory,
            "carried": self.carried,
            "episodes": self.episodes.state_dict(),
            "measures": self.measures.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in mid-episode."""
        map_leaves(_require_same_shape, state["obs"], self.obs)
        self.obs = copied(state["obs"])
        self.is_first = state["is_first"].copy()
        self.memory = state["memory"]
        self.carried = state.get("carried")  # older checkpoints have none
        self.episodes.load_state_dict(state["episodes"])
        if "measures" in state:  # older checkpoints have none
            self.measures.load_state_dict(state["measures"])


def to_tensor(obs: Obs, device: str) -> Any:
    """Observations as a policy wants them: tensors on its device, sharing memory on a CPU."""
    if device == "cpu":
        return map_leaves(torch.from_numpy, obs)
    return map_leaves(lambda leaf: torch.from_numpy(leaf).to(device), obs)


def to_array(value: Tensor | Array) -> Array:
    """A policy may answer in torch or in numpy."""
    return value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def action_of(decision: Action, act: Act, wanted: tuple[int, ...]) -> Array:
    """The actions of a decision as an array [N, …]; another shape would be repeated silently."""
    try:
        action = decision.action
    except AttributeError as error:
        kind = type(decision).__name__
        raise UserError(f"{defined_at(act)} returned a {kind}; expected an Action") from error
    array = to_array(action)
    if array.shape != wanted:
        raise UserError(
            f"{defined_at(act)} returned actions of shape {array.shape}; "
            f"expected {wanted} for {wanted[0]} environments"
        )
    return array


def _make_room(rows: dict[str, Any], values: dict[str, Any]) -> None:
    """Zeros [rows, N, …] for what is new in a step: extras, a memory."""
    for name, value in values.items():
        if name not in rows:
            rows[name] = map_leaves(partial(_zeros, (len(rows[REWARD]),)), value)


def _zeros(lead: tuple[int, ...], like: Array | Space) -> Array:
    return np.zeros((*lead, *like.shape), like.dtype)


def _doubled(rows: Array) -> Array:
    return np.concatenate([rows, np.zeros_like(rows)])


def _beyond(rows: dict[str, Any], filled: Array, steps: int) -> dict[str, Any] | None:
    """The transitions that come after the first `steps` ones of their columns."""
    count = filled - steps
    if not count.any():
        return None
    beyond = picked(rows, slice(steps, steps + int(count.max())))
    return {"rows": copied(beyond), "count": count}


def _cut_off(carried: dict[str, Any] | None) -> dict[str, Any] | None:
    """Carried transitions that nothing will follow: an open episode ends there by truncation."""
    if carried is None:
        return None
    rows, env = carried["rows"], np.flatnonzero(carried["count"])
    last = carried["count"][env] - 1, env
    truncated = rows[TRUNCATED].copy()
    truncated[last] = ~rows[TERMINATED][last]
    return {**carried, "rows": {**rows, TRUNCATED: truncated}}


def _check_masks(mask: Array, action: Space) -> None:
    """A mask that forbids everything cannot be obeyed."""
    sizes = action.nvec if isinstance(action, MultiDiscrete) else [mask.shape[-1]]
    for choice in np.split(mask, np.cumsum(sizes)[:-1], axis=-1):
        free = (choice != 0).any(-1)
        if not free.all():
            time, env = (int(each) for each in np.argwhere(~free)[0])
            raise UserError(
                f"environment {env} forbids every action (its action_mask is all zeros), "
                f"{time + 1} steps into a rollout: nothing legal can be done there"
            )


def _shapes(memory: Tree) -> dict[str, Any]:
    """What a memory is made of; those of two policies differ in it."""
    return {name: getattr(leaf, "shape", None) for name, leaf in named_leaves(memory)}


def _require_same_shape(saved: Array, here: Array) -> None:
    assert saved.shape == here.shape, (saved.shape, here.shape)


def _check_finite(rows: dict[str, Any]) -> None:
    checked = {name: rows[name] for name in (OBS, REWARD, NEXT_OBS, ACTION)}
    for name, value in named_leaves(checked):
        if value.dtype.kind != "f" or np.isfinite(value).all():
            continue
        time, env, *_ = (int(each) for each in np.argwhere(~np.isfinite(value))[0])
        recent = rows[ACTION][max(0, time - 10) : time + 1, env]
        raise NonFiniteError(
            f"environment {env} gave {name} that is not finite, {time + 1} steps into this "
            f"rollout; nothing was stored or learned from it",
            {"field": name, "environment": env, "row": time, "last_actions": recent.tolist()},
        )
