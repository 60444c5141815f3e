"""How a configuration field is declared: a default, a one-line description and what it may be.

    gamma: float = option(0.99, "discount factor", low=0, high=1)
    learning_rate: float = option(3e-4, "step size of the optimizer", above=0)
    hidden_dims: list[int] = option([64, 64], "width of each hidden layer", low=1)

A dataclass that derives from `Options` is checked whenever one is made, from YAML or in Python.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from numbers import Real
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from rl_lab.core.schedule import Schedule, extremes
from rl_lab.core.values import expected, quoted

LIMITS = ("low", "above", "high", "below")


def option(
    default: object,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    not_empty: bool = False,
    **marks: object,
) -> Any:
    """A dataclass field with its description. Mutable defaults are copied per instance.

    Args:
        default: The value if nothing is given.
        help: One line for `--help` and docs/options.md.
        low: Smallest allowed number. In a list or a block every number is checked; a schedule is
            checked at its extremes; None is allowed where the annotation says so.
        above: The number must be greater. A schedule may start or end at this limit.
        high: Largest allowed number.
        below: The number must be smaller. A schedule may start or end at this limit.
        not_empty: A list, a block or a text needs content.
        marks: Further metadata. `fixed=True` marks a number of an algorithm that is read once and
            cannot follow a schedule.
    """
    declared = limits(low=low, above=above, high=high, below=below, not_empty=not_empty)
    metadata = {"help": help, **declared, **marks}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def limits(
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    not_empty: bool = False,
) -> dict[str, Any]:
    """The range of an option; of a wrapper's argument: `Annotated[int, limits(low=1)]`."""
    if (low is not None and above is not None) or (high is not None and below is not None):
        raise TypeError("an option has low or above, and high or below, not both")
    given = {"low": low, "above": above, "high": high, "below": below}
    found: dict[str, Any] = {key: each for key, each in given.items() if each is not None}
    return found | ({"not_empty": True} if not_empty else {})


def section(config: type, help: str) -> Any:
    """A nested configuration dataclass."""
    return field(default_factory=config, metadata={"help": help})


def variant(kind: str, default: Mapping[str, Any], help: str, *, key: str = "type") -> Any:
    """A block whose `type` (or `key`) chooses its dataclass: `registry.get(kind, type).Config`.

    `default` is the block a user gets when writing nothing, e.g. `{"type": "none"}`.
    """
    metadata = {"help": help, "variant": kind, "key": key, "default": dict(default)}
    return field(default=None, metadata=metadata)


def variants(kind: str, help: str, *, key: str = "type") -> Any:
    """Any number of named blocks, each of which chooses its own dataclass like a `variant`."""
    metadata = {"help": help, "variants": kind, "key": key}
    return field(default_factory=dict, metadata=metadata)


def with_defaults(config: type, name: str, doc: str, /, **changed: object) -> type[Any]:
    """A configuration like another one, where some options have other defaults.

    The class of a nested section may be another one, too.
    """
    hints, own = get_type_hints(config), {each.name: each for each in fields(config)}
    declared: list[Any] = []
    for key, value in changed.items():
        marks = own[key].metadata
        if isinstance(value, type):
            declared.append((key, value, section(value, marks["help"])))
        else:
            declared.append((key, hints[key], option(value, **marks)))
    made: type[Any] = make_dataclass(
        name, declared, bases=(config,), namespace={"__doc__": doc}, frozen=True, kw_only=True
    )
    return made


# --------------------------------------------------------------------------- ranges


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of configuration dataclasses: what `option` declares is checked when one is made.

    Rules that join several fields go into `__post_init__`, after `super().__post_init__()`.
    """

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside of its range."""
        check_ranges(self)


def check_ranges(config: Any) -> None:
    """Raise one ValueError with a line for every option that is not what it may be."""
    problems = [
        problem
        for each in _declared(config.__class__)
        for problem in _problems(each, getattr(config, each.name))
    ]
    if problems:
        raise ValueError("\n".join(problems))


def allowed(marks: Mapping[str, Any]) -> str:
    """The range that the metadata of a field declares, in words: `in [0, 1]`, `at least 1`."""
    low, above, high, below = (marks.get(key) for key in LIMITS)
    lower, upper = low if above is None else above, high if below is None else below
    if lower is not None and upper is not None:
        brackets = "[" if above is None else "(", "]" if below is None else ")"
        return f"in {brackets[0]}{_shown(lower)}, {_shown(upper)}{brackets[1]}"
    if above is not None:
        return f"greater than {_shown(above)}" if above else "positive"
    if low is not None:
        return f"at least {_shown(low)}"
    if below is not None:
        return f"less than {_shown(below)}" if below else "negative"
    if high is not None:
        return f"at most {_shown(high)}"
    return "not empty" if marks.get("not_empty") else ""


def declared_range(config: type, name: str) -> Mapping[str, Any]:
    """The range of a field; one that a subclass declares again keeps it unless it has another."""
    for base in config.__mro__:
        own = vars(base).get("__dataclass_fields__", {}).get(name)
        if own is not None and allowed(own.metadata):
            return dict(own.metadata)
    return {}


class _Declared(NamedTuple):
    """What one field may be."""

    name: str
    marks: Mapping[str, Any]
    arms: tuple[Any, ...]  # of its annotation, if that is a union
    choices: tuple[Any, ...]  # of a Literal
    other: bool  # the annotation also allows values that are no choices
    optional: bool  # may be None


@cache
def _declared(config: type) -> tuple[_Declared, ...]:
    found = []
    hints = get_type_hints(config)
    for each in fields(config):
        hint = hints[each.name]
        arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        literals = [arm for arm in arms if get_origin(arm) is Literal]
        choices = tuple(choice for arm in literals for choice in get_args(arm))
        other = len(arms) - len(literals) - (type(None) in arms) > 0
        marks = declared_range(config, each.name)
        if choices or marks:
            optional = type(None) in arms or None in choices
            found.append(_Declared(each.name, marks, arms, choices, other, optional))
    return tuple(found)


def _problems(declared: _Declared, value: object) -> Iterator[str]:
    name, marks = declared.name, declared.marks
    if (value is None and declared.optional) or value in declared.choices:
        return
    if declared.choices and not declared.other:
        yield f"{name} must be {expected(declared.arms)}, got {quoted(value)}"
    elif marks.get("not_empty") and isinstance(value, Sized) and not len(value):
        yield f"{name} must not be empty"
    elif any(key in marks for key in LIMITS):
        for where, number in _numbers(name, value):
            if (bad := _outside(number, marks)) is not None:
                yield f"{where} must be {allowed(marks)}, got {bad}"


def _numbers(name: str, value: object) -> Iterator[tuple[str, Any]]:
    """The numbers of a value, each with where it stands: `channels[1]`, `learning_rates.actor`."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(f"{name}.{key}", each)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, each in enumerate(value):
            yield from _numbers(f"{name}[{index}]", each)
    else:
        yield name, value


def _outside(value: object, marks: Mapping[str, Any]) -> str | None:
    """What is outside of the range, as text; None if nothing is."""
    if not isinstance(value, (Real, Schedule)):
        return repr(value)
    smallest, largest = extremes(value)  # type: ignore[arg-type]
    low, above, high, below = (marks.get(key) for key in LIMITS)
    if low is not None and not smallest >= low:
        return _shown(smallest)
    if above is not None and not (smallest >= above and largest > above):
        return _shown(smallest)
    if high is not None and not largest <= high:
        return _shown(largest)
    if below is not None and not (largest <= below and smallest < below):
        return _shown(largest)
    return None


def _shown(number: float) -> str:
    return f"{number:.12g}"
