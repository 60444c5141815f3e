"""`rl-lab dataset`: record data of a run, look at it, and change it."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.arguments import RUNS, SETTINGS, Json, Run, RunsDir, Trust, count
from rl_lab.cli.printing import cell, pairs, say, say_json, table, warn
from rl_lab.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rl_lab.datasets.folder import Folder

app = typer.Typer(
    help="Datasets: record them from runs, look at them, merge, split and convert them.",
    rich_markup_mode=None,
    context_settings=SETTINGS,
)
SECONDS, WIDTH = 0.5, 30
Data = Annotated[
    str, typer.Argument(metavar="DATA", help="a name in datasets/, a folder, or minari:NAME")
]
Out = Annotated[
    str,
    typer.Option(
        "-o", "--output", metavar="NAME", help="a name in datasets/ (RL_LAB_DATASETS), or ./a/path"
    ),
]


@app.callback()
def dataset() -> None:
    """Datasets: record them from runs, look at them, merge, split and convert them."""


@app.command(context_settings=SETTINGS)
def record(
    run: Run,
    output: Out,
    episodes: Annotated[
        int, typer.Option(parser=count(1), metavar="N", help="episodes to play")
    ] = 100,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="STEP", help="best, last or a step; the best one unless given"),
    ] = None,
    noise: Annotated[
        float,
        typer.Option(
            min=0,
            help="deviation of noise on actions as a share of half their range; "
            "for discrete actions the share of random ones",
        ),
    ] = 0.0,
    sample: Annotated[bool, typer.Option("--sample", help="sample actions, not the mode")] = False,
    random: Annotated[
        bool, typer.Option("--random", help="play uniformly random actions instead")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="write what the run's own buffer held, play nothing")
    ] = False,
    buffer: Annotated[
        str | None, typer.Option(metavar="NAME", help="with --replay: which buffer of the run")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the episodes")] = 0,
    batch: Annotated[
        int,
        typer.Option(
            parser=count(1), metavar="N", help="episodes that are played side by side, and a file"
        ),
    ] = 8,
    references: Annotated[
        int,
        typer.Option(
            parser=count(0),
            metavar="N",
            help="episodes of random and of expert play, for normalized returns; 0: none",
        ),
    ] = 20,
    expert: Annotated[
        str | None,
        typer.Option(
            metavar="RETURN|RUN", help="what counts as 100; the run's best policy unless given"
        ),
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Record a dataset of a run: record @best --episodes 500 -o hopper/expert.

    The classical tiers: --random, --checkpoint STEP of a run that was half as good (medium),
    --replay (all that was played up to a checkpoint), and the best checkpoint (expert). The same
    command goes on with what a killed one has left.
    """
    from rl_lab.datasets.make import record as record_dataset
    from rl_lab.datasets.record import Recipe

    bar = _Bar("transitions" if replay else "episodes")
    made = record_dataset(
        run,
        runs_dir,
        output,
        Recipe(
            episodes=episodes,
            batch=batch,
            seed=seed,
            sample=sample,
            noise=noise,
            random=random,
            references=references,
        ),
        checkpoint=checkpoint,
        replay=replay,
        buffer=buffer,
        expert=expert,
        trust=trust,
        tell=bar.show,
        warn=lambda line: warn(f"warning: {line}"),
    )
    bar.clear()
    if made.exit_code:
        warn("interrupted: the same command goes on with it")
        return made.exit_code
    return _told(made.folder, as_json)


@app.command(context_settings=SETTINGS)
def info(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="a name in datasets/, or a folder of ours")
    ],
    as_json: Json = False,
) -> int:
    """Show what a dataset has: spaces, episodes, returns, references, where it came from.

    Every file is compared with its checksum first.
    """
    from rl_lab.datasets.folder import COMPLETE, RECORDING, Folder
    from rl_lab.datasets.numbers import Numbers

    folder = Folder.open(data)
    bar = _Bar("files")
    folder.verify(bar.show)
    if "episodes" not in folder.about:  # its recorder was killed, or a disk buffer wrote it
        status = RECORDING if "actions" in folder.about else COMPLETE
        found = Numbers.of(folder.ring(), folder.spec).to_tree()
        folder.about = {"status": status, **folder.about, **found}
    bar.clear()
    return _told(folder, as_json)


@app.command(context_settings=SETTINGS)
def merge(
    data: Annotated[list[str], typer.Argument(metavar="DATA…", help="two datasets or more")],
    output: Out,
    as_json: Json = False,
) -> int:
    """Make one dataset of several of the same task: merge hopper/medium hopper/expert -o both."""
    from rl_lab.datasets.change import merge as merge_datasets
    from rl_lab.datasets.make import place

    bar = _Bar("episodes")
    folder = merge_datasets(data, place(output), name=output, tell=bar.show)
    bar.clear()
    return _told(folder, as_json)


