"""State is a tree of tensors, arrays and JSON: taken apart for disk, put together, hashed."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.tree import map_leaves

# Nested dicts (all keys strings, or all integers) and lists of Tensor, ndarray, str, int, float,
# bool, None.
Tree = Any

TENSOR, ARRAY = "__tensor__", "__array__"
NUMBERED = "__numbered__"  # a dict with integer keys, as torch's own optimisers have


@runtime_checkable
class Stateful(Protocol):
    """Anything with PyTorch's own pair of methods can be part of a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """A tree."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a tree made by `state_dict`, strictly."""


def split(tree: Tree) -> tuple[dict[str, Tensor], Tree]:
    """A flat dict of tensors by path, and the JSON skeleton that says where each belongs."""
    tensors: dict[str, Tensor] = {}
    return tensors, _split(tree, "", tensors)


def join(tensors: Mapping[str, Tensor], skeleton: Tree) -> Tree:
    """The inverse of `split`."""
    if isinstance(skeleton, dict):
        if TENSOR in skeleton:
            return tensors[skeleton[TENSOR]]
        if ARRAY in skeleton:
            return tensors[skeleton[ARRAY]].numpy()
        if NUMBERED in skeleton:
            return {int(key): join(tensors, each) for key, each in skeleton[NUMBERED].items()}
        return {key: join(tensors, value) for key, value in skeleton.items()}
    if isinstance(skeleton, list):
        return [join(tensors, value) for value in skeleton]
    return skeleton


def where_rows(mask: Tensor, new: Tree, old: Tree) -> Tree:
    """`new` in the rows where `mask` [N] is True, `old` elsewhere, leaf by leaf."""
    return map_leaves(
        lambda fresh, kept: torch.where(mask.view(-1, *[1] * (kept.dim() - 1)), fresh, kept),
        new,
        old,
    )


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


def _split(node: Tree, path: str, tensors: dict[str, Tensor]) -> Tree:
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
            return {NUMBERED: _split({str(key): node[key] for key in node}, path, tensors)}
        for key in node:
            if not isinstance(key, str):
                raise TypeError(f"state at '{path}' has the key {key!r}: keys must be strings")
        return {key: _split(value, f"{path}/{key}", tensors) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_split(value, f"{path}/{index}", tensors) for index, value in enumerate(node)]
    if isinstance(node, np.generic):
        return _split(node.item(), path, tensors)
    if node is None or isinstance(node, (str, bool, int, float)):
        return node
    kind = type(node).__name__
    raise TypeError(f"state at '{path}' is a {kind}: only tensors, arrays and JSON can be saved")
