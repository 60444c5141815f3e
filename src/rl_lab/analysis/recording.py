"""Record episodes of a checkpoint step by step: what it saw, thought, did and got, and what its
world model predicted. The same checkpoint and seed give the same recording.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.algorithms.base import Algorithm
from rl_lab.algorithms.dreamer.open_loop import SEEN
from rl_lab.collect.collector import to_tensor
from rl_lab.collect.play import Moment, Played, episode
from rl_lab.core.batch import OBS, PREVIOUS_ACTION, RESET, REWARD, Array, Batch, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.schedule import at
from rl_lab.core.tree import copied, map_leaves, picked
from rl_lab.display.png import encode_png
from rl_lab.display.video import USUAL_FPS, picture_of
from rl_lab.envs.render import make_shown, make_unseen
from rl_lab.records.recordings import Episode, recording_name, write_recording
from rl_lab.run.build import MOST_EVALUATED, seeds
from rl_lab.run.policy import LoadedPolicy, Policy
from rl_lab.run.signals import StopRequest, stop_on_signals

PURPOSE = "record"  # its own seeds: episodes that no training has seen
MOST_PIXELS = 640  # width of a frame; a larger one loses every second pixel, or more
AHEAD = 15  # steps that a world model predicts before it sees the truth again

ACTION, VALUE, MEMORY_NORM = "action", "value", "memory_norm"
RETURN_TO_GO, VALUE_ERROR, TD_ERROR = "return_to_go", "value_error", "td_error"
PREDICTED, PREDICTED_REWARD, SINCE = "predicted", "predicted_reward", "steps_ahead"


@dataclass(frozen=True)
class Recorded:
    """A recording on disk, and the episodes in it."""

    folder: Path
    played: list[Played]
    run: str
    step: int
    exit_code: int = 0  # 130 or 143: a signal ended it before the last episode

    def to_tree(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "recording": str(self.folder),
            "name": self.folder.name,
            "returns": [each.total for each in self.played],
            "lengths": [each.length for each in self.played],
            "run": self.run,
            "step": self.step,
        }


@dataclass
class _Steps:
    """An episode while it is played: a row per observation, and a row per step."""

    obs: list[Obs] = field(default_factory=list)  # as the algorithm takes them
    thoughts: list[dict[str, Array]] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    chosen: list[Array] = field(default_factory=list)  # in policy space
    actions: list[Array] = field(default_factory=list)  # as the environment takes them
    rewards: list[float] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)


def record_policy(
    loaded: LoadedPolicy,
    *,
    seed: int,
    episodes: int,
    deterministic: bool,
    max_steps: int | None,
    tell: Callable[[int, Played], None],
) -> Recorded:
    """Play, and write what happened into the run's folder `recordings/`."""
    player, config = Policy.of(loaded), loaded.config
    if max_steps is None and loaded.context.spec.max_episode_steps is None:
        max_steps = MOST_EVALUATED
    played: list[Played] = []
    found: list[Episode] = []
    stop, steps = StopRequest(), _Steps()
    with stop_on_signals(stop), closing(_make(loaded)) as env:
        draws = env.render_mode is not None

        def show() -> None:
            if draws:
                frame = picture_of(env.render(), config.environment.id)
                stride = -(-frame.shape[1] // MOST_PIXELS)
                steps.frames.append(encode_png(np.ascontiguousarray(frame[::stride, ::stride])))

        def see(obs: Obs) -> Obs:
            batch, _ = player.frames.given(obs)
            tensors = player.tensors(batch)
            steps.obs.append(copied(batch))  # the environment may reuse its arrays
            steps.thoughts.append(player.describe(tensors))
            if player.memory is not None:
                steps.norms.append(_norm(player.memory))
            return tensors

        def act(obs: Obs) -> Any:
            steps.chosen.append(player.decide(see(obs), deterministic=deterministic))
            steps.actions.append(player.to_action(steps.chosen[-1])[0])
            return steps.actions[-1]

        with loaded.context.rng.borrowed(f"{PURPOSE}/"):
            for number, own in enumerate(seeds(seed, PURPOSE, episodes), 1):
                steps, now = _Steps(), Moment()
                player.reset()
                for now in episode(env, act, own, max_steps=max_steps):
                    steps.rewards += [now.reward] if now.length else []
                    show()
                    if stop.requested:
                        break
                if not now.over:
                    break
                see(now.obs)  # where it ended
                played.append(Played(now.total, now.length, now.terminated))
                found.append(_episode(loaded, steps, played[-1], own))
                tell(number, played[-1])
        facts = {
            "run": loaded.run.id,
            "step": loaded.step,
            "algorithm": config.algorithm.name,
            "environment": config.environment.id,
            "seed": seed,
            "deterministic": deterministic,
            "fps": float(env.metadata.get("render_fps") or USUAL_FPS),
            "labels": _labels(env),
            "scaled_values": bool(config.environment.normalize_reward),
        }
    if not found:
        raise UserError("nothing was recorded: it was stopped before the first episode had ended")
    name = recording_name(loaded.step, seed, sampled=not deterministic)
    folder = write_recording(loaded.run, name, facts, found)
    code = stop.exit_code if stop.requested else 0
    return Recorded(folder, played, loaded.run.id, loaded.step, code)


def _make(loaded: LoadedPolicy) -> Any:
    """The environment, with pictures if it draws any."""
    try:
        return make_shown(loaded.config.environment, window=False)
    except UserError:
        return make_unseen(loaded.config.environment)


def _labels(env: Any) -> list[str]:
    """The names of discrete actions, where the environment has some (Atari's do)."""
    named = getattr(env.unwrapped, "get_action_meanings", None)
    return [str(each) for each in named()] if callable(named) else []


def _norm(memory: object) -> float:
    """The Euclidean norm of all numbers of a memory's state."""
    squares: list[float] = []

    def add(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            squares.append(float(leaf.double().square().sum()))
        return leaf

    map_leaves(add, memory)
    return math.sqrt(sum(squares))


def _episode(loaded: LoadedPolicy, steps: _Steps, played: Played, seed: int) -> Episode:
    arrays: dict[str, Array] = {
        ACTION: np.stack(steps.actions),
        REWARD: np.array(steps.rewards),
        **_parts(OBS, map_leaves(lambda *rows: np.concatenate(rows), *steps.obs)),
    }
    for name in steps.thoughts[0]:
        arrays[name] = np.concatenate([each[name] for each in steps.thoughts])
    if steps.norms:
        arrays[MEMORY_NORM] = np.array(steps.norms)
    if VALUE in arrays and not loaded.config.environment.normalize_reward:
        gamma = vars(at(loaded.config.algorithm, loaded.step)).get("gamma", 1.0)
        arrays |= value_errors(arrays[REWARD], arrays[VALUE], played.terminated, gamma)
    if type(loaded.algorithm).imagine is not Algorithm.imagine:
        arrays |= _predictions(loaded, steps)
    facts = {
        "seed": seed,
        "return": played.total,
        "length": played.length,
        "terminated": played.terminated,
        "frames": len(steps.frames),
    }
    return Episode(facts, arrays, steps.frames)


def value_errors(reward: Array, value: Array, terminated: bool, gamma: float) -> dict[str, Array]:
    """What was still to come [L], and by how much the values [L + 1] were wrong.

    An episode that only a clock ended would have gone on: its last value stands for the rest.
    """
    after = 0.0 if terminated else float(value[-1])
    to_go = np.empty(len(reward))
    for index in reversed(range(len(reward))):
        after = to_go[index] = float(reward[index]) + gamma * after
    following = np.append(value[1:-1], 0.0 if terminated else value[-1])
    return {
        RETURN_TO_GO: to_go,
        VALUE_ERROR: value[:-1] - to_go,
        TD_ERROR: reward + gamma * following - value[:-1],
    }


def _predictions(loaded: LoadedPolicy, steps: _Steps) -> dict[str, Array]:
    """What the world model foresees, by the actions that were played: `AHEAD` steps at a time."""
    device = loaded.config.experiment.device
    rows = _arrival_rows(steps, device)
    count = len(steps.obs)
    pieces: list[Batch] = []
    since = np.zeros(count, np.int64)  # 0: it was seen
    for first in range(SEEN, count, AHEAD):
        ahead = min(AHEAD, count - first)
        seen = picked(rows, slice(0, first))
        actions = rows[PREVIOUS_ACTION][first : first + ahead]
        pieces.append(loaded.algorithm.imagine(horizon=ahead, seen=seen, actions=actions))
        since[first : first + ahead] = np.arange(1, ahead + 1)
    if not pieces:
        return {}
    guessed = map_leaves(lambda *leaves: torch.cat(leaves), *[each[OBS] for each in pieces])
    reward = torch.cat([each[REWARD] for each in pieces])
    filled = {
        name: np.concatenate([np.zeros((SEEN, *rows.shape[2:]), np.float32), rows[:, 0]])
        for name, rows in _parts(PREDICTED, map_leaves(_float_array, guessed)).items()
    }
    arrived = np.concatenate([np.full(SEEN, np.nan), _float_array(reward)[:, 0]])
    return {**filled, PREDICTED_REWARD: arrived[1:], SINCE: since}


def _arrival_rows(steps: _Steps, device: str) -> Batch:
    """The episode [L + 1, 1, …] as world models take it: a frame, and what led to it."""
    obs = map_leaves(lambda *rows: np.stack(rows), *steps.obs)
    chosen = np.stack(steps.chosen)
    reset = torch.zeros(len(steps.obs), 1, dtype=torch.bool, device=device)
    reset[0] = True
    before = np.concatenate([np.zeros_like(chosen[:1]), chosen])
    reward = np.array([0.0, *steps.rewards], np.float32)[:, None]
    return {
        OBS: to_tensor(obs, device),
        PREVIOUS_ACTION: to_tensor(before, device),
        REWARD: to_tensor(reward, device),
        RESET: reset,
    }


def _float_array(leaf: Tensor) -> Array:
    return leaf.float().numpy(force=True)


def _parts(prefix: str, obs: Obs) -> dict[str, Array]:
    """`obs` or `obs/part`: the arrays of an observation by name."""
    if isinstance(obs, Mapping):
        return {f"{prefix}/{name}": rows for name, rows in obs.items()}
    return {prefix: obs}
