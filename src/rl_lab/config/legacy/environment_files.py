"""Files of an earlier solver: one per environment, with one block per variant.

env_id: CartPole-v1          # shared, as what stands under `_base`
_base: &base {n_envs: 8}
ppo: {<<: *base, policy_lr: 3e-4}
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from rl_lab.config.documents import COMMAND_LINE, Origins, forget, lines, read_document
from rl_lab.config.legacy.keys import RENAMED
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig

FOLDER = "environments"  # of such files, in a config folder
BASE = "_base"
_SHARED = {each.name for each in fields(RunConfig)} | {key.partition(".")[0] for key in RENAMED}
_SHARED |= {"buffer", "defaults", "policy_kwargs", "spec"}


def variant_files(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Every environment that has such a file, and the file."""
    for folder in folders:
        for file in sorted((folder / FOLDER).rglob("*.yaml")):
            yield file.relative_to(folder / FOLDER).with_suffix("").as_posix(), file


def list_variants(file: Path) -> list[str]:
    """The names of its blocks."""
    return [name for name, _ in _blocks(read_document(file))]


def find_variant(environment: str, variant: str, folders: Sequence[Path]) -> Path | None:
    """The file with this block, if there is one."""
    for name, file in variant_files(folders):
        if name == environment and variant in list_variants(file):
            return file
    return None


def read_variant(file: Path, environment: str, variant: str) -> tuple[dict[str, Any], Origins]:
    """The tree of one block with what it shares, and the line of every value."""
    document = read_document(file)
    own = dict(_blocks(document))
    shared = [(key, value) for key, value in document.value if key.value not in {*own, BASE}]
    if any(key.value == "defaults" for key, _ in shared):
        raise UserError(f"{file}: a file with a block per variant has no `defaults:`")
    parts = [yaml.MappingNode(document.tag, shared)]
    parts += [value for key, value in document.value if key.value == BASE]
    parts.append(own[variant])
    tree: dict[str, Any] = {}
    origins: Origins = {}
    for part in parts:
        _merge(tree, _plain(part))
        for path, origin, replaces in lines(part, file):
            if replaces:
                forget(path, origins)
            origins[path] = origin
    if "env_id" not in tree and not {"id", "name", "env_id"} & set(tree.get("environment") or {}):
        _merge(tree, {"environment": {"id": environment}})
        origins["environment.id"] = COMMAND_LINE
    return tree, origins


def _blocks(document: yaml.MappingNode) -> Iterator[tuple[str, yaml.MappingNode]]:
    for key, value in document.value:
        known = key.value in _SHARED or key.value.startswith("_")
        if isinstance(value, yaml.MappingNode) and not known:
            yield str(key.value), value


def _plain(node: yaml.Node) -> dict[str, Any]:
    """The data of a node, aliases and `<<` followed; nothing but plain YAML is constructed."""
    loader = yaml.SafeLoader("")
    try:
        found: object = loader.construct_document(node)
    finally:
        loader.dispose()
    return found if isinstance(found, dict) else {}


def _merge(tree: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value
