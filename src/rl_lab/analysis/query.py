"""Which runs are meant: filters, order and groups over rows of the index. Pure functions."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import eq, ge, gt, le, lt
from statistics import fmean, stdev
from typing import Any

from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.records.metrics import MAIN_METRICS

Row = Mapping[str, Any]

ALIASES: dict[str, tuple[str, ...]] = {
    **MAIN_METRICS,
    "reward": ("last_return", *MAIN_METRICS["reward"]),
    "tag": ("tags",),
}
LOWER_IS_BETTER = ("*loss", "wall_time")
NOT_COMPARED = ("metrics",)  # its entries are keys of their own

_FILTER = re.compile(r"\s*([^=<>!\s]+)\s*(!=|<=|>=|==|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {"=": eq, "<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass(frozen=True)
class Filter:
    """One condition: `algorithm=ppo`, `eval/return_mean>400`, `tag!=draft`, `name=cart*`."""

    key: str
    operator: str
    value: str


def parse_filter(word: str) -> Filter:
    """A condition as it was typed."""
    match = _FILTER.fullmatch(word)
    if match is None or not match[3]:
        raise UserError(
            f"--filter '{word}': write KEY=VALUE, or another of != < <= > >= between them, "
            "in quotes: 'eval/return_mean>400'"
        )
    return Filter(match[1], "=" if match[2] == "==" else match[2], match[3])


def select(rows: Sequence[Row], filters: Sequence[Filter]) -> list[Row]:
    """The rows for which every condition holds."""
    for each in filters:
        check_key(each.key, rows)
    return [row for row in rows if all(holds(each, row) for each in filters)]


def holds(condition: Filter, row: Row) -> bool:
    """Numbers are compared as numbers, anything else as text in which * stands for any text.

    A run that has no such value only fulfils `!=`. A list fulfils `=` if one of its texts does.
    """
    value, operator = value_of(row, condition.key), condition.operator
    if operator == "!=":
        return not holds(Filter(condition.key, "=", condition.value), row)
    if value is None:
        return False
    if isinstance(value, list):
        return any(_text_holds(str(each), operator, condition.value) for each in value)
    if isinstance(value, int | float):
        return _COMPARE[operator](value, _number(condition))
    return _text_holds(str(value), operator, condition.value)


def sort(rows: Sequence[Row], key: str, *, ascending: bool = False) -> list[Row]:
    """By one key; what has no value, or no number, comes last either way."""
    check_key(key, rows)
    values = [(value_of(row, key), row) for row in rows]
    known = [(_comparable(value), row) for value, row in values if not _is_missing(value)]
    missing = [row for value, row in values if _is_missing(value)]
    known.sort(key=lambda pair: pair[0], reverse=not ascending)
    return [*(row for _, row in known), *missing]


def lower_is_better(key: str) -> bool:
    """Whether a reader wants the smallest value of this key first."""
    return any(_matches(key, pattern) for pattern in LOWER_IS_BETTER)


def group(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row per experiment: its seeds, and mean and standard deviation over its runs.

    In the order in which the experiments first occur. A deviation needs two runs.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.get("experiment") or row["id"], []).append(row)
    return [_summary(name, members) for name, members in groups.items()]


def value_of(row: Row, key: str) -> Any:
    """A column, a metric, or what an alias stands for; None where there is nothing."""
    for name in ALIASES.get(key, (key,)):
        value = row.get(name)
        if value is None:
            value = (row.get("metrics") or {}).get(name)
            if isinstance(value, str):  # NaN and infinities, as JSON holds them
                value = float(value)
        if value is not None:
            return value
    return None


def check_key(key: str, rows: Sequence[Row]) -> None:
    """Refuse a key that no run has; without any run, every key is as good as another."""
    if not rows or any(value_of(row, key) is not None for row in rows):
        return
    known = known_keys(rows)
    if key in known or any(name in known for name in ALIASES.get(key, ())):
        return
    raise UserError(f"no run has '{key}'{did_you_mean(key, {*known, *ALIASES})}")


def known_keys(rows: Iterable[Row]) -> set[str]:
    """Every column and metric that the rows have."""
    names = {*chain.from_iterable((*row, *(row.get("metrics") or ())) for row in rows)}
    return names.difference(NOT_COMPARED)


def _summary(name: str, members: list[Row]) -> dict[str, Any]:
    names = {row["name"] for row in members}
    first = members[0]
    title = names.pop() if len(names) == 1 else f"{first['environment']}-{first['algorithm']}"
    return {
        "experiment": name,
        "name": title,
        "algorithm": first["algorithm"],
        "environment": first["environment"],
        "seeds": len({row["seed"] for row in members}),
        "runs": len(members),
        "finished": sum(row["status"] == "finished" for row in members),
        "env_steps": _mean(members, "env_steps"),
        "best": _mean(members, "best"),
        "best_std": _spread(members, "best"),
        "last_return": _mean(members, "last_return"),
        "last_return_std": _spread(members, "last_return"),
        "wall_time": _mean(members, "wall_time"),
        "ids": [row["id"] for row in members],
    }


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return fmean(values) if values else None


def _spread(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return stdev(values) if len(values) > 1 else None


def _text_holds(value: str, operator: str, wanted: str) -> bool:
    return _matches(value, wanted) if operator == "=" else _COMPARE[operator](value, wanted)


def _matches(text: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def _number(condition: Filter) -> float:
    try:
        return float(condition.value)
    except ValueError:
        raise UserError(
            f"--filter: '{condition.key}' is a number, so it cannot be compared with "
            f"'{condition.value}'"
        ) from None


def _is_missing(value: object) -> bool:
    return value is None or value == [] or (isinstance(value, float) and math.isnan(value))


def _comparable(value: object) -> tuple[bool, Any]:
    """Numbers before texts, so that a column with both can be sorted."""
    if isinstance(value, int | float):
        return False, value
    return True, " ".join(value) if isinstance(value, list) else str(value)
