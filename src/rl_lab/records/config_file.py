"""The config.yaml of a run as plain data: no plug-in is imported to look at a run."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

# What two runs of one experiment may differ in: who they are, how fast, what they show and keep.
_OWN_BLOCKS = ("compute", "checkpoint", "logging")
_OWN_KEYS = {"experiment": ("name", "seed", "device", "tags"), "environment": ("vectorization",)}


def read_config(path: Path) -> Any:
    """The tree of a config.yaml; None if it cannot be read."""
    # libyaml's safe loader takes an eighth of the time: half a minute for ten thousand runs.
    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        loader = kind(path.read_bytes())
        return loader.get_single_data()
    except (OSError, yaml.YAMLError):
        return None


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
    text = json.dumps(shared, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
