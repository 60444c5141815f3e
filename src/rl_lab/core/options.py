"""How a configuration field is declared: a default and a one-line description."""

from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from typing import Any, get_type_hints


def option(default: Any, help: str, **marks: Any) -> Any:
    """A dataclass field with its description. Mutable defaults are copied per instance.

    `fixed=True` marks a number of an algorithm that is read once and cannot follow a schedule.
    """
    metadata = {"help": help, **marks}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def section(config: type, help: str) -> Any:
    """A nested configuration dataclass."""
    return field(default_factory=config, metadata={"help": help})


def variant(kind: str, default: Mapping[str, Any], help: str, *, key: str = "type") -> Any:
    """A block whose `type` (or `key`) chooses its dataclass: `registry.get(kind, type).Config`.

    `default` is the block a user gets when writing nothing, e.g. `{"type": "none"}`.
    """
    metadata = {"help": help, "variant": kind, "key": key, "default": dict(default)}
    return field(default=None, metadata=metadata)


def variants(kind: str, help: str, *, key: str = "type") -> Any:
    """Any number of named blocks, each of which chooses its own dataclass like a `variant`."""
    metadata = {"help": help, "variants": kind, "key": key}
    return field(default_factory=dict, metadata=metadata)


def with_defaults(config: type, name: str, doc: str, /, **changed: Any) -> type[Any]:
    """A configuration like another one, where some options have other defaults.

    The class of a nested section may be another one, too.
    """
    hints, own = get_type_hints(config), {each.name: each for each in fields(config)}
    declared: list[Any] = []
    for key, value in changed.items():
        marks = own[key].metadata
        if isinstance(value, type):
            declared.append((key, value, section(value, marks["help"])))
        else:
            declared.append((key, hints[key], option(value, **marks)))
    made: type[Any] = make_dataclass(
        name, declared, bases=(config,), namespace={"__doc__": doc}, frozen=True, kw_only=True
    )
    return made
