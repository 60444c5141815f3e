"""What a configuration would make this process import, and whether it may.

Whoever types a config, a plug-in or an override is trusted. A run's config.yaml may come from
anywhere: unless it has this user's mark (`records/mark.py`), it may use registered names only.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import util
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError

TARGET = "_target_"
_ARGUMENT = re.compile(r"environment\.(kwargs|wrappers\.\d+)\.[^.]+(?P<deeper>\..)?")


def require_trust(
    tree: Mapping[str, Any], what: str, doubt: Callable[[], str | None], *, trust: bool
) -> None:
    """Refuse a configuration that names code, unless there is no `doubt` or the user says so."""
    found = [] if trust else list(dangers(tree))
    if found and (why := doubt()):
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise UserError(
            f"{what} {why}, and would {found[0]}{more}: if you trust it, add --trust "
            "(in Python: trust=True)"
        )


def dangers(tree: Mapping[str, Any]) -> Iterator[str]:
    """What a configuration would do that registered names cannot: `import 'os.system' (path)`."""
    plugins = tree.get("plugins") or []
    for each in plugins if isinstance(plugins, list) else [plugins]:
        yield f"import {_shown(each)} (plugins)"
    for path, key, value in _entries(tree, ""):
        if key == TARGET:
            yield f"import {_shown(value)} ({path[:200]})"
        elif path == "environment.id" and ":" in str(value):
            yield f"import {_shown(str(value).rpartition(':')[0])} ({path})"
        elif found := _ARGUMENT.match(path):
            # A first key is the name of a parameter; what is deeper is data, and so are its keys.
            for text in (value, key if found["deeper"] else None):
                if isinstance(text, str) and may_name_code(text):
                    yield f"hand {_shown(text)} to the environment ({path[:200]})"
        elif key == "folder" and path.startswith("buffers.") and _leaves(str(value)):
            yield f"write into {_shown(value)} ({path[:200]})"


def may_name_code(text: str) -> bool:
    """A file, `module:Name`, `package.name`, or a module that can be imported here."""
    if re.search(r"[:/\\]|\.[A-Za-z_]\w*$", text):
        return True
    if not text.isidentifier():
        return False
    try:
        return util.find_spec(text) is not None  # imports nothing
    except ValueError:  # `__main__`, for one
        return True


def _entries(tree: object, path: str) -> Iterator[tuple[str, str, Any]]:
    """Every `(path, key, value)` at any depth, lists included."""
    pairs: Iterable[tuple[object, object]] = ()
    if isinstance(tree, Mapping):
        pairs = tree.items()
    elif isinstance(tree, (list, tuple)):
        pairs = enumerate(tree)
    for key, value in pairs:
        name = str(key) if str(key).isprintable() else repr(key)
        below = f"{path}.{name}" if path else name
        yield below, str(key), value
        yield from _entries(value, below)


def _leaves(folder: str) -> bool:
    """Whether a folder is elsewhere than below the current one."""
    return folder.startswith(("/", "~", "\\")) or ".." in Path(folder).parts


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
