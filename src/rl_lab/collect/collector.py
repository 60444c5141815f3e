"""The only `env.step` in training: preallocated `[T, N]` storage, every row a real transition."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.collect.episodes import EpisodeTracker, MeasureTracker, outcomes_of
from rl_lab.collect.simulate import Simulation, first_frames
from rl_lab.collect.stopwatch import Stopwatch
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
    Step,
)
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.failure import defined_at
from rl_lab.core.protocols import Act, MakePolicy, Policy, VectorEnv
from rl_lab.core.spec import Box, MultiDiscrete, Space, observation_rows
from rl_lab.core.state import Tree, where_rows
from rl_lab.core.tree import assign, copied, map_leaves, named_leaves, picked


class Cursor:
    """The next free row of every column of `[rows, N]` storage.

    A step in which an environment only resets itself is no transition, so columns may fill at
    different speeds.
    """

    def __init__(self, steps: int, num_envs: int, rows: NDArray[np.int64] | None = None) -> None:
        self.steps = steps
        self.full = steps == 0  # every column has that many rows
        self.rows = rows  # None as long as every step has been a transition of every environment
        self._row = 0  # of all columns, until then
        self._columns = np.arange(num_envs)

    def next_row(self) -> int:
        """The row of a step in which every environment made a transition."""
        assert self.rows is None, "a vector either marks its rows always, or never"
        self._row += 1
        self.full = self._row == self.steps
        return self._row - 1

    def next_places(self, valid: Array) -> tuple[Array, Array]:
        """Rows and columns of the transitions of a step that is `valid` in some environments."""
        if self.rows is None:
            self.rows = np.zeros(len(valid), dtype=np.int64)
        places = self.rows[valid], self._columns[valid]
        self.rows[valid] += 1
        self.full = bool(self.rows.min() >= self.steps)
        return places


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
        if _shapes(self.memory) != _shapes(state):  # nobody's yet, or another policy has played
            self.memory = state
        if policy is not None and self.simulation is not None and (pure := policy()) is not None:
            return self._simulate(self.simulation, pure, steps)
        start, decide = self.memory, self.stopwatch.timed(act)
        rows, cursor = self._begin(steps, state)
        values: dict[str, Any] = rows
        wanted = (self.env.num_envs, *self.env.spec.action.shape)
        taken = finished = 0
        while not cursor.full:
            obs = self.obs if arrays else self._tensor(self.obs)
            decision = decide(obs, self.memory, deterministic=False)
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
                rows, cursor = self._begin(steps, state)
            if step.valid is None:
                _make_room(rows, values)
                row = cursor.next_row()
                for name, value in values.items():
                    assign(rows[name], row, value)
                taken += len(ended)
                fresh = ended
            else:
                if self.memory is not None:  # any row may be the first one of a later call
                    values[STATE] = map_leaves(to_array, self.memory)
                _make_room(rows, values)
                places = cursor.next_places(step.valid)
                if cursor.rows is not None and cursor.rows.max() > len(rows[REWARD]):
                    rows = map_leaves(_doubled, rows)
                for name, value in values.items():
                    assign(rows[name], places, picked(value, step.valid))
                taken += int(step.valid.sum())
                ended, fresh = ended & step.valid, ~step.valid
            finished += self.episodes.add(step.reward, ended, step.valid)
            self.measures.add(step.measures)
            self._move_on(step, decision, fresh, state)
        rows = {name: rows[name] for name in values}  # no extras of a policy that acted before
        _check_finite(rows)
        if isinstance(rows[OBS], dict) and ACTION_MASK in rows[OBS]:
            _check_masks(rows[OBS][ACTION_MASK][:steps], self.env.spec.action)
        if cursor.rows is not None:
            self.carried = _beyond(rows, cursor.rows, steps)
            rows = picked(rows, slice(steps))
        if STATE in rows:
            start = self._tensor(picked(rows.pop(STATE), 0))
        trajectory: Batch = {name: self._tensor(value) for name, value in rows.items()}
        trajectory[STATE] = start
        return CollectResult(taken, finished, self._metrics(), trajectory)

    def _begin(self, steps: int, state: Any) -> tuple[dict[str, Any], Cursor]:
        """Storage for `steps` rows and more, where the carried ones are already in."""
        if self.carried is None:
            return _allocate(self.env, steps), Cursor(steps, self.env.num_envs)
        waiting, count = self.carried["rows"], self.carried["count"]
        if STATE in waiting and _shapes(picked(waiting[STATE], 0)) != _shapes(state):
            waiting = {name: waiting[name] for name in waiting if name != STATE}
        length = len(waiting[REWARD])
        rows = _allocate(self.env, length + steps)
        _make_room(rows, picked(waiting, 0))
        assign({name: rows[name] for name in waiting}, slice(length), waiting)
        return rows, Cursor(steps, self.env.num_envs, count.copy())

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

    def _move_on(self, step: Step, decision: Action, fresh: Array, state: Any) -> None:
        """What the next decision starts from: new frames, and a cleared memory where they begin."""
        self.obs = step.obs
        self.is_first = fresh
        self.memory = decision.state
        if self.memory is not None and fresh.any():
            self.memory = where_rows(self._tensor(fresh), state, self.memory)

    def _tensor(self, value: Obs) -> Any:
        return to_tensor(value, self.device)

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


def _allocate(env: VectorEnv, steps: int) -> dict[str, Any]:
    lead = (steps, env.num_envs)

    def room(space: Space) -> Array:
        return np.zeros((*lead, *space.shape), dtype=space.dtype)

    return {
        OBS: observation_rows(env.spec.observation, room),
        # As the policy sampled it: an environment of integers in a Box gets it rounded.
        ACTION: np.zeros(
            (*lead, *env.spec.action.shape),
            np.float32 if isinstance(env.spec.action, Box) else env.spec.action.dtype,
        ),
        REWARD: np.zeros(lead, dtype=np.float32),
        TERMINATED: np.zeros(lead, dtype=np.bool_),
        TRUNCATED: np.zeros(lead, dtype=np.bool_),
        NEXT_OBS: observation_rows(env.spec.observation, room),
        RESET: np.zeros(lead, dtype=np.bool_),
    }


def _make_room(rows: dict[str, Any], values: dict[str, Any]) -> None:
    """Zeros [rows, N, …] for what is new in a step: extras, a memory."""

    def room(value: Array) -> Array:
        return np.zeros((len(rows[REWARD]), *value.shape), dtype=value.dtype)

    for name, value in values.items():
        if name not in rows:
            rows[name] = map_leaves(room, value)


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
