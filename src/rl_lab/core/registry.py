"""Names to classes. Built-ins are declared lazily; plug-ins register or come by entry point."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from rl_lab.core.errors import UserError, did_you_mean

T = TypeVar("T")
ENTRY_POINT_GROUP = "rl_lab"

# kind -> name -> the object itself, or "module:attribute" until somebody asks for it
_entries: dict[str, dict[str, Any]] = {}
_entry_points_loaded = False


def declare(kind: str, targets: Mapping[str, str]) -> None:
    """Announce built-ins as `"module:attribute"`; the module is imported at the first `get`."""
    for name, target in targets.items():
        _entries.setdefault(kind, {}).setdefault(name, target)


def register(kind: str, name: str) -> Callable[[T], T]:
    """Class decorator: `@register("workflow", "my_algorithm")`."""

    def decorate(item: T) -> T:
        known = _entries.setdefault(kind, {}).get(name)
        same = known is None or _path(known) == _path(item)
        if not same:
            raise UserError(f"{kind} '{name}' is already registered by {_path(known)}")
        _entries[kind][name] = item
        return item

    return decorate


def get(kind: str, name: str) -> Any:
    """The registered object, or a `UserError` that names the nearest one."""
    _load_entry_points()
    known = _entries.get(kind, {})
    if name not in known:
        raise UserError(f"unknown {kind} '{name}'{did_you_mean(name, known)}")
    if isinstance(known[name], str):
        known[name] = locate(known[name])
    return known[name]


def names(kind: str) -> list[str]:
    """Everything registered under a kind, sorted."""
    _load_entry_points()
    return sorted(_entries.get(kind, {}))


def locate(target: str) -> Any:
    """Import `"module:attribute"` or `"module.attribute"`."""
    module_name, _, attribute = target.replace(":", ".").rpartition(".")
    if not module_name:
        raise UserError(f"'{target}' is not a path to a class: write module.Class")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import '{target}': {error}") from error
    if not hasattr(module, attribute):
        raise UserError(
            f"'{module_name}' has no '{attribute}'{did_you_mean(attribute, dir(module))}"
        )
    return getattr(module, attribute)


def _load_entry_points() -> None:
    """Entry points are written `kind.name = "module:attribute"` in the group `rl_lab`."""
    global _entry_points_loaded
    if _entry_points_loaded:
        return
    _entry_points_loaded = True
    for point in entry_points(group=ENTRY_POINT_GROUP):
        kind, _, name = point.name.partition(".")
        declare(kind, {name: point.value})


def _path(item: Any) -> str:
    if isinstance(item, str):
        return item.replace(":", ".")
    return f"{item.__module__}.{item.__qualname__}"
