"""Rollouts in which policy and simulator are one compiled program: no Python between two steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Batch,
)
from rl_lab.core.compiled import Compiled
from rl_lab.core.protocols import Policy, Simulator

MOST_STEPS = 16  # of one call: more gain little and take longer to compile


class Simulation:
    """Runs a simulator with a policy, many steps at a time."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self._programs: dict[Callable[..., Any], Compiled] = {}

    def rollout(self, policy: Policy, obs: Tensor, steps: int) -> tuple[Batch, Tensor]:
        """`steps` transitions of every environment [T, N, …], and the frames to act on next."""
        program = self._programs.get(policy.decide)
        if program is None:
            whole = partial(_play, policy.decide, self.simulator.advance)
            program = Compiled(whole, "rollouts", shorten=_one_step)
            self._programs[policy.decide] = program
        length = max(each for each in range(1, MOST_STEPS + 1) if steps % each == 0)
        simulator, noise = self.simulator, policy.noise(steps)
        uniforms = torch.from_numpy(simulator.uniforms(steps))
        state, elapsed = torch.from_numpy(simulator.state), torch.from_numpy(simulator.elapsed)
        play, pieces = program.given(policy.weights), []
        for at in range(0, steps, length):
            span = slice(at, at + length)
            state, elapsed, obs, rows = play(state, elapsed, obs, noise[span], uniforms[span])
            pieces.append(rows)
        simulator.move_to(state.numpy(), elapsed.numpy())
        return {name: torch.cat([each[name] for each in pieces]) for name in pieces[0]}, obs


def _play(
    decide: Callable[..., Any],
    advance: Callable[..., Any],
    state: Tensor,
    elapsed: Tensor,
    obs: Tensor,
    noise: Tensor,
    uniforms: Tensor,
    weights: dict[str, Tensor],
) -> tuple[Tensor, Tensor, Tensor, Batch]:
    """As many steps as there are rows of random numbers. Pure."""
    rows: list[Batch] = []
    for own, fresh in zip(noise, uniforms, strict=True):
        action, extras = decide(weights, obs, own)
        moved = advance(state, elapsed, action, fresh)
        rows.append(
            {
                OBS: obs,
                ACTION: action,
                REWARD: moved.reward.to(torch.float32),
                TERMINATED: moved.terminated,
                TRUNCATED: moved.truncated,
                NEXT_OBS: moved.next_obs,
                **extras,
            }
        )
        state, elapsed, obs = moved.state, moved.elapsed, moved.obs
    return state, elapsed, obs, {key: torch.stack([each[key] for each in rows]) for key in rows[0]}


def _one_step(
    state: Tensor, elapsed: Tensor, obs: Tensor, noise: Tensor, uniforms: Tensor, weights: object
) -> tuple[Any, ...]:
    return state, elapsed, obs, noise[:1], uniforms[:1], weights


def first_frames(ended: Tensor, is_first: Array) -> Tensor:
    """Where the rows [T, N] of a rollout begin an episode, if it began with `is_first` [N]."""
    start = torch.from_numpy(np.asarray(is_first)).unsqueeze(0)
    return torch.cat([start, ended[:-1]])
