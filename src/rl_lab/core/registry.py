"""Names to classes. Built-ins are declared lazily; plug-ins register or come by entry point."""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from rl_lab.core.errors import UserError, did_you_mean

T = TypeVar("T")
ENTRY_POINT_GROUP = "rl_lab"
ALIASES = {"algorithm": "workflow", "network": "encoder", "environment": "env"}  # users' words
WORDS = {"workflow": "algorithm", "env": "environment"}  # what users call a kind
LOCAL = "local/"  # how the names of Python objects begin that only this process has
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plugin:
    """What an installed package offers: `kind.name = "module:attribute"` in the group `rl_lab`."""

    kind: str
    name: str
    target: str
    package: str

    def load(self) -> Any:
        """Import it. Its code is not ours and may fail in any way: that is a `UserError`."""
        try:
            return locate(self.target)
        except Exception as error:
            name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            raise UserError(
                f"{self.kind} '{self.name}' of the package {self.package} does not load:"
                f" {name}{error}"
            ) from error


# kind -> name -> the object itself, or "module:attribute" until it is asked for
_entries: dict[str, dict[str, Any]] = {}
local_folders: set[str] = set()  # of the user's own files: worker processes import from there
_targets: dict[tuple[str, str], Any] = {}  # (kind, the `_target_` of a configuration) -> class
_plugins: dict[tuple[str, str], Plugin] | None = None  # None: not looked for yet


def declare(kind: str, targets: Mapping[str, str]) -> None:
    """Announce built-ins as `"module:attribute"`; the module is imported at the first `get`."""
    for name, target in targets.items():
        _entries.setdefault(kind, {}).setdefault(name, target)


def register(kind: str, name: str) -> Callable[[T], T]:
    """Class decorator: `@register("algorithm", "my_algorithm")`.

    Args:
        kind: What it is: algorithm, environment, network, memory, buffer, wrapper or component.
        name: The name that configurations use.

    Returns:
        A decorator that registers a class and returns it unchanged.

    Raises:
        UserError: Another class has that name.
    """
    kind = ALIASES.get(kind, kind)

    def decorate(item: T) -> T:
        if _taken(kind, name, item):
            owner = _path(_entries[kind][name])
            raise UserError(f"{WORDS.get(kind, kind)} '{name}' is already registered by {owner}")
        _entries.setdefault(kind, {})[name] = item
        return item

    return decorate


def provide(kind: str, name: str, item: object) -> None:
    """Register an object under a name of this process, in place of an earlier one."""
    _entries.setdefault(kind, {})[name] = item


def name_of(kind: str, item: object) -> str | None:
    """The name under which an object is registered; None if it is not. Nothing is imported."""
    path = _path(item)
    known = _entries.get(kind, {}).items()
    same = (
        name
        for name, each in known
        if each is item or (isinstance(each, str) and _path(each) == path)
    )
    return next(same, None)


def import_path(item: type) -> str | None:
    """`module:Class` if another process can import the class by it; None otherwise."""
    inside = vars(sys.modules.get(item.__module__, object))
    if item.__module__ == "__main__" or inside.get(item.__qualname__) is not item:
        return None
    return f"{item.__module__}:{item.__qualname__}"


def get(kind: str, name: str) -> Any:
    """The registered object, or a `UserError` that names the nearest one."""
    known = _entries.setdefault(kind, {})
    if name not in known:
        plugin = _found().get((kind, name))
        if plugin is None:
            raise UserError(
                f"unknown {WORDS.get(kind, kind)} '{name}'{did_you_mean(name, names(kind))}"
            )
        known[name] = plugin.load()
    elif isinstance(known[name], str):
        known[name] = locate(known[name])
    return known[name]


def of(kind: str, config: object) -> Any:
    """The class that a validated block chose: by its `_target_`, its `type` or its `name`."""
    chosen = vars(config)
    if "_target_" in chosen:
        return _targets[kind, chosen["_target_"]]
    return get(kind, chosen["type"] if "type" in chosen else chosen["name"])


def remember(kind: str, target: str, item: object) -> None:
    """Let `of` find a class that a configuration named by `_target_`."""
    _targets[kind, target] = item


def names(kind: str) -> list[str]:
    """Everything registered under a kind, sorted; nothing is imported for it."""
    return sorted({*_entries.get(kind, {}), *(each.name for each in plugins(kind))})


def plugins(kind: str | None = None) -> list[Plugin]:
    """What installed packages add, of one kind or of all; nothing is imported for it."""
    return [each for each in _found().values() if kind in (None, each.kind)]


def target(kind: str, name: str) -> Any:
    """The registered object, or `"module:attribute"` while it has not been imported."""
    own = _entries.get(kind, {}).get(name)
    return _found()[kind, name].target if own is None else own


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


def _found() -> dict[tuple[str, str], Plugin]:
    """Entry points of installed packages. A name that is taken stays with who had it first."""
    global _plugins
    if _plugins is not None:
        return _plugins
    _plugins = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        written, _, name = point.name.partition(".")
        kind = ALIASES.get(written, written)
        package = point.dist.name if point.dist else "?"
        first = _plugins.get((kind, name))
        if not name:
            _log.warning("plug-in '%s' of %s is ignored: write kind.name", point.name, package)
        elif first is not None or _taken(kind, name, point.value):
            owner = f"the package {first.package}" if first else "RL Lab itself"
            _log.warning(
                "%s '%s' of the package %s is ignored: %s has that name", kind, name, package, owner
            )
        else:
            _plugins[kind, name] = Plugin(kind, name, point.value, package)
    return _plugins


def _taken(kind: str, name: str, item: object) -> bool:
    known = _entries.get(kind, {}).get(name)
    return known is not None and _path(known) != _path(item)


def _path(item: Any) -> str:
    if isinstance(item, str):
        return item.replace(":", ".")
    return f"{item.__module__}.{item.__qualname__}"
