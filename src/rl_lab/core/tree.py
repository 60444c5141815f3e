"""One function for arrays and for dicts of arrays: an observation, a memory state, a batch."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Leaves = Any  # an array or tensor, or a dict of them (nested as deep as you like)


def map_leaves(function: Callable[..., Any], *trees: Leaves) -> Leaves:
    """`function` of the leaves that stand at the same place in every tree."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_leaves(function, *(tree[key] for tree in trees)) for key in first}
    return function(*trees)


def copied(tree: Leaves) -> Leaves:
    """The same tree of fresh numpy arrays."""
    return map_leaves(lambda leaf: leaf.copy(), tree)


def assign(rows: Leaves, index: object, values: Leaves) -> None:
    """`rows[index] = values`, leaf by leaf."""
    if isinstance(rows, dict):
        for key, row in rows.items():
            assign(row, index, values[key])
    else:
        rows[index] = values


def picked(tree: Leaves, index: object) -> Leaves:
    """`tree[index]`, leaf by leaf."""
    if isinstance(tree, dict):
        return {key: picked(each, index) for key, each in tree.items()}
    return tree[index]


def where_rows(mask: Tensor, new: Leaves, old: Leaves) -> Leaves:
    """`new` in the rows where `mask` [N] is True, `old` elsewhere, leaf by leaf."""
    return map_leaves(
        lambda fresh, kept: torch.where(mask.view(-1, *[1] * (kept.dim() - 1)), fresh, kept),
        new,
        old,
    )


def named_leaves(tree: Leaves, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its place: `obs`, or `obs/camera`."""
    if isinstance(tree, dict):
        for key, each in tree.items():
            yield from named_leaves(each, f"{name}/{key}" if name else str(key))
    else:
        yield name, tree


def first_leaf(tree: Leaves) -> Any:
    """Any one leaf: all have the same number of rows."""
    while isinstance(tree, dict):
        tree = next(iter(tree.values()))
    return tree


def rows_at(table: Tensor, index: Tensor) -> Any:
    """The rows of a table by their numbers; after its end it begins again."""
    return table[index % len(table)]
