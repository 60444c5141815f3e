"""The only `env.step` in training: preallocated `[T, N]` storage, every row a real transition."""

from collections.abc import Sequence
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
from rl_lab.core.protocols import Act, MakePolicy, Policy, VectorEnv
from rl_lab.core.spec import Box, MultiDiscrete, Space, observation_rows
from rl_lab.core.state import Tree, where_rows
from rl_lab.core.tree import assign, copied, map_leaves, named_leaves, picked


class Cursor:
    """The next free row of every column of `[T, N]` storage.

    Rows in which an environment only reset itself are no transitions, so columns may fill at
    different speeds. A column that is full keeps playing until the others are; those rows are
    counted, not kept.
    """

    def __init__(self, steps: int, num_envs: int) -> None:
        self.steps = steps
        self.full = steps == 0
        self._row = 0  # of all columns, as long as every row has been valid
        self._rows: NDArray[np.int64] | None = None
        self._columns = np.arange(num_envs)

    def next_row(self) -> int:
        """The row of a step in which every environment made a transition."""
        assert self._rows is None, "a vector either marks its rows always, or never"
        self._row += 1
        self.full = self._row == self.steps
        return self._row - 1

    def next_places(self, valid: Array) -> tuple[Array, tuple[Array, Array]]:
        """Which environments have a transition to keep, and where: rows and columns."""
        if self._rows is None:
            self._rows = np.zeros(len(valid), dtype=np.int64)
        kept = valid & (self._rows < self.steps)
        places = self._rows[kept], self._columns[kept]
        self._rows[kept] += 1
        self.full = bool(self._rows.min() >= self.steps)
        return kept, places


class RolloutCollector:
    """Steps a vector of environments with a policy and remembers where it stands."""

    def __init__(
        self,
        env: VectorEnv,
        *,
        device: str = "cpu",
        first: Obs = None,
        simulation: Simulation | None = None,
    ) -> None:
        self.env = env
        self.device = device
        self.simulation = simulation  # for policies that are pure functions
        self.obs: Obs = env.reset() if first is None else first
        self.is_first: NDArray[np.bool_] = np.ones(env.num_envs, dtype=np.bool_)
        self.memory: Tree = None  # the policy's state before the next step
        self.episodes = EpisodeTracker(env.num_envs)
        self.measures = MeasureTracker(env.num_envs, outcomes_of(env))

    def collect(
        self, act: Act, *, steps: int, state: Any = None, policy: MakePolicy | None = None
    ) -> CollectResult:
        """`steps` real transitions of every environment, in time order.

        `state` is what a memory starts an episode with; a memory of other names and shapes is
        another policy's and is not taken over. A bad number in an observation or a reward
        raises before anything of this call has reached a buffer or a statistic.
        """
        if _shapes(self.memory) != _shapes(state):  # nobody's yet, or another policy has played
            self.memory = state
        if policy is not None and self.simulation is not None and (pure := policy()) is not None:
            return self._simulate(self.simulation, pure, steps)
        start = self.memory
        rows = _allocate(self.env, steps)
        cursor = Cursor(steps, self.env.num_envs)
        taken = finished = 0
        while not cursor.full:
            decision = act(self._tensor(self.obs), self.memory, deterministic=False)
            action = to_array(decision.action)
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
            for name, extra in decision.extras.items():
                values[name] = value = to_array(extra)
                if name not in rows:
                    rows[name] = np.zeros((steps, *value.shape), dtype=value.dtype)
            if step.valid is None:
                row = cursor.next_row()
                for name, value in values.items():
                    assign(rows[name], row, value)
                taken += len(ended)
                fresh = ended
            else:
                kept, places = cursor.next_places(step.valid)
                for name, value in values.items():
                    assign(rows[name], places, picked(value, kept))
                taken += int(step.valid.sum())
                ended, fresh = ended & step.valid, ~step.valid
            finished += self.episodes.add(step.reward, ended, step.valid)
            self.measures.add(step.measures)
            self._move_on(step, decision, fresh, state)
        _check_finite(rows)
        if isinstance(rows[OBS], dict) and ACTION_MASK in rows[OBS]:
            _check_masks(rows[OBS][ACTION_MASK], self.env.spec.action)
        trajectory: Batch = {name: self._tensor(value) for name, value in rows.items()}
        trajectory[STATE] = start
        return CollectResult(taken, finished, self._metrics(), trajectory)

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
        """Begin new episodes everywhere; the open ones are forgotten."""
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
        """Where each environment stands, its memory, and the open episodes."""
        return {
            "obs": self.obs,
            "is_first": self.is_first,
            "memory": self.memory,
            "episodes": self.episodes.state_dict(),
            "measures": self.measures.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in mid-episode."""
        map_leaves(_require_same_shape, state["obs"], self.obs)
        self.obs = copied(state["obs"])
        self.is_first = state["is_first"].copy()
        self.memory = state["memory"]
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


def _allocate(env: VectorEnv, steps: int) -> dict[str, Any]:
    lead = (steps, env.num_envs)

    def room(space: Space) -> Array:
        return np.empty((*lead, *space.shape), dtype=space.dtype)

    return {
        OBS: observation_rows(env.spec.observation, room),
        # As the policy sampled it: an environment of integers in a Box gets it rounded.
        ACTION: np.empty(
            (*lead, *env.spec.action.shape),
            np.float32 if isinstance(env.spec.action, Box) else env.spec.action.dtype,
        ),
        REWARD: np.empty(lead, dtype=np.float32),
        TERMINATED: np.empty(lead, dtype=np.bool_),
        TRUNCATED: np.empty(lead, dtype=np.bool_),
        NEXT_OBS: observation_rows(env.spec.observation, room),
        RESET: np.empty(lead, dtype=np.bool_),
    }


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
