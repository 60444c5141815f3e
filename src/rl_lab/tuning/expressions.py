"""Arithmetic on the values of a trial: `${algorithm.epochs} * 2`, `${a.b} <= ${c.d}`.

Numbers, text, the operators of Python and a few functions; nothing is ever executed.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from rl_lab.core.errors import UserError, did_you_mean

_NAME = re.compile(r"\$\{([^}]+)\}")
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "round": round,
    "int": int,
    "abs": abs,
}


def names(text: str) -> list[str]:
    """The keys that an expression looks at."""
    return [each.strip() for each in _NAME.findall(text)]


def is_expression(value: object) -> bool:
    """Whether a value depends on others."""
    return isinstance(value, str) and _NAME.search(value) is not None


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """What an expression is with these values of its keys."""
    found: dict[str, Any] = {}

    def stand_in(match: re.Match[str]) -> str:
        key = match[1].strip()
        if key not in values:
            raise UserError(f"'{text}' looks at ${{{key}}}{did_you_mean(key, values)}")
        name = f"_{len(found)}"
        found[name] = values[key]
        return name

    body = _NAME.sub(stand_in, text)
    try:
        return _value(ast.parse(body.strip(), mode="eval").body, found)
    except (SyntaxError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise UserError(f"'{text}' cannot be computed: {error}") from error


def _value(node: ast.AST, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in values:
        return values[node.id]
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, values))
    if isinstance(node, ast.BoolOp):
        parts = (bool(_value(each, values)) for each in node.values)
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.Compare):
        sides = [_value(each, values) for each in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        return all(_OPERATORS[type(each)](left, right) for each, left, right in pairs)
    if isinstance(node, ast.Call) and not node.keywords:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(each, values) for each in node.args))
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each, values) for each in node.elts]
    raise ValueError(f"{ast.unparse(node)} is not arithmetic")
