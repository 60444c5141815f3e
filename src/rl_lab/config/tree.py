"""A typed config as plain data: trees, hashes, differences, descriptions of options."""

import hashlib
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml

from rl_lab.core.options import allowed
from rl_lab.core.schedule import Schedule
from rl_lab.core.schema import AlgorithmConfig, BufferConfig

ABSENT = "(absent)"


class FreeConfig:
    """The block of an algorithm that declares no `Config`: its YAML keys, read-only.

    `config.gamma`, `config["gamma"]` and `config.get("gamma", 0.99)` all work; a key that is a
    schedule is a schedule.
    """

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __getattr__(self, key: str) -> Any:
        raise AttributeError(f"the algorithm block has no key '{key}': write it in the YAML")

    def __contains__(self, key: str) -> bool:
        return key in vars(self)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return vars(self).get(key, default)


CONTRACTS: dict[str, type] = {"workflow": AlgorithmConfig, "buffer": BufferConfig}


@cache
def free_config_class(kind: str, keys: tuple[str, ...]) -> type:
    """The frozen dataclass of an undeclared block with exactly these keys."""
    bases = (FreeConfig, CONTRACTS[kind]) if kind in CONTRACTS else (FreeConfig,)
    return make_dataclass(
        "FreeConfig", [(key, Any) for key in keys], bases=bases, frozen=True, kw_only=True
    )


@cache
def named_config_class(kind: str, config: type, keys: tuple[str, ...]) -> type:
    """A `Config` that also carries the keys by which it was chosen (`name`, `type`, `_target_`).

    The only place where a `Config` of somebody else that does not derive from `AlgorithmConfig` or
    `BufferConfig` is given what those promise.
    """
    known = {each.name for each in fields(config)}
    extra = [(key, str) for key in keys if key not in known]
    contract = CONTRACTS.get(kind, config)
    bases = (config,) if issubclass(config, contract) else (config, contract)
    if not extra and bases == (config,):
        return config
    names = {"__module__": config.__module__, "__qualname__": config.__qualname__}
    return make_dataclass(
        config.__name__, extra, bases=bases, namespace=names, frozen=True, kw_only=True
    )


def to_tree(config: Any) -> Any:
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


def to_yaml(config: Any) -> str:
    """A config as the text of a config.yaml."""
    return yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True, width=100)


def config_hash(config: Any) -> str:
    """sha256 of what decides the run: everything but its name, its tags and its logging."""
    return tree_hash(to_tree(config))


def tree_hash(tree: Mapping[str, Any]) -> str:
    """The same of a config as plain data, such as a config.yaml of an earlier version."""
    tree = {key: each for key, each in tree.items() if key != "logging"}
    names = dict(tree.get("experiment") or {})
    tree["experiment"] = {key: each for key, each in names.items() if key not in ("name", "tags")}
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
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
    default: Any
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
            kind, limits = type_name(hints[each.name]), allowed(each.metadata)
            rows.append(OptionRow(path, kind, to_tree(default), help, limits))
    return rows


def type_name(annotation: Any) -> str:
    """An annotation as a reader wants it: `int`, `list[int]`, `'auto' | int`."""
    if get_origin(annotation) is Literal:
        return " | ".join(repr(each) for each in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(type_name(each) for each in get_args(annotation))
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is list:
        return f"list[{type_name(get_args(annotation)[0])}]"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")
