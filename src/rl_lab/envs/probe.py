"""One environment of a run, tried for a moment: what it looks like and what a step of it costs."""

import os
import random
import time
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.seeding import undisturbed
from rl_lab.core.spec import EnvSpec
from rl_lab.envs.make import make_vector, maker, resolve_vectorization
from rl_lab.envs.spaces import describe
from rl_lab.envs.worker import Make

MOST_SECONDS = 0.3  # for the steps of a slow environment, reset and constructor not counted
ENOUGH_SECONDS, ENOUGH_STEPS = 0.02, 10  # a cheap one is known sooner
SEED = 0


@dataclass(frozen=True)
class Probe:
    """What was found out."""

    spec: EnvSpec
    step_seconds: float | None = None  # of one step, with its share of the resets
    obstacle: str | None = None  # why worker processes are no choice
    free_cores: float | None = None  # cores that had nothing to do meanwhile, and the one in use


_SHARED = "it draws from the global random generators"


def look(config: EnvironmentConfig) -> Probe:
    """What the environment looks like; nothing is stepped."""
    with undisturbed():
        if resolve_vectorization(config) not in ("sync", "process"):
            vector = make_vector(config, [SEED])
            vector.close()
            return Probe(vector.spec)
        env = maker(config)()
        try:
            return Probe(describe(env, config.id))
        finally:
            env.close()


def measure(config: EnvironmentConfig) -> Probe:
    """Step one environment with random actions for a moment. No generator of ours moves."""
    make = maker(config)
    with undisturbed():
        before, began, idle = _global_generators(), time.perf_counter(), _idle_seconds()
        env = make()
        try:
            spec = describe(env, config.id)
            try:
                seconds = step_seconds(env)
            except (Exception, SystemExit) as error:  # noqa: BLE001  (environments may raise anything)
                return Probe(spec, obstacle=f"a random action raised {type(error).__name__}")
        finally:
            env.close()
        free = _free_cores(idle, time.perf_counter() - began)
        shared = _global_generators() != before
    return Probe(spec, seconds, _SHARED if shared else unsendable(make), free)


def step_seconds(env: gym.Env[Any, Any]) -> float:
    """The mean over random actions; the first step, which may load things, is not counted."""
    env.action_space.seed(SEED)
    actions = cycle([env.action_space.sample() for _ in range(64)])
    env.reset(seed=SEED)
    ended = _step(env, next(actions))
    began, spent, steps = time.perf_counter(), 0.0, 0
    while spent < MOST_SECONDS and (spent < ENOUGH_SECONDS or steps < ENOUGH_STEPS):
        if ended:
            env.reset()
        ended = _step(env, next(actions))
        steps += 1
        spent = time.perf_counter() - began
    return spent / steps


def _step(env: gym.Env[Any, Any], action: object) -> bool:
    _, _, terminated, truncated, _ = env.step(action)
    return bool(terminated or truncated)


def _global_generators() -> tuple[Any, ...]:
    """Where the generators stand that all code of a process shares."""
    legacy: Any = np.random.get_state(legacy=True)
    torch_state = torch.get_rng_state().numpy().tobytes()
    return random.getstate(), legacy[1].tobytes(), legacy[2:], torch_state


def _free_cores(idle_before: float | None, seconds: float) -> float | None:
    idle = _idle_seconds()
    return None if idle is None or idle_before is None else 1 + (idle - idle_before) / seconds


def _idle_seconds() -> float | None:
    """Idle time of this process's cores, all together; None where the system does not count it."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    own = {f"cpu{index}" for index in os.sched_getaffinity(0)}
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return None
    # Columns 4 and 5 are idle time and time that waits for a disk.
    ticks = sum(int(row[4]) + int(row[5]) for row in rows if row and row[0] in own)
    return ticks / os.sysconf("SC_CLK_TCK")


def unsendable(make: Make) -> str | None:
    """Why an environment cannot be made in another process as it is made here."""
    try:
        sent = bytes(ForkingPickler.dumps(make))
    except Exception:  # noqa: BLE001  (pickling may fail in any way)
        return "it cannot be sent to another process"
    if b"__main__" in sent:  # a worker would run the user's script once more
        return "it is defined in the script that is running"
    return None
