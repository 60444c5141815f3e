"""Made-up transitions whose numbers say where they belong, and a list-based buffer to compare with.

A frame is `[environment, fragment, t]`. A fragment is an episode, or what was played of it before
the environments were started anew or steps were lost. So any mistake about borders shows.
"""

from typing import Any

import numpy as np
import torch

from rl_lab.core.protocols import BufferSetup
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec

KEYS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


def box(shape: tuple[int, ...], kind: Any = np.float32) -> Box:
    return Box(shape, np.dtype(kind), np.zeros(shape, kind), np.ones(shape, kind))


SPEC = EnvSpec("Made-Up", box((3,)), Discrete(1000))
PARTS = EnvSpec("Made-Up", Dict({"camera": box((3,), np.uint8), "arm/speed": box((3,))}), box((2,)))
GOAL_PARTS = ("observation", "achieved_goal", "desired_goal")
GOALS = EnvSpec("Goals", Dict({name: box((3,)) for name in GOAL_PARTS}), Discrete(1000))
OWN = -1.0  # the goal of every made-up episode: no frame has it


def setup(spec: EnvSpec = SPEC, num_envs: int = 2, seed: int = 0, **more: Any) -> BufferSetup:
    return BufferSetup(spec, num_envs, np.random.default_rng(seed), **more)


class Stream:
    """What a collector would bring, trajectory by trajectory; remembers all of it."""

    def __init__(self, num_envs: int, seed: int, spec: EnvSpec = SPEC, ends: float = 0.2) -> None:
        self.num_envs, self.spec, self.ends = num_envs, spec, ends
        self.rng = np.random.default_rng(seed)
        self.fragment = [0] * num_envs
        self.t = [0] * num_envs
        self.first = [True] * num_envs
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]

    def restart(self) -> None:
        """New episodes everywhere, without an end of the old ones."""
        for env in range(self.num_envs):
            self._begin(env)

    def lose(self, env: int) -> None:
        """A step is played and not kept: the frames do not fit together, and no flag says so."""
        self._begin(env)
        self.t[env], self.first[env] = 7, False

    def trajectory(self, steps: int) -> dict[str, Any]:
        """`steps` vector steps as tensors [T, N, …]."""
        made = [[self._step(env) for env in range(self.num_envs)] for _ in range(steps)]
        batch = {
            key: self._stacked([[row[key] for row in rows] for rows in made])
            for key in (*KEYS, "reset")
        }
        return {**batch, "log_prob": torch.zeros(steps, self.num_envs), "state": None}

    def _step(self, env: int) -> dict[str, Any]:
        kind = "go" if self.rng.random() >= self.ends else self.rng.choice(["terminal", "cut"])
        obs = [env, self.fragment[env], self.t[env]]
        number = len(self.rows[env])
        row = {
            "obs": obs,
            "action": number % 1000,
            "reward": number + env / 8,
            "terminated": kind == "terminal",
            "truncated": kind == "cut",
            "next_obs": [obs[0], obs[1], obs[2] + 1],
            "reset": self.first[env],
            "fragment": self.fragment[env],
        }
        self.rows[env].append(row)
        self.t[env] += 1
        self.first[env] = False
        if kind != "go":
            self._begin(env)
        return row

    def _begin(self, env: int) -> None:
        self.fragment[env] += 1
        self.t[env], self.first[env] = 0, True

    def _stacked(self, rows: list[list[Any]]) -> Any:
        values = np.array(rows)
        if values.ndim == 3 and isinstance(self.spec.observation, Dict):
            return {
                "camera": torch.from_numpy(values.astype(np.uint8)),
                "arm/speed": torch.from_numpy(values.astype(np.float32)),
            }
        if values.dtype == np.float64 or values.ndim == 3:
            return torch.from_numpy(values.astype(np.float32))
        if values.dtype == np.int64 and isinstance(self.spec.action, Box):
            return torch.from_numpy(np.stack([values, -values], -1).astype(np.float32))
        return torch.from_numpy(values)

    def windows(self, rows: int, n_step: int) -> list[tuple[Any, ...]]:
        """Every n-step window that a buffer of so many vector steps must know, sorted."""
        found = []
        for history in self.rows:
            held = history[-rows:]
            for start, row in enumerate(held):
                window = [row]
                for later in held[start + 1 : start + n_step]:
                    if later["fragment"] != row["fragment"]:
                        break
                    window.append(later)
                last = window[-1]
                rewards = [each["reward"] for each in window]
                found.append(
                    (
                        *row["obs"],
                        row["action"],
                        *rewards,
                        *[0.0] * (n_step - len(window)),
                        last["terminated"],
                        last["truncated"],
                        *last["next_obs"],
                        len(window),
                    )
                )
        return sorted(found)


def pay(achieved: Any, desired: Any) -> Any:
    """0 where the goal is reached, −1 elsewhere; float64, as environments give it."""
    return np.where((achieved == desired).all(-1), 0.0, -1.0)


class GoalStream(Stream):
    """What is achieved is the frame `[environment, fragment, t]` itself."""

    def trajectory(self, steps: int) -> dict[str, Any]:
        made = super().trajectory(steps)
        for key in ("obs", "next_obs"):
            frame = made[key]
            made[key] = {
                "observation": frame,
                "achieved_goal": frame.clone(),
                "desired_goal": torch.full_like(frame, OWN),
            }
        return made


def told(batch: dict[str, Any], n_step: int) -> list[tuple[Any, ...]]:
    """Rows [B, …] of a buffer as `Stream.windows` has them."""
    count = len(batch["reward"])
    steps = batch.get("steps", torch.ones(count, dtype=torch.int64))
    columns = [
        batch["obs"].reshape(count, 3),
        batch["action"].reshape(count, 1),
        batch["reward"].reshape(count, n_step),
        batch["terminated"].reshape(count, 1),
        batch["truncated"].reshape(count, 1),
        batch["next_obs"].reshape(count, 3),
        steps.reshape(count, 1),
    ]
    rows = torch.cat([column.double() for column in columns], 1)
    return sorted(tuple(row) for row in rows.tolist())


def arrivals(stream: Stream, rows: int) -> list[list[tuple[float, ...]]]:
    """The frames that a buffer of so many vector steps must know, by environment, in time order.

    A row is the frame's three numbers, previous action, reward, reset, terminated, truncated.
    """
    by_env = []
    for history in stream.rows:
        frames = []
        for number, row in enumerate(history):
            before = history[number - 1] if number else None
            if before is None or before["fragment"] != row["fragment"]:
                if before is not None:
                    terminated = before["terminated"]
                    led = (before["action"], before["reward"])
                    end = (*before["next_obs"], *led, False, terminated, not terminated)
                    frames.append((number - 1, end))
                led = (0, 0.0)
                frames.append((number, (*row["obs"], *led, True, False, False)))
            else:
                led = (before["action"], before["reward"])
                frames.append((number, (*row["obs"], *led, False, False, False)))
        oldest = max(len(history) - rows, 0)
        held = [frame for number, frame in frames if number >= oldest]
        by_env.append(held[1:] if oldest else held)  # what led to the oldest one is overwritten
    return by_env
