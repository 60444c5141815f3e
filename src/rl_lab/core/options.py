"""How a configuration field is declared: a default and a one-line description."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any


def option(default: Any, help: str, **marks: Any) -> Any:
    """A dataclass field with its description. Mutable defaults are copied per instance."""
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
