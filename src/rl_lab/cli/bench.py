"""`rl-lab bench`: how fast things are here, as ratios with their spread.

Words and options of its subcommands live here, as there are many; nothing heavy is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.arguments import Trust
from rl_lab.core.errors import UserError

if TYPE_CHECKING:
    from rl_lab.benchmarking.report import Report
    from rl_lab.core.schema import RunConfig

SETTINGS = {"help_option_names": ["-h", "--help"]}
SWITCHES = {"on": True, "off": False}

app = typer.Typer(
    help="Measure speed: everything in turns, each line a ratio with its spread.",
    epilog="Start with: rl-lab bench profile CartPole-v1:ppo",
    rich_markup_mode=None,
    context_settings=SETTINGS,
)

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
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
    return _run(
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
    return _run(
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
    return _run(
        "update",
        lambda tell: bench_update(config, modes=modes, repeats=repeats, seconds=seconds, tell=tell),
        output,
        as_json,
    )


@app.command(name="peers", context_settings=SETTINGS)
def peers(
    env: Annotated[
        str | None,
        typer.Option(metavar="ID", help="a Gymnasium id; default: that of the settings"),
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option(
            metavar="matched|zoo|quick|halfcheetah|dqn|dqn_zoo|sac",
            help="matched: 8 x 128, 4 epochs of 4 minibatches; zoo: 8 x 32, 20 epochs, decaying; "
            "quick: 128 x 32, 6 epochs of 4; "
            "halfcheetah: 8 x 256, 10 epochs of 32; dqn: CleanRL's, dqn_zoo: RL Baselines3 Zoo's; "
            "sac: one gradient step per step on Pendulum; default: matched, with --until zoo",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="environment steps of each training")] = 100_000,
    until: Annotated[
        float | None,
        typer.Option(
            metavar="RETURN",
            help="time from the command until evaluations in a row reach this; --steps is the most",
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEPS",
            help="with --until: steps between evaluations; default: a tenth of --steps",
        ),
    ] = None,
    repeats: Repeats = 5,
    compile: Annotated[
        str,
        typer.Option(
            metavar="on|off",
            help="whether our own update is compiled; with --until, on adds a row for that",
        ),
    ] = "off",
    threads: Annotated[
        int, typer.Option(min=1, help="of everyone, each on a core; 2 pay for sac's wide layers")
    ] = 1,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            help="only this one besides rl-lab: rl-lab-default, plain, sb3, sbx, cleanrl, jax; "
            "repeatable",
        ),
    ] = None,
    cleanrl: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="CleanRL's own ppo.py, which then takes part"),
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Train here and in other libraries: equal settings, in turns, a process for each.

    The ratio says how many times as fast rl-lab is. A row also says what the training took in all,
    imports included, and whether it learned. Peers come with: pip install 'rl-lab[peers]'
    """
    from rl_lab.benchmarking.peers import bench_peers
    from rl_lab.benchmarking.until import bench_until

    if compile not in SWITCHES:
        raise UserError(f"--compile {compile}: write on or off")
    asked: dict[str, Any] = {
        "env": env,
        "settings": settings or ("matched" if until is None else "zoo"),
        "steps": steps,
        "repeats": repeats,
        "compile": SWITCHES[compile],
        "names": peer or [],
        "threads": threads,
    }
    if until is not None:
        return _run(
            f"until-{asked['settings']}",
            lambda tell: bench_until(until, every=every, tell=tell, **asked),
            output,
            as_json,
            columns=ARRIVALS,
        )
    if cleanrl is not None and not cleanrl.is_file():
        raise UserError(f"--cleanrl {cleanrl}: there is no such file")
    asked["script"] = None if cleanrl is None else str(cleanrl.resolve())
    if every is not None:
        raise UserError("--every is for --until: say which return is to be reached")
    return _run(
        f"peers-{asked['settings']}{'-compiled' * SWITCHES[compile]}"
        + (f"-{threads}-threads" if threads > 1 else ""),
        lambda tell: bench_peers(tell=tell, **asked),
        output,
        as_json,
        columns=TRAININGS,
    )


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
    runs_dir: Annotated[
        Path, typer.Option("--runs-dir", envvar="RL_LAB_RUNS", help="the folder of all runs")
    ] = Path("runs"),
    trust: Trust = False,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Time the stages of a run in its real loop: env, policy, storage, update, log, checkpoint."""
    from rl_lab.benchmarking.profile import bench_profile, config_of

    spec, overrides = _split(words)
    config = config_of(spec, overrides, runs_dir, trust=trust)
    return _run(
        "profile",
        lambda tell: bench_profile(config, steps=steps, repeats=repeats, tell=tell),
        output,
        as_json,
    )


# ------------------------------------------------------------------- what they share

Columns = Mapping[str, Callable[[Mapping[str, Any]], Any]]  # title -> what to take from a row
TRAININGS: Columns = {
    "seconds in all": lambda row: row["total_seconds"],
    "return": lambda row: f"{row['first_return']:.1f} → {row['last_return']:.1f}",
    "learned": lambda row: f"{row['learned']} of {row['runs']}",
}
ARRIVALS: Columns = {
    "steps": lambda row: int(row["steps"]),
    "arrived": lambda row: f"{row['reached']} of {row['rounds']}",
}


def _run(
    name: str,
    measure: Callable[[Callable[[str], None]], "Report"],
    output: Path | None,
    as_json: bool,
    columns: Columns | None = None,
) -> int:
    """Measure, print, keep."""
    from rl_lab.benchmarking.report import destination, save
    from rl_lab.cli.printing import say, say_json, warn

    file = destination(name, output)  # a wrong one is told before the work is done
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
