"""A typed config as plain data: trees, hashes, differences, descriptions of options."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple, get_type_hints

import yaml

from rl_lab.core.options import allowed, declared_range
from rl_lab.core.schedule import Schedule
from rl_lab.core.schema import RunConfig
from rl_lab.core.values import type_name

ABSENT = "(absent)"


def to_tree(config: object) -> Any:
    """A config as plain data that JSON and YAML can hold; validating it gives the same config."""
    if isinstance(config, Schedule):
        return config.to_tree()
    if is_dataclass(config) and not isinstance(config, type):
        names = [each.name for each in fields(config)]
        names.sort(key=lambda name: name not in ("name", "type", "_target_"))
        return {name: to_tree(getattr(config, name)) for name in names}
    if isinstance(config, Mapping):
        return {str(key): to_tree(each) for key, each in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_tree(each) for each in config]
    return config


def to_yaml(config: RunConfig) -> str:
    """A config as the text of a config.yaml."""
    return yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True, width=100)


def config_hash(config: RunConfig) -> str:
    """sha256 of what decides the run: everything but its name, its tags and its logging."""
    return tree_hash(to_tree(config))


def tree_hash(tree: Mapping[str, Any]) -> str:
    """The same of a config as plain data, such as a config.yaml of an earlier version."""
    tree = {key: each for key, each in tree.items() if key != "logging"}
    names = dict(tree.get("experiment") or {})
    tree["experiment"] = {key: each for key, each in names.items() if key not in ("name", "tags")}
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def leaves(tree: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every `(path, value)` of a tree; a list is one value, an empty block too."""
    if isinstance(tree, Mapping) and tree:
        for key, each in tree.items():
            yield from leaves(each, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def diff(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Where two trees differ: `(path, left, right)`, with `ABSENT` where one has nothing."""
    one, other = dict(leaves(left)), dict(leaves(right))
    paths = list(one) + [path for path in other if path not in one]
    pairs = [(path, one.get(path, ABSENT), other.get(path, ABSENT)) for path in paths]
    return [(path, a, b) for path, a, b in pairs if a != b or type(a) is not type(b)]


class OptionRow(NamedTuple):
    """One option, for `--help` and the docs."""

    path: str
    type: str
    default: object
    help: str
    allowed: str = ""  # its range in words, if it has one


def describe(config: type, prefix: str = "") -> list[OptionRow]:
    """Every option of a config dataclass, nested ones by dotted path, with its description."""
    rows: list[OptionRow] = []
    hints = get_type_hints(config)
    for each in fields(config):
        path, help = f"{prefix}{each.name}", each.metadata.get("help", "")
        if kind := each.metadata.get("variant"):
            key = each.metadata["key"]
            rows.append(OptionRow(f"{path}.{key}", kind, each.metadata["default"].get(key), help))
        elif is_dataclass(hints[each.name]):
            rows += describe(hints[each.name], f"{path}.")
        else:
            default = each.default
            if each.default_factory is not MISSING:
                default = each.default_factory()
            kind, limits = type_name(hints[each.name]), allowed(declared_range(config, each.name))
            rows.append(OptionRow(path, kind, to_tree(default), help, limits))
    return rows
