"""The config.yaml of a run as plain data: no plug-in is imported to look at a run.

The file may come from anywhere, so reading it is bounded: size, depth, values once aliases are
followed, digits of a number; and nothing but blocks, lists, text, numbers, true, false and null.
"""

import errno
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from rl_lab.core.errors import UserError
from rl_lab.records import files

MAX_BYTES = 1_000_000
MAX_DEPTH = 64
MAX_VALUES = 100_000  # counted after aliases are followed, so a few lines cannot become a gigabyte
MAX_DIGITS = 1_000
MAX_BRACKETS = 500  # open at a time, those in text included
# libyaml's safe loader takes an eighth of the time: half a minute for ten thousand runs. But it
# nests on the C stack, which a larger file could overflow.
_FAST_BYTES = 16_000
_MERGE = "tag:yaml.org,2002:merge"

# What two runs of one experiment may differ in: who they are, how fast, what they show and keep.
_OWN_BLOCKS = ("compute", "checkpoint", "logging")
_OWN_KEYS = {
    "experiment": ("name", "seed", "device", "tags"),
    "environment": ("vectorization",),
    "evaluation": ("every_steps", "num_envs"),
}


class _Bounded:
    """What a loader of PyYAML must not do with a file of another user."""

    def flatten_mapping(self, node: Any) -> None:
        """Merge keys multiply without end, and no run has ever written one."""
        if any(key.tag == _MERGE for key, _ in node.value):
            raise ValueError("merge keys (<<) are not allowed here")

    def construct_yaml_int(self, node: Any) -> Any:
        """A number of a million digits takes minutes."""
        if len(node.value) > MAX_DIGITS:
            raise ValueError(f"a number of more than {MAX_DIGITS:,} digits")
        return super().construct_yaml_int(node)  # type: ignore[misc]


class _Slow(_Bounded, yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
    pass


class _Fast(_Bounded, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    pass


for _loader in (_Slow, _Fast):
    _loader.add_constructor("tag:yaml.org,2002:int", _loader.construct_yaml_int)


def parse_config(data: bytes) -> dict[str, Any]:
    """The tree of a config.yaml, or a `ValueError` that says why it is none."""
    loader = (_Fast if len(data) <= _FAST_BYTES else _Slow)(data)
    try:
        tree = loader.get_single_data()
        _check(tree)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ValueError(f"bad YAML{where}: {problem.splitlines()[0]}") from error
    except RecursionError:
        raise ValueError("nested too deeply") from None
    finally:
        loader.dispose()
    if tree is None:
        raise ValueError("the file is empty")
    if not isinstance(tree, dict):
        raise ValueError("expected `key: value` lines at the top level")
    if "algorithm" not in tree or "environment" not in tree:
        missing = "environment" if "algorithm" in tree else "algorithm"
        raise ValueError(f"it has no {missing}: it is damaged")
    return tree


def _check(tree: object) -> None:
    """Refuse what no run has written, without ever following an alias too far."""
    waiting, count = [(tree, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values once aliases are followed")
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if isinstance(node, dict):
            if odd := [str(key)[:40] for key in node if not isinstance(key, str)]:
                raise ValueError(f"the key {odd[0]!r} is not text")
            waiting += [(each, depth + 1) for each in node.values()]
        elif isinstance(node, list):
            waiting += [(each, depth + 1) for each in node]
        elif not (node is None or isinstance(node, (str, int, float))):
            raise ValueError(f"a value is a {type(node).__name__}: not text and not a number")


def load_tree(path: Path) -> dict[str, Any]:
    """The tree of a config.yaml, or a `UserError` of one line."""
    try:
        return parse_config(read_bounded(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def read_config(path: Path) -> Any:
    """The tree of a config.yaml; None if it cannot be read."""
    try:
        return parse_config(read_bounded(path))
    except (OSError, ValueError):
        return None


def read_bounded(path: Path) -> bytes:
    """The content of a regular file that is small enough to be a configuration."""
    try:
        data = files.read_bounded(path, MAX_BYTES)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(f"larger than {MAX_BYTES // 1_000_000} MB: not a config file") from None
    depth = 0
    for bracket in re.finditer(rb"[\[\]{}]", data):  # a parser takes the square of that
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_BRACKETS:
            raise ValueError("nested too deeply")
    return data


def at(tree: object, *keys: str) -> Any:
    """The value at a path of a tree; None where there is none."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def experiment_of(tree: object) -> str | None:
    """What the seeds of one experiment share: a short hash of the config without the seed."""
    if not isinstance(tree, Mapping):
        return None
    shared = {key: each for key, each in tree.items() if key not in _OWN_BLOCKS}
    for block, own in _OWN_KEYS.items():
        keys = shared.get(block)
        if isinstance(keys, Mapping):
            shared[block] = {key: each for key, each in keys.items() if key not in own}
    try:
        text = json.dumps(shared, sort_keys=True, default=str)
    except (TypeError, ValueError):  # keys that JSON does not have
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:12]
