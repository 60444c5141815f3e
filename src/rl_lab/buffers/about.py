"""What `dataset.json` says: columns, units of actions, reference returns; checked, as it may lie.

A disk buffer writes `format`, `environment`, `num_envs` and `columns`. A dataset of ours adds

    actions     {kind: box, low: …, high: …}, {kind: discrete, n: 4} or {kind: multi, nvec: …},
                in the environment's own units; without it they are those of the policy
    references  {random: …, expert: …}: the returns that count as 0 and as 100

and what people want to know (`rl_lab.datasets.folder`).
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.storage import layout
from rl_lab.core.batch import ACTION, OBS, REWARD, TERMINATED, TRUNCATED
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec, MultiDiscrete, Space

MOST_NUMBERS = 2**31  # in one row of a column


def actions_of(space: Space) -> dict[str, Any]:
    """How a description says what actions there are, in their own units."""
    if isinstance(space, Box):
        low, high = (_told(each) for each in (space.low, space.high))
        return {"kind": "box", "low": low, "high": high}
    if isinstance(space, Discrete):
        return {"kind": "discrete", "n": int(space.n)}
    return {"kind": "multi", "nvec": [int(each) for each in space.nvec]}


def _told(numbers: Any) -> list[Any]:
    """Numbers for JSON, which has no infinity."""
    flat = np.asarray(numbers, np.float64).reshape(-1).tolist()
    return [each if math.isfinite(each) else None for each in flat]


def action_space(about: Mapping[str, Any], where: Path) -> Space | None:
    """The space of the actions in the files; None where they are the policy's own."""
    told = about.get("actions")
    if told is None:
        return None
    try:
        shape = tuple(int(each) for each in about["columns"][ACTION]["shape"])
        if told["kind"] == "discrete":
            return Discrete(int(told["n"]))
        if told["kind"] == "multi":
            return MultiDiscrete(tuple(int(each) for each in told["nvec"]))
        low, high = (
            np.array([sign * math.inf if each is None else float(each) for each in told[name]])
            .astype(np.float32)
            .reshape(shape)
            for name, sign in (("low", -1), ("high", 1))
        )
        return Box(shape, np.dtype(np.float32), low, high)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where} does not describe its actions: {error!r}") from error


def check_actions(folder: Path, about: Mapping[str, Any], spec: EnvSpec) -> None:
    """Actions that an environment does not have cannot be learned from."""
    there, here = action_space(about, folder), spec.action
    if isinstance(there, Discrete) and isinstance(here, Discrete) and there.n > here.n:
        raise UserError(f"{folder} has {there.n} different actions, {spec.id} has {here.n}")


def action_bounds(about: Mapping[str, Any], spec: EnvSpec) -> Box | None:
    """The bounds of the actions in the files, if they are not those of the algorithm."""
    there, here = action_space(about, Path(str(about.get("environment")))), spec.action
    if not isinstance(there, Box) or not isinstance(here, Box) or there.shape != here.shape:
        return None
    if not (there.bounded and here.bounded):
        return None
    same = np.array_equal(there.low, here.low) and np.array_equal(there.high, here.high)
    return None if same else there


def references(about: Mapping[str, Any]) -> dict[str, float]:
    """The returns of random and expert play, if both are known and differ."""
    told = about.get("references")
    if not isinstance(told, Mapping):
        return {}
    found = {name: told.get(name) for name in ("random", "expert")}
    known = {
        name: float(each)
        for name, each in found.items()
        if isinstance(each, int | float) and math.isfinite(each)
    }
    return known if len(known) == 2 and known["random"] != known["expert"] else {}


def fitting_types(there: EnvSpec, here: EnvSpec, folder: Path) -> dict[str, np.dtype[Any]]:
    """The types of the columns for a reader; what is in a folder must fit its environment."""
    found, wanted = layout(there), layout(here)
    if set(found) != set(wanted):
        one = min(set(found) ^ set(wanted))
        whose = f"{folder} has" if one in found else f"{here.id} has"
        raise UserError(f"{folder} does not fit {here.id}: only {whose} '{one}'")
    for name, (shape, kind) in wanted.items():
        if found[name][0] != shape or not fits(np.dtype(found[name][1]), np.dtype(kind)):
            raise UserError(
                f"{folder}: '{name}' is {np.dtype(found[name][1])} {list(found[name][0])}, "
                f"{here.id} needs {np.dtype(kind)} {list(shape)}"
            )
    return {name: np.dtype(kind) for name, (_, kind) in wanted.items()}


def fits(there: np.dtype[Any], here: np.dtype[Any]) -> bool:
    """Other sizes of the same kind of number are converted; pictures must be bytes."""
    return np.can_cast(there, here, "same_kind") or (there.kind in "iu" and here.kind == "i")


def spec_of(about: Mapping[str, Any], where: Path) -> EnvSpec:
    """What an environment with these columns looks like, as far as files can tell."""
    try:
        columns: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for name, each in about["columns"].items():
            shape, kind = tuple(int(size) for size in each["shape"]), np.dtype(str(each["dtype"]))
            if (
                min(shape, default=0) < 0
                or math.prod(shape) > MOST_NUMBERS
                or kind.kind not in "biuf"
            ):
                raise ValueError(f"'{name}' has rows that cannot be")
            columns[str(name)] = (shape, kind)
        frames = {name: each for name, each in columns.items() if name.partition("/")[0] == OBS}
        missing = {ACTION, REWARD, TERMINATED, TRUNCATED} - set(columns)
        if missing or not frames:
            raise ValueError(f"'{min(missing, default=OBS)}' is missing")
        parts: dict[str, Space] = {
            name.removeprefix(f"{OBS}/"): _box(*frames[name]) for name in frames
        }
        observation = parts[OBS] if OBS in frames else Dict(parts)
        action = action_space(about, where)
        if action is None:
            shape, kind = columns[ACTION]
            whole = MultiDiscrete((MOST_NUMBERS,) * shape[0]) if shape else Discrete(MOST_NUMBERS)
            action = _box(shape, kind) if kind.kind == "f" else whole
        return EnvSpec(str(about["environment"]), observation, action)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{where} does not describe a dataset: {error!r}") from error


def _box(shape: tuple[int, ...], kind: np.dtype[Any]) -> Box:
    if np.issubdtype(kind, np.floating):
        low, high = -math.inf, math.inf
    else:
        low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return Box(shape, kind, np.full(shape, low, kind), np.full(shape, high, kind))
