"""Writes docs/options.md, and the tables of docs/monitoring.md, so that they cannot go stale.

python docs/generate.py            write the pages
python docs/generate.py --check    exit 1 if a page is not what would be written
"""

import argparse
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl_lab.config.catalog import BUILT_INS
from rl_lab.config.tree import OptionRow, describe
from rl_lab.core import registry
from rl_lab.core.checker import config_class
from rl_lab.core.schema import MonitorConfig, RunConfig
from rl_lab.monitoring.catalog import ETA, built_in, of_machine

PAGE = Path(__file__).with_name("options.md")
MONITORING = Path(__file__).with_name("monitoring.md")
TITLES = {  # kind in the registry -> title, and where its options stand in the tree
    "workflow": ("Algorithms", "algorithm"),
    "encoder": ("Encoders", "network.encoder"),
    "memory": ("Memories", "network.memory"),
    "buffer": ("Buffers", "buffers.NAME"),
}
INTRODUCTION = """\
# Options

This page is written by `docs/generate.py` from the dataclasses in the code: edit those instead.
Each option can be set in YAML or on the command line as `path=value`. The same list for one
experiment comes from `rl-lab config CartPole-v1:ppo --options`.

A `float` that stands directly in the algorithm's block may be a
[schedule](configuration.md#schedules), unless it is read only once. An option whose type is a
*choice* picks a class; the options of each class are in its own table further down.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, rows in _blocks(describe(RunConfig)).items():
        parts += [f"## `{name}`\n" if name else "## Top level\n", _table(rows)]
    for kind, (title, path) in TITLES.items():
        parts.append(f"## {title}\n")
        for name in sorted(BUILT_INS[kind]):  # not what else is installed
            parts += [f"### `{name}`\n", *_described(registry.get(kind, name), f"{path}.")]
    parts.append("## Wrappers\n")
    for name in sorted(BUILT_INS["wrapper"]):
        parts += [f"### `{name}`\n", *_wrapper(name)]
    return "\n".join(parts)


def with_monitors(text: str) -> str:
    """The page about monitors with its tables, each between two marks."""
    for mark, table in (("monitors", _monitors()), ("keys", _table(describe(MonitorConfig)))):
        begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    return text


def _monitors() -> str:
    lines = ["| name | metric | fires when | of | try |", "|---|---|---|---|---|"]
    for name, monitor in built_in().items():
        names = (
            f"but `{each[1:]}`" if each[0] == "!" else f"`{each}`" for each in monitor.algorithms
        )
        whom = ", ".join(names) or "all"
        if of_machine(monitor) and not monitor.algorithms:
            whom = "all, clock and machine"
        tip = _escaped(monitor.tip)
        lines.append(f"| `{name}` | `{monitor.metric}` | {_condition(monitor)} | {whom} | {tip} |")
    return "\n".join(lines) + "\n"


def _condition(monitor: MonitorConfig) -> str:
    """When it fires, in words."""
    unit = f" × the largest `{monitor.of}`" if monitor.of else ""
    size = "its size is " if monitor.absolute else ""
    above = "`logging.alerts.max_hours`" if monitor.metric == ETA else monitor.above
    phrases = {
        f"{size}above {above}{unit}": monitor.above,
        f"{size}below {monitor.below}{unit}": monitor.below,
        f"{monitor.jumps} times its usual size": monitor.jumps,
        f"its usual size divided by {monitor.drops}": monitor.drops,
        f"{monitor.collapses} of all that it gained is lost": monitor.collapses,
        f"no gain after {monitor.stalls} of the run": monitor.stalls,
    }
    words = [" and ".join(phrase for phrase, value in phrases.items() if value is not None)]
    words += (
        [f"{'median' if monitor.median else 'mean'} of {monitor.rows} rows"]
        if monitor.rows > 1
        else []
    )
    words += [f"after {monitor.after} of the run"] if monitor.after else []
    words += [f"until {monitor.until} of the run"] if monitor.until < 1 else []
    words += [f"{monitor.actions} actions"] if monitor.actions != "any" else []
    return "; ".join(words)


def _blocks(rows: Iterable[OptionRow]) -> dict[str, list[OptionRow]]:
    """Rows by the first word of their path; single words come under the empty name."""
    found: dict[str, list[OptionRow]] = {"": []}
    for row in rows:
        block, dot, _ = row.path.partition(".")
        nested = dot or row.type.startswith("dict")
        found.setdefault(block if nested else "", []).append(row)
    return found


def _described(item: Any, prefix: str) -> list[str]:
    """What a class is, and its options."""
    lines = [_first_line(item) + "\n"]
    config = config_class(item)
    rows = (
        [row for row in describe(config, prefix) if row.path != f"{prefix}type"] if config else []
    )
    return [*lines, _table(rows) if rows else "It has no options.\n"]


def _wrapper(name: str) -> list[str]:
    """What a wrapper is, and how it is written in YAML."""
    item = registry.get("wrapper", name)
    arguments = ", ".join(f"{each}: …" for each in list(inspect.signature(item).parameters)[1:])
    usage = f"`environment.wrappers: [{{id: {name}{', ' if arguments else ''}{arguments}}}]`"
    return [f"{_first_line(item)}\n", f"{usage}\n"]


def _table(rows: Iterable[OptionRow]) -> str:
    lines = ["| option | type | default | allowed | meaning |", "|---|---|---|---|---|"]
    for row in rows:
        kind = _choice(row.type) if row.type in TITLES else _code(row.type)
        default = _code(_shown(row.default))
        lines.append(
            f"| `{row.path}` | {kind} | {default} | {row.allowed} | {_escaped(row.help)} |"
        )
    return "\n".join(lines) + "\n"


def _choice(kind: str) -> str:
    title = TITLES[kind][0]
    return f"choice: [{title}](#{title.lower()})"


def _shown(value: Any) -> str:
    """A default as YAML would have it."""
    return value if isinstance(value, str) and value else json.dumps(value)


def _first_line(item: Any) -> str:
    return inspect.cleandoc(item.__doc__ or "").splitlines()[0]


def _code(text: str) -> str:
    return f"`{_escaped(text)}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page, or compare it with what is there."""
    parser = argparse.ArgumentParser(description="write docs/options.md and docs/monitoring.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it is stale")
    parser.add_argument("--page", type=Path, default=PAGE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    pages = {options.page: page(), MONITORING: with_monitors(MONITORING.read_text("utf-8"))}
    code = 0
    for file, text in pages.items():
        if not options.check:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{file.name} is out of date: run `make docs`\n")
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
