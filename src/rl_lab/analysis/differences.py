"""What differs first between two rows of metrics, or between two states, down to the bit."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.chunks import Log
from rl_lab.core.state import Tree, fingerprint
from rl_lab.records.metrics import STEP

ABSENT = "(absent)"
IGNORED = ("parts/progress/resumes",)  # the only thing that an interruption may change


@dataclass(frozen=True)
class Difference:
    """The first thing that is not as it was recorded."""

    step: int
    kind: str  # metric, row, tensor, transition, value, checkpoint or error
    name: str
    recorded: object
    again: object
    others: int = 0  # further names that differ in the same row or state


def row_difference(recorded: bytes, again: bytes) -> Difference:
    """The first metric, by name, in which two rows differ."""
    try:
        rows = [json.loads(line) if line else {} for line in (recorded, again)]
        step = next(int(row[STEP]) for row in reversed(rows) if row)
    except (ValueError, KeyError, TypeError):
        return _line_difference(step_of(again), "not a row of metrics", recorded, again)
    if not all(rows):
        one, other = ("a row" if row else ABSENT for row in rows)
        return Difference(step, "row", "metrics.jsonl", one, other)
    names = sorted({*rows[0], *rows[1]}, key=lambda name: (name != STEP, name))
    pairs = [(name, rows[0].get(name, ABSENT), rows[1].get(name, ABSENT)) for name in names]
    different = [pair for pair in pairs if json.dumps(pair[1]) != json.dumps(pair[2])]
    if not different:  # the same numbers, written in another way
        return _line_difference(step, "the bytes of a row", recorded, again)
    name, one, other = different[0]
    return Difference(step, "metric", name, one, other, others=len(different) - 1)


def _line_difference(step: int, name: str, recorded: bytes, again: bytes) -> Difference:
    one, other = (line.decode(errors="replace").strip() for line in (recorded, again))
    return Difference(step, "row", name, one, other)


def step_of(line: bytes) -> int:
    """The step of a row; 0 if it is none."""
    try:
        return int(json.loads(line)[STEP])
    except (ValueError, KeyError, TypeError):
        return 0


@dataclass
class _Rows:
    """A column of rows that a buffer has kept, and the number of the first of them."""

    values: Any
    first: int


def first_difference(recorded: Tree, again: Tree, step: int) -> Difference | None:
    """The first leaf of two states, in the order of the recorded one, that differs in any bit."""
    left, right = dict(_leaves(recorded)), dict(_leaves(again))
    names = [*left, *(name for name in right if name not in left)]
    different = [
        name
        for name in names
        if name not in IGNORED and not _same(left.get(name, ABSENT), right.get(name, ABSENT))
    ]
    if not different:
        return None
    name = different[0]
    one, other = left.get(name, ABSENT), right.get(name, ABSENT)
    kind, first, index = "tensor", 0, _first_index(one, other)
    if isinstance(one, _Rows) and isinstance(other, _Rows) and one.first == other.first:
        kind, first, index = "transition", one.first, _first_index(one.values, other.values)
        one, other = one.values, other.values
    if index is None:  # not two arrays of one shape
        kind, one, other = "value", _shown(one), _shown(other)
    else:
        one, other = (_tensor(each)[index].item() for each in (one, other))
        name += f"{[index[0] + first, *index[1:]]}" if index else ""
    return Difference(step, kind, name, one, other, others=len(different) - 1)


def _leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its path; an empty block is a leaf, too."""
    if isinstance(tree, Log):
        for name, column in tree.read().items():
            yield f"{path}/{name}", _Rows(column, tree.first)
    elif isinstance(tree, Mapping) and tree:
        for key, each in tree.items():
            yield from _leaves(each, f"{path}/{key}" if path else str(key))
    elif isinstance(tree, list | tuple) and tree:
        for index, each in enumerate(tree):
            yield from _leaves(each, f"{path}/{index}")
    else:
        yield path, tree


def _same(left: object, right: object) -> bool:
    if isinstance(left, _Rows) and isinstance(right, _Rows):
        return left.first == right.first and _same(left.values, right.values)
    if isinstance(left, _Rows) or isinstance(right, _Rows):
        return False
    return fingerprint(left) == fingerprint(right)


def _first_index(recorded: object, again: object) -> tuple[int, ...] | None:
    """Where two arrays of one shape differ first; None if they are not such."""
    if not all(isinstance(each, Tensor | np.ndarray) for each in (recorded, again)):
        return None
    one, other = _tensor(recorded), _tensor(again)
    if one.shape != other.shape or one.dtype != other.dtype:
        return None
    left, right = (each.reshape(-1, 1).view(torch.uint8) for each in (one, other))
    unequal = (left != right).any(dim=1).nonzero()
    return tuple(int(each) for each in np.unravel_index(int(unequal[0, 0]), one.shape))


def _tensor(value: object) -> Tensor:
    return torch.as_tensor(value).detach().cpu().contiguous()


def _shown(value: object) -> Any:
    """A leaf for people: of an array its type and shape."""
    if isinstance(value, _Rows):
        return f"{_shown(value.values)} from row {value.first}"
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return value
