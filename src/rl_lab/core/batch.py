"""The names of what flows through the lab, with shapes. T time, N envs, B rows, A actions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Obs = Any  # an array [N, …], or a dict of them where the environment shows a Dict or a Tuple
Batch = dict[str, Any]  # name -> Tensor [T, N, ...] or [B, ...]; memory state is a nested dict
Metrics = dict[str, Any]  # name -> float or 0-d Tensor; turned into numbers once, when logged

OBS = "obs"
ACTION_MASK = "action_mask"  # the part of a dict observation that says which actions are legal
ACTION = "action"  # as sampled, in policy space; the env gets the clipped or rescaled one
REWARD = "reward"
TERMINATED = "terminated"  # the task ended: no future
TRUNCATED = "truncated"  # the clock ended: the future exists but was not played
NEXT_OBS = "next_obs"  # where the step really ended, never a reset frame
PROBABILITIES = "probabilities"  # of all actions of a discrete space, from `Algorithm.greedy`
LOG_PROB = "log_prob"  # of ACTION under the policy that acted
STATE = "state"  # memory state before the first row, [N, ...] leaves
RESET = "reset"  # True where OBS is the first frame of an episode
PREVIOUS_ACTION = "previous_action"  # sequences of frames: what led to OBS; zeros at a RESET
STEPS = "steps"  # n-step replay: how many rewards are in the window [..., n] of REWARD
LATENT = "latent"  # sequences: a stored state before the first frame, [..., D]; zeros: not known
BURN_IN = "burn_in"  # sequences: rows that only warm a memory up
MASK = "mask"  # whole episodes: False after the end; chunks: False where an action is repeated
INDEX = "index"  # prioritized replay: where a row lies in its buffer
WEIGHT = "weight"  # prioritized replay: how much a row's loss counts


@dataclass(slots=True)
class Step:
    """What one vector step gave. All arrays have N rows.

    `obs` is what to act on next (a reset frame where an episode ended), `next_obs` is where the
    step really ended. `valid` is False for rows in which a NEXT_STEP environment only reset
    itself; None means that all rows are valid. `measures` are numbers [N] about the step that are
    logged by name and that no agent sees; an outcome is NaN except where an episode ended.
    """

    obs: Obs
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    next_obs: Obs
    valid: NDArray[np.bool_] | None = None
    measures: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class Action:
    """What a policy decided for N environments.

    Attributes:
        action: Actions [N, …], in policy space.
        state: The next memory state, N rows; None without memory.
        extras: Arrays [N, …] by name that are stored beside the action.
    """

    action: Tensor | Array
    state: Any = None
    extras: Mapping[str, Tensor | Array] = field(default_factory=dict)


@dataclass(slots=True)
class CollectResult:
    """What one `collect_step` collected.

    Attributes:
        steps: Environment steps, counted over all environments.
        episodes: Episodes that ended.
        metrics: Numbers to log.
        trajectory: Transitions [T, N, …] by name, for the buffer of the phase.
        extras: Anything else that the algorithm wants to keep with it.
    """

    steps: int
    episodes: int = 0
    metrics: Metrics = field(default_factory=dict)
    trajectory: Batch | None = None
    extras: dict[str, Any] = field(default_factory=dict)
