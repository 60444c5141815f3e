"""`rl-lab bench networks`: every memory on every task, with equal numbers of parameters."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, RunsDir, count
from rl_lab.core.errors import UserError

if TYPE_CHECKING:
    from rl_lab.benchmarking.networks.benchmark import Ended


def networks(
    set_name: Annotated[
        Path,
        typer.Option("--set", metavar="SET", help="a set of tasks: a file, or a shipped one"),
    ] = Path("memory"),
    tasks: Annotated[
        str, typer.Option("--envs", metavar="TASK[,TASK]...", help="tasks of the set; else all")
    ] = "",
    memories: Annotated[
        str,
        typer.Option(
            metavar="MEMORY[,MEMORY]...",
            help="none, stack4, gru, lstm, trxl, gtrxl, mamba, mamba2; ablations: gru_flawed, "
            "mamba_flawed, mamba2_flawed",
        ),
    ] = "",
    seeds: Annotated[
        str, typer.Option("--seeds", "--seed", metavar="SEEDS", help="1,2,3 or 1-3")
    ] = "1,2,3",
    match: Annotated[
        str, typer.Option(metavar="parameters|width", help="what the networks have in common")
    ] = "parameters",
    parameters: Annotated[
        int | None,
        typer.Option(parser=count(1), metavar="N", help="parameters of each network"),
    ] = None,
    size: Annotated[
        str, typer.Option(metavar="cpu|gpu", help="for which machine: networks and steps")
    ] = "cpu",
    steps: Annotated[
        int | None,
        typer.Option(parser=count(1), metavar="N", help="environment steps of each run"),
    ] = None,
    number: Annotated[int, typer.Option("--jobs", min=1, help="runs at a time")] = 1,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="of the benchmark's folder; else that of the set")
    ] = "",
    known: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json",
            help="results of an earlier time: its runs are not run again; they join a --report",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="also keep the results there")
    ] = None,
    timing: Annotated[
        bool, typer.Option(help="measure speed when the runs are done, if nothing else runs")
    ] = True,
    repeats: Annotated[int, typer.Option(min=1, help="rounds of that")] = 5,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what would be run, run nothing")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER|FILE.json", help="only write the report of what is there"),
    ] = None,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Train PPO with every memory on every task of a set; the same command again goes on.

    Writes a table, pictures and one HTML page: returns, speed and size side by side.
    """
    from rl_lab.benchmarking.networks.benchmark import Request, again, run
    from rl_lab.cli.printing import say, warn
    from rl_lab.cli.request import read_seeds
    from rl_lab.display.live_table import LiveTable
    from rl_lab.tuning.progress import Watcher

    if report is not None:
        return _show(again(report, output, known or []), as_json)
    if not dry_run and find_spec("optuna") is None:
        raise UserError("this benchmark needs Optuna: pip install 'rl-lab[tune]'")
    request = Request(
        set_name=set_name,
        tasks=_listed(tasks),
        memories=_listed(memories),
        seeds=tuple(read_seeds(seeds)),
        match=match,
        parameters=parameters,
        size=size,
        steps=steps,
        jobs=number,
        name=name,
        known=known or [],
        output=output,
        repeats=repeats if timing else 0,
    )
    with LiveTable() as live:
        watched = live.can_draw and not as_json
        tell = live.say if watched else warn if as_json else say
        look = Watcher(live) if watched else None
        ended = run(request, runs_dir, tell, look, dry_run=dry_run)
    return 0 if ended is None else _show(ended, as_json)


def _show(ended: "Ended", as_json: bool) -> int:
    """Print the tables; the exit code."""
    from rl_lab.benchmarking.networks.page import cells_of, filled
    from rl_lab.benchmarking.networks.results import rows, to_tree
    from rl_lab.cli.printing import say, say_json, table

    results = ended.results
    if as_json:
        say_json(to_tree(results))
    else:
        for task in dict.fromkeys(cell["task"] for cell in results.cells):
            own = [row for row in rows(results) if row.task == task]
            shown = [cells_of(row, len(results.seeds)) for row in own]
            say(f"\n{task}\n{table(shown, filled(shown))}")
        if missing := results.missing():
            say(f"\nstill to be run: {len(missing)} runs; the same command goes on from here")
        say(f"report: {ended.folder / 'report.html'}")
    return {None: 0, 15: 143}.get(ended.stopped, 130)


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
