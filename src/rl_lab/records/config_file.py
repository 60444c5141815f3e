"""The config.yaml of a run as plain data: no plug-in is imported to look at a run."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from rl_lab.core.errors import UserError
from rl_lab.records.files import read_bounded

MAX_BYTES = 1_000_000
SMALL_BYTES = 10_000  # no file of this size can be nested deeply enough to overflow libyaml's stack
MAX_DEPTH = 64
MAX_VALUES = 100_000  # counted after aliases are followed, so a few lines cannot become a gigabyte

# What two runs of one experiment may differ in: who they are, how fast, what they show and keep.
_OWN_BLOCKS = ("compute", "checkpoint", "logging")
_OWN_KEYS = {"experiment": ("name", "seed", "device", "tags"), "environment": ("vectorization",)}


def read_config(path: Path) -> Any:
    """The tree of a config.yaml; None if it is damaged."""
    try:
        return read_config_tree(path)
    except UserError:
        return None


def read_config_tree(path: Path) -> dict[str, Any]:
    """The tree of a config.yaml; `UserError` with the reason if it is damaged."""
    # libyaml's safe loader takes an eighth of the time: half a minute for ten thousand runs.
    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = read_bounded(path, MAX_BYTES)
        if len(data) > SMALL_BYTES:
            _check_depth(yaml.parse(data, kind))
        loader = kind(data)
        node = loader.get_single_node()
        _check_values(node)
        tree = loader.construct_document(node) if node is not None else None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a configuration: {reason}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a configuration: expected `key: value` lines")
    return tree


def _check_depth(events: Iterable[Any]) -> None:
    """Before nodes are composed, which recurses in C."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")


def _check_values(root: Any) -> None:
    """Before values are constructed: aliases may multiply them without end."""
    count, waiting = 0, [(root, 1)] if root is not None else []
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise ValueError("nested too deeply, or aliases make it too large")
        if isinstance(node, yaml.MappingNode):
            waiting += [(each, depth + 1) for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(each, depth + 1) for each in node.value]


def at(tree: Any, *keys: str) -> Any:
    """The value at a path of a tree; None where there is none."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def experiment_of(tree: Any) -> str | None:
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
