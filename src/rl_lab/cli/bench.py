"""`rl-lab bench`: how fast things are here, as ratios with their spread."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.arguments import RUNS, Json, RunsDir, Trust
from rl_lab.cli.bench_networks import networks
from rl_lab.core.errors import UserError

if TYPE_CHECKING:
    from rl_lab.benchmarking.report import Report
    from rl_lab.core.schema import RunConfig

SETTINGS = {"help_option_names": ["-h", "--help"]}
CHECKOUT = Path(__file__).resolve().parents[3]  # if the package is used from its source folder

app = typer.Typer(
    help="Measure speed: everything in turns, each line a ratio with its spread.",
    epilog="Start with: rl-lab bench profile CartPole-v1:ppo",
    rich_markup_mode=None,
    context_settings=SETTINGS,
)

app.command(name="networks", context_settings=SETTINGS)(networks)

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE.json",
        help="keep the result here (default: benchmarks/results/, if there is such a folder); "
        "with matplotlib, also as a PNG beside it",
    ),
]
Repeats = Annotated[int, typer.Option(min=1, help="rounds; more give a narrower spread")]
Seconds = Annotated[
    float, typer.Option(min=0.001, help="about how long each single measurement lasts")
]
Words = Annotated[
    list[str],
    typer.Argument(
        metavar="SPEC [KEY=VALUE]...", help="an experiment such as CartPole-v1:ppo, and overrides"
    ),
]


@app.callback()
def group() -> None:
    """Measure speed: everything in turns, each line a ratio with its spread."""


@app.command(name="envs", context_settings=SETTINGS)
def environments(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="environments; default: two")
    ] = None,
    num_envs: Annotated[
        str, typer.Option(metavar="N[,N]...", help="how many are stepped together")
    ] = "8,64",
    repeats: Repeats = 5,
    seconds: Seconds = 0.5,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Step environments at random, by every backend that works; the ratio is to sync."""
    from rl_lab.benchmarking.environments import bench_environments

    counts = _counts(num_envs)
    return run_bench(
        "envs",
        lambda tell: bench_environments(
            ids or [], counts, repeats=repeats, seconds=seconds, tell=tell
        ),
        output,
        as_json,
    )


@app.command(name="collect", context_settings=SETTINGS)
def collect(
    words: Words,
    repeats: Repeats = 5,
    seconds: Seconds = 1.0,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Collect with the policy, with a random one, and step the environments alone."""
    from rl_lab.benchmarking.collect import bench_collect

    config = _config(words)
    return run_bench(
        "collect",
        lambda tell: bench_collect(config, repeats=repeats, seconds=seconds, tell=tell),
        output,
        as_json,
    )


@app.command(name="update", context_settings=SETTINGS)
def update(
    words: Words,
    compile: Annotated[
        str, typer.Option(metavar="both|off|on", help="eager, compiled, or one against the other")
    ] = "both",
    repeats: Repeats = 5,
    seconds: Seconds = 1.0,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Call every update hook on the same data again and again, eager and compiled."""
    from rl_lab.benchmarking.update import bench_update

    modes = {"both": ("off", "on"), "off": ("off",), "on": ("on",)}.get(compile)
    if modes is None:
        raise UserError(f"--compile {compile}: write both, off or on")
    config = _config(words)
    return run_bench(
        "update",
        lambda tell: bench_update(config, modes=modes, repeats=repeats, seconds=seconds, tell=tell),
        output,
        as_json,
    )


@app.command(
    name="peers",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],  # its own page of help
    },
)
def peers(context: typer.Context) -> int:
    """Train here and in other libraries: equal settings, in turns. Needs a source checkout."""
    sys.path.append(str(CHECKOUT))
    try:
        command = import_module("benchmarks.peers.command")  # outside of the package
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("benchmarks"):
            raise
        raise UserError(
            "the comparison with other libraries is not part of the installed package: "
            "in a source checkout, run `python -m benchmarks.peers`"
        ) from None
    words, name = context.args, "rl-lab bench peers"
    return command.app(words, prog_name=name, standalone_mode=False) or 0


@app.command(name="profile", context_settings=SETTINGS)
def profile(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC|RUN [KEY=VALUE]...",
            help="an experiment, or a run: a new one with its configuration is measured",
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="environment steps of each run")] = 50_000,
    repeats: Repeats = 3,
    runs_dir: RunsDir = RUNS,
    trust: Trust = False,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Time the stages of a run in its real loop: env, policy, storage, update, log, checkpoint."""
    from rl_lab.benchmarking.profile import bench_profile, config_of

    spec, overrides = _split(words)
    config = config_of(spec, overrides, runs_dir, trust=trust)
    return run_bench(
        "profile",
        lambda tell: bench_profile(config, steps=steps, repeats=repeats, tell=tell),
        output,
        as_json,
    )


# ------------------------------------------------------------------- what they share

Columns = Mapping[str, Callable[[Mapping[str, Any]], Any]]  # title -> what to take from a row


def run_bench(
    name: str,
    measure: Callable[[Callable[[str], None]], "Report"],
    output: Path | None,
    as_json: bool,
    columns: Columns | None = None,
) -> int:
    """Measure, print, keep."""
    from rl_lab.benchmarking.report import destination, save
    from rl_lab.cli.printing import say, say_json, warn

    file = destination(name, output)  # a wrong one is reported before the work is done
    report = measure(warn)
    if as_json:
        say_json(report.to_tree())
    else:
        say(as_text(report, columns or {}))
    if file is not None:
        written = save(report, file)
        warn(f"written: {', '.join(map(str, written))}")
        if len(written) == 1:
            warn("no picture: pip install matplotlib")
    return 0


def as_text(report: "Report", columns: Columns) -> str:
    """A report for people: a table, what its numbers are, and notes."""
    from rl_lab.cli.printing import table

    names = ["name", "median", "quartiles", "ratio", "spread", *columns]
    if any("detail" in row for row in report.rows):
        names.append("why not")
    lines = [
        f"{report.title}\n",
        table([_cells(row, columns) for row in report.rows], names),
        f"\nmedian and quartiles: {report.unit}; ratio: {report.ratio_means}",
        *report.notes,
        f"load of the machine at the end: {report.load:.1f}",
    ]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """A row of a report as the cells of a table."""
    from rl_lab.cli.printing import cell

    if "detail" in row:
        return {"name": row["name"], "why not": row["detail"]}
    value, ratio = row["value"], row.get("ratio")
    cells = {
        "name": row["name"],
        "median": value["median"],
        "quartiles": f"{cell(value['low'])} … {cell(value['high'])}",
    }
    if ratio:
        cells["ratio"] = f"{ratio['median']:.3g}"
        cells["spread"] = f"{ratio['low']:.3g} … {ratio['high']:.3g}"
    return cells | {name: take(row) for name, take in columns.items()}


def _split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The experiment, and the overrides."""
    specs = [word for word in words if "=" not in word]
    if len(specs) != 1:
        raise UserError(f"name one experiment such as CartPole-v1:ppo, not {len(specs)}")
    return specs[0], [word for word in words if "=" in word]


def _config(words: Sequence[str]) -> "RunConfig":
    from rl_lab.api import configure

    spec, overrides = _split(words)
    return configure(spec, overrides)[0]


def _counts(text: str) -> list[int]:
    """`8,64` as numbers."""
    try:
        counts = [int(each) for each in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise UserError(f"--num-envs {text}: write numbers from 1, as in 8,64")
    return counts
