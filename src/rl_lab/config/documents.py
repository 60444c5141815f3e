"""Reading YAML files safely, and remembering on which line each value was written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rl_lab.core.errors import UserError
from rl_lab.records.config_file import MAX_DEPTH, MAX_DIGITS, MAX_VALUES, read_bounded

PACKAGE_CONFIGS = Path(__file__).resolve().parent.parent / "configs"
PLAIN_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value")
}
NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a line of a file, the command line, or nowhere (a default)."""

    place: str
    file: Path | None = None

    def __str__(self) -> str:
        return self.place


COMMAND_LINE = Origin("command line")
DEFAULT = Origin("default")
Origins = dict[str, Origin]


def origin_of(path: str, origins: Mapping[str, Origin]) -> Origin:
    """Where `a.b.c` was written, else something in it, else the nearest block around it."""
    if path not in origins:
        inside = (origin for each, origin in origins.items() if each.startswith(f"{path}."))
        if found := next(inside, None):
            return found
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return DEFAULT


def forget(path: str, origins: Origins) -> None:
    """Drop what is known about a path and everything below it."""
    for each in [each for each in origins if each == path or each.startswith(f"{path}.")]:
        del origins[each]


def shown(path: Path) -> str:
    """A path as the user knows it: relative to here or to the package, else as it is."""
    full = path.resolve()
    for root, prefix in ((Path.cwd(), Path()), (PACKAGE_CONFIGS, Path("rl_lab/configs"))):
        if full.is_relative_to(root):
            return str(prefix / full.relative_to(root))
    return str(full)


def read_document(path: Path) -> yaml.MappingNode:
    """The syntax tree of one YAML file, nothing constructed, or a UserError with file and line."""
    name = shown(path)
    try:
        text = read_bounded(path).decode()
        node = yaml.compose(text, yaml.SafeLoader)
    except FileNotFoundError:
        raise UserError(f"{name}: no such file") from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: cannot be read as text ({error})") from error
    except ValueError as error:  # too large, or no file
        raise UserError(f"{name}: {error}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{name}:{line}: bad YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{name}: bad YAML: {str(error).splitlines()[0]}") from error
    except RecursionError:
        raise UserError(f"{name}: nested too deeply") from None
    if node is None:
        raise UserError(f"{name}: the file is empty")
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{name}:{_line(node)}: expected `key: value` lines at the top level")
    try:
        _refuse_hostile(node, name)
    except RecursionError:
        raise UserError(f"{name}: nested too deeply") from None
    return node


def lines(node: yaml.Node, file: Path, prefix: str = "") -> Iterator[tuple[str, Origin, bool]]:
    """Every path of a document, its origin, and whether it replaces what was there."""
    name = shown(file)
    if isinstance(node, yaml.MappingNode):
        for key, value in sorted(node.value, key=lambda pair: not _is_merge(pair[0])):
            if _is_merge(key):
                merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for each in reversed(merged):  # YAML: the first one wins
                    yield from lines(each, file, prefix)
                continue
            path = f"{prefix}.{key.value}" if prefix else str(key.value)
            yield (
                path,
                Origin(f"{name}:{_line(key)}", file),
                not isinstance(value, yaml.MappingNode),
            )
            yield from lines(value, file, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{prefix}.{index}", Origin(f"{name}:{_line(value)}", file), True
            yield from lines(value, file, f"{prefix}.{index}")


def plain(node: yaml.MappingNode) -> dict[str, Any]:
    """The values of a document that was read."""
    found: dict[str, Any] = yaml.SafeLoader("").construct_document(node)
    return found


def composition(document: yaml.MappingNode) -> str | None:
    """What in a document asks for more than its own values: other files, Hydra, `${…}`."""
    for key, _ in document.value:
        if key.value in ("defaults", "hydra"):
            return f"`{key.value}:`"
    waiting: list[yaml.Node] = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif "${" in node.value:
            return f"the interpolation in line {_line(node)}"
    return None


def entries(node: yaml.MappingNode, key: str) -> list[Any]:
    """The plain strings and one-level mappings of a list such as `defaults:`."""
    found: list[Any] = []
    for name, value in node.value:
        if name.value == key and isinstance(value, yaml.SequenceNode):
            found += yaml.safe_load(yaml.serialize(value)) or []
    return found


def _refuse_hostile(root: yaml.Node, name: str) -> None:
    """Unknown tags, repeated keys, aliases that contain themselves or multiply without end."""
    count = 0

    def visit(node: yaml.Node, above: frozenset[int]) -> None:
        nonlocal count
        count += 1
        if count > MAX_VALUES:
            raise UserError(f"{name}: more than {MAX_VALUES:,} values once aliases are followed")
        if node.tag not in PLAIN_TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise UserError(f"{name}:{_line(node)}: the YAML tag '{tag}' is not allowed here")
        if id(node) in above:
            raise UserError(f"{name}:{_line(node)}: an alias that contains itself")
        below = above | {id(node)}
        if len(below) > MAX_DEPTH:
            raise UserError(f"{name}:{_line(node)}: nested too deeply")
        if node.tag in NUMBERS and len(node.value) > MAX_DIGITS:
            raise UserError(f"{name}:{_line(node)}: a number of more than {MAX_DIGITS:,} digits")
        if isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise UserError(f"{name}:{_line(key)}: a key must be a plain word")
                if key.value in first and not _is_merge(key):
                    raise UserError(
                        f"{name}:{_line(key)}: '{key.value}' is written twice"
                        f" (first on line {first[key.value]})"
                    )
                first[key.value] = _line(key)
                visit(key, below)
                visit(value, below)
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                visit(value, below)

    visit(root, frozenset())


def _is_merge(key: yaml.Node) -> bool:
    return bool(key.tag == "tag:yaml.org,2002:merge")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
