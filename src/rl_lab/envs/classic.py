"""Gymnasium's classic control tasks as pure functions, and a vector made of them.

The equations and numbers are Gymnasium's single environments, which the tests compare with. They
are written once for numpy arrays, which step a few environments fastest, and for tensors: no
function branches on a value, writes into what it is given or draws a random number, so torch can
compile many steps into one program. A task starts from uniform numbers that are drawn before.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_lab.core.batch import Array, Step
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Discrete
from rl_lab.envs.spaces import describe
from rl_lab.envs.vector import Episodes, joint_seed

BLOCK = 128  # rows of uniform numbers drawn at once; another size would give other episodes

Numbers = Any  # an array, or a tensor
Moved = tuple[Numbers, Numbers, Numbers]  # state [N, S], reward [N] float64, terminated [N]


class Task(NamedTuple):
    """One task, for N copies of it. S numbers are a state; actions are [N] int64 or [N, A]."""

    dynamics: Callable[[Numbers, Numbers], Moved]  # state [N, S], action
    observe: Callable[[Numbers], Numbers]  # state -> obs [N, O] float32
    start: Callable[[Numbers], Numbers]  # uniform [N, S] float64 in [0, 1) -> state
    state_size: int
    max_steps: int
    action_bound: float | None = None  # of a Box; `advance` clips to it, as every vector does


class Advanced(NamedTuple):
    """What one step of N copies gave: where they are now, and the transition."""

    state: Numbers
    elapsed: Numbers
    obs: Numbers  # to act on next: a first frame where the episode ended
    reward: Numbers
    terminated: Numbers
    truncated: Numbers
    next_obs: Numbers  # where the step really ended


def advance(
    task: Task, state: Numbers, elapsed: Numbers, action: Numbers, uniform: Numbers, max_steps: int
) -> Advanced:
    """One step; episodes that end start again, from their row of `uniform` [N, S]."""
    return _restart(task, _move(task, state, elapsed, action, max_steps), uniform)


def _move(
    task: Task, state: Numbers, elapsed: Numbers, action: Numbers, max_steps: int
) -> Advanced:
    """One step without a new start: `obs` is `next_obs`."""
    if task.action_bound is not None:
        action = _clip(action, -task.action_bound, task.action_bound)
    state, reward, terminated = task.dynamics(state, action)
    elapsed = elapsed + 1
    truncated = (elapsed >= max_steps) & ~terminated
    obs = task.observe(state)
    return Advanced(state, elapsed, obs, reward, terminated, truncated, obs)


def _restart(task: Task, moved: Advanced, uniform: Numbers) -> Advanced:
    """The same transition, with a new start wherever it ended an episode."""
    xp = _library(moved.elapsed)
    ended = moved.terminated | moved.truncated
    fresh = task.start(uniform)
    return moved._replace(
        state=xp.where(ended[:, None], fresh, moved.state),
        elapsed=xp.where(ended, 0, moved.elapsed),
        obs=xp.where(ended[:, None], task.observe(fresh), moved.next_obs),
    )


# ---------------------------------------------------------- for arrays and tensors


def _library(x: Numbers) -> Any:
    return torch if isinstance(x, Tensor) else np


def _columns(x: Numbers) -> Any:
    return x.unbind(1) if isinstance(x, Tensor) else x.T


def _rows(columns: tuple[Numbers, ...]) -> Numbers:
    """[N, S]; in numpy a view that is fastest by columns."""
    return torch.stack(columns, 1) if isinstance(columns[0], Tensor) else np.array(columns).T


def _clip(x: Numbers, low: float, high: float) -> Numbers:
    if isinstance(x, Tensor):
        return x.clamp(low, high)
    return np.minimum(np.maximum(x, low), high)  # np.clip takes three times as long


def _single(x: Numbers) -> Numbers:
    """float32, row by row, and never the same memory."""
    if isinstance(x, Tensor):
        return x.to(torch.float32, copy=True)
    return x.astype(np.float32, order="C")


def _double(x: Numbers) -> Numbers:
    return x.double() if isinstance(x, Tensor) else x.astype(np.float64)


# -------------------------------------------------------------------- cart pole

_TILT = 12 * 2 * math.pi / 360
_CART_AND_POLE = 0.1 + 1.0  # kg; not 1.1 to the last bit
_POLE = 0.1 * 0.5  # mass times half the length


def _cart_pole(state: Numbers, action: Numbers) -> Moved:
    xp = _library(state)
    position, speed, angle, spin = _columns(state)
    force = action * 20.0 - 10.0
    cos, sin = xp.cos(angle), xp.sin(angle)
    push = (force + _POLE * spin**2 * sin) / _CART_AND_POLE
    torque = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / _CART_AND_POLE))
    pull = push - _POLE * torque * cos / _CART_AND_POLE
    moved = state + 0.02 * _rows((speed, pull, spin, torque))
    position, _, angle, _ = _columns(moved)
    terminated = (abs(position) > 2.4) | (abs(angle) > _TILT)
    return moved, xp.ones_like(position), terminated


def _start_cart_pole(uniform: Numbers) -> Numbers:
    return uniform * 0.1 - 0.05


# --------------------------------------------------------------------- pendulum


def _pendulum(state: Numbers, action: Numbers) -> Moved:
    xp = _library(state)
    angle, spin = _columns(state)
    torque = _clip(action[:, 0], -2.0, 2.0)  # stays float32 in its own terms, as in Gymnasium
    upright = xp.remainder(angle + math.pi, 2 * math.pi) - math.pi
    cost = upright**2 + 0.1 * spin**2 + 0.001 * torque**2
    spin = _clip(spin + (15.0 * xp.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
    moved = _rows((angle + spin * 0.05, spin))
    return moved, -cost, angle > math.inf


def _start_pendulum(uniform: Numbers) -> Numbers:
    angle, spin = _columns(uniform)
    return _rows((angle * (2 * math.pi) - math.pi, spin * 2.0 - 1.0))


def _observe_pendulum(state: Numbers) -> Numbers:
    xp = _library(state)
    angle, spin = _columns(state)
    return _single(_rows((xp.cos(angle), xp.sin(angle), spin)))


# ----------------------------------------------------------------- mountain car


def _mountain_car(state: Numbers, action: Numbers) -> Moved:
    xp = _library(state)
    position, speed = _columns(state)
    slope = xp.cos(3 * position) * -0.0025
    position, speed = _drive(position, speed + (_double(action - 1) * 0.001 + slope))
    terminated = (position >= 0.5) & (speed >= 0)
    return _rows((position, speed)), xp.full_like(position, -1.0), terminated


def _mountain_car_continuous(state: Numbers, action: Numbers) -> Moved:
    xp = _library(state)
    position, speed = _columns(state)  # float32: Gymnasium rounds this task's state at every step
    force = _clip(action[:, 0], -1.0, 1.0)
    slope = 0.0025 * xp.cos(_double(3 * position))
    position, speed = _drive(position, speed + (force * 0.0015 - _single(slope)))
    terminated = (position >= 0.45) & (speed >= 0)
    # The price is that of the action as given, clipped or not.
    reward = xp.where(terminated, 100.0, 0.0) - _double(action[:, 0]) ** 2 * 0.1
    return _rows((position, speed)), reward, terminated


def _drive(position: Numbers, speed: Numbers) -> tuple[Numbers, Numbers]:
    """The valley: top speeds, and a wall on the left that stops the car."""
    xp = _library(position)
    speed = _clip(speed, -0.07, 0.07)
    position = _clip(position + speed, -1.2, 0.6)
    return position, xp.where((position == -1.2) & (speed < 0), 0.0, speed)


def _start_mountain_car(uniform: Numbers) -> Numbers:
    xp = _library(uniform)
    position = uniform[:, 0] * 0.2 - 0.6
    return _rows((position, xp.zeros_like(position)))


def _start_mountain_car_continuous(uniform: Numbers) -> Numbers:
    return _single(_start_mountain_car(uniform))


# ---------------------------------------------------------------------- acrobot

Columns = tuple[Numbers, Numbers, Numbers, Numbers]  # two angles, two angular speeds


def _acrobot(state: Numbers, action: Numbers) -> Moved:
    xp = _library(state)
    here: Any = _columns(state)
    torque = _double(action - 1)
    first = _swing(here, torque)
    second = _swing(_along(here, 0.1, first), torque)
    third = _swing(_along(here, 0.1, second), torque)
    fourth = _swing(_along(here, 0.2, third), torque)
    slopes = zip(first, second, third, fourth, strict=True)
    mean: Any = tuple(a + 2 * b + 2 * c + d for a, b, c, d in slopes)
    inner, outer, inner_spin, outer_spin = _along(here, 0.2 / 6.0, mean)
    inner, outer = _wrapped(inner), _wrapped(outer)
    inner_spin = _clip(inner_spin, -4 * math.pi, 4 * math.pi)
    outer_spin = _clip(outer_spin, -9 * math.pi, 9 * math.pi)
    terminated = -xp.cos(inner) - xp.cos(outer + inner) > 1.0
    reward = _double(xp.where(terminated, 0.0, -1.0))
    return _rows((inner, outer, inner_spin, outer_spin)), reward, terminated


def _swing(state: Columns, torque: Numbers) -> Columns:
    """Time derivative of the state: links of 1 m, 1 kg and inertia 1, as in Sutton & Barto."""
    inner, outer, inner_spin, outer_spin = state
    xp = _library(inner)
    cos, sin = xp.cos(outer), xp.sin(outer)
    own = 3.5 + cos
    shared = 1.25 + 0.5 * cos
    weight = 4.9 * xp.sin(inner + outer)
    load = 14.7 * xp.sin(inner) + weight - (0.5 * outer_spin + inner_spin) * outer_spin * sin
    ratio = shared / own
    turn = torque + ratio * load - 0.5 * inner_spin**2 * sin - weight
    outer_turn = turn / (1.25 - ratio * shared)
    return inner_spin, outer_spin, -(shared * outer_turn + load) / own, outer_turn


def _along(state: Columns, step: float, slope: Columns) -> Columns:
    one, two, three, four = (x + step * dx for x, dx in zip(state, slope, strict=True))
    return one, two, three, four


def _wrapped(angle: Numbers) -> Numbers:
    xp = _library(angle)
    return angle - 2 * math.pi * xp.round(angle / (2 * math.pi))


def _start_acrobot(uniform: Numbers) -> Numbers:
    return _double(_single(uniform * 0.2 - 0.1))  # Gymnasium rounds the first state only


def _observe_acrobot(state: Numbers) -> Numbers:
    xp = _library(state)
    inner, outer, inner_spin, outer_spin = _columns(state)
    circle = (xp.cos(inner), xp.sin(inner), xp.cos(outer), xp.sin(outer))
    return _single(_rows((*circle, inner_spin, outer_spin)))


_CART_POLE = Task(_cart_pole, _single, _start_cart_pole, state_size=4, max_steps=500)

TASKS: dict[str, Task] = {
    "CartPole-v0": _CART_POLE._replace(max_steps=200),
    "CartPole-v1": _CART_POLE,
    "Pendulum-v1": Task(_pendulum, _observe_pendulum, _start_pendulum, 2, 200, 2.0),
    "MountainCar-v0": Task(_mountain_car, _single, _start_mountain_car, 2, 200),
    "MountainCarContinuous-v0": Task(
        _mountain_car_continuous, _single, _start_mountain_car_continuous, 2, 999, 1.0
    ),
    "Acrobot-v1": Task(_acrobot, _observe_acrobot, _start_acrobot, 4, 500),
}


# ------------------------------------------------------------------- the vector


class ClassicVector:
    """N copies of a task. All share one generator, seeded by all seeds jointly.

    `step` works in numpy. Whoever compiles many steps runs `advance` on tensors: `uniforms` gives
    the numbers that as many calls of `step` would have used, `move_to` takes back where it came to.
    """

    snapshot_level = "E0"

    def __init__(self, id: str, seeds: Sequence[int], max_steps: int | None = None) -> None:
        name = id.rpartition(":")[2]
        if name not in TASKS:
            known = ", ".join(TASKS)
            raise UserError(f"'{id}' is not written in torch: {known} are")
        if not seeds:
            raise ValueError("a vector needs at least one seed")
        self.task = TASKS[name]
        self.max_steps = self.task.max_steps if max_steps is None else max_steps
        self.num_envs = len(seeds)
        described = gym.make(
            gym.registry[name], max_episode_steps=self.max_steps, disable_env_checker=True
        )
        self.spec = describe(described, id)
        described.close()
        self.state: Array = self.task.start(np.zeros((self.num_envs, self.task.state_size)))
        self.elapsed = np.zeros(self.num_envs, np.int64)
        self._episodes = Episodes(seeds)
        self._generator = np.random.Generator(np.random.PCG64())
        self._block, self._used = np.empty(0), BLOCK
        self._before_block: dict[str, Any] = dict(self._generator.bit_generator.state)

    def reset(self, seeds: Sequence[int] | None = None) -> Array:
        """Reset every environment, with new seeds if given; the first observations [N, O]."""
        seed = joint_seed(self._episodes.start(seeds))
        if seed is not None:
            self._generator = np.random.Generator(np.random.PCG64(seed))
            self._used = BLOCK
        self.state = self.task.start(self.uniforms(1)[0])
        self.elapsed = np.zeros_like(self.elapsed)
        first: Array = self.task.observe(self.state)
        return first

    def step(self, action: Array) -> Step:
        """One decision per environment; ended episodes are already reset in `Step.obs`."""
        space = self.spec.action
        # Reshaped and checked: an array would spread a short row, and take any number as an action.
        given = np.asarray(action, space.dtype).reshape(self.num_envs, *space.shape)
        # As unsigned numbers, negative ones are the largest.
        if isinstance(space, Discrete) and np.maximum.reduce(given.view(np.uint64)) >= space.n:
            raise ValueError(f"actions of '{self.spec.id}' are 0 … {space.n - 1}, got {given}")
        uniform = self.uniforms(1)[0]  # one row at every step, used or not: `advance` does so too
        moved = _move(self.task, self.state, self.elapsed, given, self.max_steps)
        if (moved.terminated | moved.truncated).any():
            moved = _restart(self.task, moved, uniform)
        self.state, self.elapsed = moved.state, moved.elapsed
        return Step(*moved[2:])

    def advance(self, state: Tensor, elapsed: Tensor, action: Tensor, uniform: Tensor) -> Advanced:
        """One step from anywhere, as a pure function of tensors."""
        return advance(self.task, state, elapsed, action, uniform, self.max_steps)

    def uniforms(self, count: int) -> Array:
        """The random numbers of the next `count` vector steps, [count, N, S]. They are used up."""
        if not self._episodes.started:
            raise RuntimeError("call reset() before step()")
        rows = []
        while count > 0:
            if self._used == BLOCK:
                self._before_block = dict(self._generator.bit_generator.state)
                self._block = self._generator.random((BLOCK, *self.state.shape))
                self._used = 0
            rows.append(self._block[self._used : self._used + count])
            self._used += len(rows[-1])
            count -= len(rows[-1])
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def move_to(self, state: Array, elapsed: Array) -> None:
        """Stand where a loop of `advance` ended."""
        here = (self.state.shape, self.state.dtype, self.elapsed.shape, self.elapsed.dtype)
        there = (state.shape, state.dtype, elapsed.shape, elapsed.dtype)
        if here != there:
            raise ValueError(f"a vector of {here} cannot move to {there}")
        self.state, self.elapsed = state, elapsed

    def close(self) -> None:
        """Nothing is held."""

    def state_dict(self) -> dict[str, Any]:
        """Where every copy stands, and the place in the random numbers."""
        return self._episodes.state_dict() | {
            "state": self.state,
            "elapsed": self.elapsed,
            "before_block": self._before_block,
            "used": self._used,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the saved vector stood."""
        if state["state"].shape != self.state.shape:
            raise UserError(f"state of {len(state['state'])} envs cannot fill {self.num_envs}")
        self._episodes.load_state_dict(state)
        self.move_to(np.array(state["state"]), np.array(state["elapsed"]))
        self._before_block, self._used = state["before_block"], int(state["used"])
        self._generator.bit_generator.state = self._before_block
        if self._episodes.started:
            self._block = self._generator.random((BLOCK, *self.state.shape))
