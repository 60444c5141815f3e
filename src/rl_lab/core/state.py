"""State is a tree of tensors, arrays and JSON: taken apart for disk, put together, hashed."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.chunks import Chunk, Log

# Nested dicts (all keys strings, or all integers) and lists of Tensor, ndarray, Log, str, int,
# float, bool, None.
Tree = Any

TENSOR, ARRAY = "__tensor__", "__array__"
NUMBERED = "__numbered__"  # a dict with integer keys, as torch's own optimizers have
LOG = "__log__"


@runtime_checkable
class Stateful(Protocol):
    """Anything with PyTorch's own pair of methods can be part of a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """A tree."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a tree made by `state_dict`, strictly."""


def split(tree: Tree, *, inline: bool = True) -> tuple[dict[str, Tensor], Tree]:
    """A flat dict of tensors by path, and the JSON skeleton that says where each belongs.

    The rows of a `Log` are tensors like any others, however they are cut into chunks. Not `inline`,
    only the names of its chunks are given, whose files another writer has written.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _split(tree, "", tensors, inline)


def join(tensors: Mapping[str, Tensor], skeleton: Tree) -> Tree:
    """The inverse of `split`; chunks that were only named wait for a loader."""
    if isinstance(skeleton, dict):
        if TENSOR in skeleton:
            return tensors[skeleton[TENSOR]]
        if ARRAY in skeleton:
            return tensors[skeleton[ARRAY]].numpy()
        if NUMBERED in skeleton:
            return {int(key): join(tensors, each) for key, each in skeleton[NUMBERED].items()}
        if LOG in skeleton:
            return _join_log(tensors, skeleton[LOG])
        return {key: join(tensors, value) for key, value in skeleton.items()}
    if isinstance(skeleton, list):
        return [join(tensors, value) for value in skeleton]
    return skeleton


def logs(tree: Tree) -> Iterator[Log]:
    """Every log in a tree."""
    if isinstance(tree, Log):
        yield tree
    elif isinstance(tree, Mapping):
        for each in tree.values():
            yield from logs(each)
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from logs(each)


def fingerprint(tree: Tree) -> str:
    """sha256 over every bit of a tree: equal only if everything is equal."""
    tensors, skeleton = split(tree)
    digest = hashlib.sha256(json.dumps(skeleton, sort_keys=True).encode())
    for path in sorted(tensors):
        tensor = tensors[path]
        digest.update(f"{path}{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.numel():  # an empty one may have strides that no view accepts
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def differences(left: Tree, right: Tree, path: str = "") -> list[str]:
    """Paths at which two trees differ, for error messages and tests."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        found = [f"{path}/{key}" for key in sorted(set(left) ^ set(right))]
        for key in sorted(set(left) & set(right)):
            found += differences(left[key], right[key], f"{path}/{key}")
        return found
    if (
        isinstance(left, (list, tuple))
        and isinstance(right, (list, tuple))
        and len(left) == len(right)
    ):
        return [
            each
            for index, (a, b) in enumerate(zip(left, right, strict=True))
            for each in differences(a, b, f"{path}/{index}")
        ]
    return [] if fingerprint(left) == fingerprint(right) else [path]


def _split(node: Tree, path: str, tensors: dict[str, Tensor], inline: bool) -> Tree:
    if isinstance(node, Tensor):
        tensors[path] = node.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {TENSOR: path}
    if isinstance(node, np.ndarray):
        if node.dtype == object:
            raise TypeError(f"state at '{path}' is an object array: only numbers can be saved")
        tensors[path] = torch.from_numpy(np.array(node, order="C"))
        return {ARRAY: path}
    if isinstance(node, Mapping):
        if node and all(type(key) is int for key in node):
            return {NUMBERED: _split({str(key): node[key] for key in node}, path, tensors, inline)}
        for key in node:
            if not isinstance(key, str):
                raise TypeError(f"state at '{path}' has the key {key!r}: keys must be strings")
        return {key: _split(value, f"{path}/{key}", tensors, inline) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [
            _split(value, f"{path}/{index}", tensors, inline) for index, value in enumerate(node)
        ]
    if isinstance(node, Log):
        if inline:
            rows = _split(node.read(), f"{path}/rows", tensors, inline)
            return {LOG: {"first": node.first, "rows": rows}}
        chunks = [{"name": c.name, "first": c.first, "count": c.count} for c in node.chunks]
        return {LOG: {"first": node.first, "chunks": chunks}}
    if isinstance(node, np.generic):
        return _split(node.item(), path, tensors, inline)
    if node is None or isinstance(node, (str, bool, int, float)):
        return node
    kind = type(node).__name__
    raise TypeError(f"state at '{path}' is a {kind}: only tensors, arrays and JSON can be saved")


def _join_log(tensors: Mapping[str, Tensor], skeleton: Tree) -> Log:
    first = int(skeleton["first"])
    if "chunks" in skeleton:
        named = [(str(e["name"]), int(e["first"]), int(e["count"])) for e in skeleton["chunks"]]
        return Log([Chunk(start, count, None, name) for name, start, count in named], first)
    rows = join(tensors, skeleton["rows"])
    count = len(next(iter(rows.values()))) if rows else 0
    return Log([Chunk(first, count, rows)] if count else [], first)
