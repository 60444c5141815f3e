"""What a single environment does, checked before anything trains on it: one line per check."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core.batch import ACTION_MASK
from rl_lab.core.errors import UserError
from rl_lab.core.failure import located
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.seeding import undisturbed
from rl_lab.envs.contract import RESET, STEP, Contract
from rl_lab.envs.make import maker
from rl_lab.envs.probe import unsendable
from rl_lab.envs.render import PICTURES, make_shown
from rl_lab.envs.spaces import describe

OK, WARN, FAIL = "ok", "warn", "FAIL"
STEPS = 200  # random ones that are checked fully
SEARCH_STEPS = 3000  # how far to look for an episode's end
COMPARED_STEPS = 50  # of two episodes with the same seed
SEED = 0
RENDERING = "rendering"  # the one that training does not need


@dataclass(frozen=True)
class Check:
    """One check, its result, and what was found."""

    name: str
    result: str  # ok, warn or FAIL
    detail: str = ""


class DoubtError(Exception):
    """Something that is legal and probably not meant."""


def check_behavior(id: str, settings: Mapping[str, Any] | None = None) -> list[Check]:
    """Every check of one environment; a failure ends it: the others would only repeat it.

    `settings` are further keys of the `environment:` block. No random generator of ours moves.
    """
    config = EnvironmentConfig(**{"id": id, "num_envs": 1, **(settings or {})})
    checks: list[Check] = []
    with undisturbed():
        try:
            trial = _Trial(config)
        except Exception as error:  # noqa: BLE001  (environments may raise anything)
            return [Check("make", FAIL, located(error))]
        for name, check in trial.checks().items():
            checks.append(_outcome(name, check))
            if checks[-1].result == FAIL and name != RENDERING:
                break
        trial.env.close()
    return checks


def _outcome(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, OK, check())
    except DoubtError as doubt:
        return Check(name, WARN, str(doubt))
    except Exception as error:  # noqa: BLE001  (environments may raise anything)
        return Check(name, FAIL, located(error))


class _Trial:
    """One environment on trial. A check returns what it found, or raises."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.config, self.make = config, maker(config)
        self.env = self.make()
        self.doubts: dict[str, str] = {}
        self.ends: dict[str, int] = {}  # terminated or truncated -> length of the first such one

    def checks(self) -> dict[str, Callable[[], str]]:
        return {
            "spaces": self.spaces,
            "reset": self.reset,
            "reset options": self.reset_options,
            f"{STEPS} random steps": self.steps,
            "numbers and kinds": self.numbers,
            "end of an episode": self.end,
            "same seed, same episode": self.repeat,
            RENDERING: self.rendering,
            "worker processes": self.sending,
        }

    def spaces(self) -> str:
        described = describe(self.env, self.config.id)
        action = self.env.action_space
        if isinstance(action, spaces.Box):
            if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
                raise DoubtError("actions without bounds: policies cannot be scaled to them")
            if not ((action.low == -1).all() and (action.high == 1).all()):
                limits = f"[{action.low.min():g}, {action.high.max():g}]"
                raise DoubtError(
                    f"actions in {limits}: policies begin in [-1, 1], wrappers: "
                    "[{id: RescaleAction}] stretches that"
                )
        return f"{type(self.env.observation_space).__name__} -> {described.action}"

    def reset(self) -> str:
        contract = self._contract()
        for seed in (SEED, None):
            contract.check(RESET, self.env.reset(seed=seed), 0)
        return "two values, and an observation of its space"

    def reset_options(self) -> str:
        self._contract().check(RESET, self.env.reset(seed=SEED, options={}), 0)
        return "reset(seed=…, options={…}) is understood"

    def steps(self) -> str:
        """Fully checked, and finite; on the way, how episodes end."""
        contract, length = self._contract(), 0
        self.env.action_space.seed(SEED)
        frame, _ = self.env.reset(seed=SEED)
        for count in range(1, SEARCH_STEPS + 1):
            returned: Any = self.env.step(self._action(self.env.action_space, frame, count))
            if count <= STEPS:
                contract.check(STEP, returned, count)
            frame, reward, terminated, truncated, _ = returned
            self._require_finite(frame, reward, count)
            length += 1
            if terminated or truncated:
                self.ends.setdefault("terminated" if terminated else "truncated", length)
                frame, _ = returned = self.env.reset()
                contract.check(RESET, returned, count)
                length = 0
            if count >= STEPS and self.ends:
                break
        return "five values each: observation, one number, two flags, info"

    def numbers(self) -> str:
        if self.doubts:
            raise DoubtError("; ".join(self.doubts.values()))
        return "dtypes and bounds as observation_space says"

    def end(self) -> str:
        if not self.ends:
            raise DoubtError(
                f"none in {SEARCH_STEPS:,} random steps: set max_episode_steps, or truncate"
            )
        return ", ".join(f"{how} after {length} steps" for how, length in self.ends.items())

    def repeat(self) -> str:
        first, second = ([*self._episode(env)] for env in (self.make(), self.make()))
        for count, (one, other) in enumerate(zip(first, second, strict=False)):
            if one != other:
                raise DoubtError(
                    f"another observation or reward at step {count}: draw from self.np_random "
                    "only, or runs cannot be repeated"
                )
        return f"{len(first) - 1} steps, bit for bit"

    def rendering(self) -> str:
        modes = list(self.env.metadata.get("render_modes") or [])
        if PICTURES not in modes:
            raise DoubtError(f"no {PICTURES} in metadata['render_modes']: `rl-lab play` needs it")
        env = make_shown(self.config, window=False)
        try:
            env.reset(seed=SEED)
            picture = np.asarray(env.render())
        finally:
            env.close()
        if picture.dtype != np.uint8 or picture.ndim not in (2, 3):
            raise UserError(
                f"render() returned {picture.dtype} of shape {picture.shape}; "
                "expected uint8 of shape (H, W, 3)"
            )
        return f"pictures of {picture.shape[1]} x {picture.shape[0]}"

    def sending(self) -> str:
        if why := unsendable(self.make):
            raise DoubtError(f"none: {why}; environment.vectorization=sync works")
        return "it can be sent to one"

    def _contract(self) -> Contract:
        return Contract(self.env.observation_space, self.config.id, 0, self._doubt)

    def _doubt(self, about: str, sentence: str) -> None:
        self.doubts.setdefault(about, sentence)

    def _action(self, space: gym.Space[Any], frame: object, count: int) -> Any:
        if isinstance(space, spaces.Discrete) and isinstance(frame, Mapping):
            mask = frame.get(ACTION_MASK)
            if mask is not None:
                if not np.any(mask):
                    raise UserError(f"action_mask forbids every action at step {count}")
                return space.sample(mask=np.asarray(mask, np.int8))
        return space.sample()

    def _episode(self, env: gym.Env[Any, Any]) -> Any:
        """What a seed gives, step by step, as bytes."""
        env.action_space.seed(SEED)
        frame, _ = env.reset(seed=SEED + 1)
        yield _bytes(frame)
        for count in range(COMPARED_STEPS):
            action = self._action(env.action_space, frame, count)
            frame, reward, terminated, truncated, _ = env.step(action)
            yield _bytes((frame, reward, terminated, truncated))
            if terminated or truncated:
                break
        env.close()

    def _require_finite(self, frame: object, reward: object, count: int) -> None:
        for name, value in [("an observation", each) for each in _leaves(frame)] + [
            ("a reward", reward)
        ]:
            if np.asarray(value).dtype.kind == "f" and not np.isfinite(value).all():
                raise UserError(f"step() returned {name} that is not finite at step {count}")


def _leaves(frame: object) -> list[Any]:
    if isinstance(frame, Mapping):
        return [leaf for key in sorted(frame, key=str) for leaf in _leaves(frame[key])]
    if isinstance(frame, tuple):
        return [leaf for part in frame for leaf in _leaves(part)]
    return [frame]


def _bytes(tree: object) -> bytes:
    return b"|".join(np.asarray(leaf).tobytes() for leaf in _leaves(tree))