@app.command(context_settings=SETTINGS)
def split(
    data: Data,
    output: Annotated[
        list[str],
        typer.Option("-o", "--output", metavar="NAME", help="twice: one for each of the two parts"),
    ],
    fraction: Annotated[
        float | None, typer.Option(help="this share of the episodes, chosen at random")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(parser=count(1), metavar="N", help="the first N episodes")
    ] = None,
    best: Annotated[
        float | None, typer.Option(help="this share of the episodes, those with the best returns")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the choice at random")] = 0,
    as_json: Json = False,
) -> int:
    """Make two datasets of one: split hopper/replay --best 0.1 -o hopper/best -o hopper/rest."""
    from rl_lab.datasets.change import split as split_dataset
    from rl_lab.datasets.make import place

    if len(output) != 2:
        raise UserError("give two names: -o FIRST -o SECOND")
    if sum(each is not None for each in (fraction, episodes, best)) != 1:
        raise UserError("say how to split, once: --fraction 0.8, --episodes 100 or --best 0.1")
    bar = _Bar("episodes")
    first, second = split_dataset(
        data,
        [place(each) for each in output],
        fraction=fraction,
        episodes=episodes,
        best=best,
        seed=seed,
        tell=bar.show,
    )
    bar.clear()
    if as_json:
        say_json([_tree(first), _tree(second)])
        return 0
    for folder in (first, second):
        _told(folder, as_json)
    return 0


@app.command(context_settings=SETTINGS)
def convert(
    data: Data,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="rl-lab, npz, minari, lerobot")],
    output: Out,
    as_json: Json = False,
) -> int:
    """Bring a dataset into another format, or one of another format into ours.

    rl-lab dataset convert minari:mujoco/hopper/expert-v0 --to rl-lab -o hopper/theirs
    """
    from rl_lab.datasets.change import FORMATS
    from rl_lab.datasets.change import convert as convert_dataset
    from rl_lab.datasets.make import place

    chosen = next((each for each in FORMATS if each == to), None)
    if chosen is None:
        hint = did_you_mean(to, FORMATS)
        raise UserError(f"--to {to}: known are {', '.join(FORMATS)}{hint}")
    bar = _Bar("episodes")
    made = convert_dataset(data, chosen, output, place, bar.show)
    bar.clear()
    if as_json:
        say_json({"path": made, "format": chosen})
    else:
        say(f"converted: {made}")
    return 0


def _tree(folder: "Folder") -> dict[str, Any]:
    return {"path": str(folder.path), **folder.about}


def _told(folder: "Folder", as_json: bool) -> int:
    """What `info` says."""
    if as_json:
        say_json(_tree(folder))
        return 0
    try:
        say(_shown_facts(folder))
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # it may be anybody's
        raise UserError(f"{folder.path}/dataset.json is damaged: {error!r}") from error
    return 0


def _shown_facts(folder: "Folder") -> str:
    about = folder.about
    returns, lengths = about["returns"], about["lengths"]
    made, known = about.get("provenance") or {}, about.get("references") or {}
    state = "" if folder.complete else " (its recorder was stopped: record again to go on)"
    facts = {
        "dataset": f"{folder.path}{state}",
        "environment": about["environment"],
        "observations": _columns(about, "obs"),
        "actions": f"{_columns(about, 'action')}{_bounds(about)}",
        "episodes": f"{about['episodes']:,} ({about['terminated_episodes']:,} terminated)",
        "transitions": about["transitions"],
        "lengths": f"{cell(lengths['mean'])} ({lengths['min']:,} to {lengths['max']:,})",
        "returns": f"{cell(returns['mean'])} ± {cell(returns['std'])}",
        "behavior": about.get("behavior"),
        **{f"{name} play": known.get(name) for name in ("random", "expert") if name in known},
        **{name: _shown(each) for name, each in made.items()},
    }
    row = {f"{name} %": each for name, each in returns["quantiles"].items()}
    quantiles = table([{"returns": "", **row}], ["returns", *row])
    return f"{pairs(facts)}\n\n{quantiles}"


def _columns(about: dict[str, Any], prefix: str) -> str:
    found = [
        f"{name} {each['dtype']}{each['shape']}"
        for name, each in about["columns"].items()
        if name.partition("/")[0] == prefix
    ]
    return ", ".join(found)


def _bounds(about: dict[str, Any]) -> str:
    told = about.get("actions")
    if told is None:
        return ", in the policy's own units"
    if told["kind"] == "box":
        return f", from {told['low']} to {told['high']}"
    return f", {told['n']} of them" if told["kind"] == "discrete" else f", {told['nvec']}"


def _shown(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return str(value) if isinstance(value, int) else value


class _Bar:
    """How far it is, in a line that is written over; nothing where that is no terminal."""

    def __init__(self, what: str) -> None:
        self.what, self.next, self.width = what, time.monotonic() + SECONDS, 0

    def show(self, done: int, total: int) -> None:
        """`total` is 0 where nobody knows it."""
        if not sys.stderr.isatty() or time.monotonic() < self.next:
            return
        self.next = time.monotonic() + SECONDS
        text = f"{done:,} {self.what}"
        if total:
            filled = WIDTH * done // total
            text = f"{'#' * filled}{'.' * (WIDTH - filled)} {done:,} of {total:,} {self.what}"
        sys.stderr.write(f"\r{text.ljust(self.width)}")
        sys.stderr.flush()
        self.width = len(text)

    def clear(self) -> None:
        """Take the line away."""
        if self.width:
            sys.stderr.write(f"\r{' ' * self.width}\r")
            sys.stderr.flush()
