"""`rl-lab config`: the whole tree as YAML, with the origin of each value beside it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_lab.cli.arguments import (
    RUNS,
    ConfigDirs,
    ConfigFile,
    Json,
    Plugins,
    RunsDir,
    Seeds,
    TotalTimesteps,
    Trust,
    Words,
)
from rl_lab.cli.printing import say, say_json, table, warn
from rl_lab.cli.request import Request
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig

WIDEST = 60  # an origin stands in this column at the latest
DEFAULT = "default"

MEASURED = {"environment.vectorization", "compute.threads"}  # `auto` may try the environment


def config(
    words: Words = None,
    config_file: ConfigFile = None,
    config_dirs: ConfigDirs = None,
    plugins: Plugins = None,
    seed: Seeds = None,
    total_timesteps: TotalTimesteps = None,
    diff: Annotated[
        str | None, typer.Option(metavar="RUN", help="only what differs from this run")
    ] = None,
    options: Annotated[
        bool, typer.Option("--options", "--describe", help="every option, its type and meaning")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="with `migrate FILE`: put the result in its place")
    ] = False,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Print the whole configuration, and where each value comes from.

    `rl-lab config migrate FILE` prints an older file under the keys of today.
    """
    if words and words[0] == "migrate":
        return _migrate(words[1:], write=write)
    request = Request(
        words=words or [],
        config_file=config_file,
        config_dirs=config_dirs or [],
        plugins=plugins or [],
        seed=seed,
        total_timesteps=total_timesteps,
        trust=trust,
        runs_dir=runs_dir,
    )
    return print_config(request, diff_with=diff, options=options, as_json=as_json)


def print_config(
    request: Request, *, diff_with: str | None = None, options: bool = False, as_json: bool = False
) -> int:
    """Print the configuration that a request means."""
    from rl_lab.config.tree import to_tree

    config, composed = request.configure(request.seeds[0])
    for note in composed.notes:
        warn(note)
    if options:
        return _print_options(config, as_json)
    if diff_with is not None:
        return _print_differences(config, diff_with, request, as_json)
    if config.compute.compile == "on":
        from rl_lab.config.resolve import check_compile

        check_compile(config)  # as `train` would
    tree = to_tree(config)
    if as_json:
        say_json(tree)
        return 0
    say(annotated(tree, composed.tree, composed.origins, own_defaults(config)))
    return 0


def _migrate(words: Sequence[str], *, write: bool) -> int:
    """Print a config file under the keys of today, or put that in its place."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    from rl_lab.api import configure
    from rl_lab.config.presets import find_file
    from rl_lab.records.commit import write_atomically

    if len(words) != 1:
        raise UserError("write `rl-lab config migrate FILE`, with the name of one YAML file")
    file = find_file(Path(words[0]))
    _, composed = configure(config_file=file)  # what cannot be used is refused, not written
    text = yaml.safe_dump(composed.tree, sort_keys=False, allow_unicode=True, width=100)
    for note in composed.notes or [f"{file}: nothing to rename"]:
        warn(note)
    if not write:
        say(text.rstrip())
        return 0
    kept = file.with_name(f"{file.name}.old")
    if kept.exists():
        raise UserError(f"{kept} is in the way: it would be replaced by the file of today")
    write_atomically(kept, file.read_bytes())
    write_atomically(file, text.encode())
    warn(f"written to {file}; as it was: {kept}")
    return 0


def own_defaults(config: RunConfig) -> dict[str, str]:
    """What the chosen algorithm wants of other blocks: path -> `default of dqn`."""
    from rl_lab.config.catalog import algorithm_class
    from rl_lab.config.tree import leaves

    wanted = dict(leaves(algorithm_class(config.algorithm).defaults))
    return dict.fromkeys(wanted, f"default of {config.algorithm.name}")


def annotated(
    tree: Mapping[str, Any],
    written: object,
    origins: Mapping[str, Any],
    own: Mapping[str, str] | None = None,
) -> str:
    """The tree as YAML, which reads back as the tree; behind each value, where it came from."""

    def origin(path: str) -> str:
        found = _origin(path, written, origins)
        return (own or {}).get(path, found) if found == DEFAULT else found

    lines = [(text, origin(path)) for path, text in _lines(tree)]
    width = min(max(len(text) for text, origin in lines if origin), WIDEST)
    return "\n".join(f"{text:{width}}  # {origin}" if origin else text for text, origin in lines)


def _lines(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`(path, line)`; the path is empty where a line has no value of its own."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    indent = "  " * prefix.count(".")
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield "", f"{indent}{key}:"
            yield from _lines(value, f"{path}.")
        elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            yield "", f"{indent}{key}:"
            for index, each in enumerate(value):
                yield f"{path}.{index}", f"{indent}- {_flow(each)}"
        else:
            shown = yaml.safe_dump({key: value}, default_flow_style=True, width=float("inf"))
            yield path, indent + shown.strip()[1:-1]


def _flow(value: object) -> str:
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"))
    return text.removesuffix("...\n").strip()


def _origin(path: str, written: object, origins: Mapping[str, Any]) -> str:
    """Where a value was written; a value inside of a written one (a schedule) came with it."""
    if not path:
        return ""
    keys = path.split(".")
    for end in range(len(keys), 0, -1):
        above = ".".join(keys[:end])
        if above in origins:
            whole = end == len(keys) or not isinstance(_at(written, keys[:end]), Mapping)
            return str(origins[above]) if whole else DEFAULT
    return DEFAULT


def _at(tree: object, keys: list[str]) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _print_differences(config: RunConfig, reference: str, request: Request, as_json: bool) -> int:
    from rl_lab.config.resolve import resolve
    from rl_lab.config.tree import diff, to_tree
    from rl_lab.records.run_directory import find_run
    from rl_lab.run.session import load_config

    directory, _ = find_run(reference, request.runs_dir)
    # What a run chose for `auto` is in its config, so it must be chosen here too; what only a
    # measurement could choose is no difference.
    here = resolve(config)
    measured = {path for path, *_ in diff(to_tree(here), to_tree(config))} & MEASURED
    found = diff(to_tree(load_config(directory, trust=request.trust)), to_tree(here))
    found = [each for each in found if each[0] not in measured]
    if as_json:
        say_json([{"path": path, "run": run, "here": here} for path, run, here in found])
        return 0
    if not found:
        say(f"no difference to {directory.path.name}")
        return 0
    rows = [{"key": path, directory.id: _flow(a), "here": _flow(b)} for path, a, b in found]
    say(table(rows, ["key", directory.id, "here"]))
    return 0


def _print_options(config: RunConfig, as_json: bool) -> int:
    print_options(option_rows(config), as_json)
    return 0


def option_rows(config: RunConfig) -> list[Any]:
    """Every option of a config, with those of the algorithm, memory … that it has chosen."""
    from rl_lab.config.tree import describe

    rows = describe(type(config))
    for path, block in _variants(config):
        rows += [row for row in describe(type(block), f"{path}.") if row.help]
    return rows


def print_options(rows: list[Any], as_json: bool) -> None:
    """Options as `path, type, default, allowed, help`."""
    if as_json:
        say_json([row._asdict() for row in rows])
        return
    shown = [{**row._asdict(), "default": _flow(_plain(row.default))} for row in rows]
    say(table(shown, ["path", "type", "default", "allowed", "help"]))


def _plain(value: object) -> Any:
    return value if isinstance(value, str | int | float | list | dict | None) else str(value)


def _variants(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Blocks whose dataclass was chosen by name."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            if "variant" in each.metadata:
                yield f"{prefix}{each.name}", value
            yield from _variants(value, f"{prefix}{each.name}.")
