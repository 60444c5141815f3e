"""`rl-lab sweep`: many runs of one experiment, and the search for its best settings."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, RunsDir

if TYPE_CHECKING:
    from rl_lab.tuning.sweep_file import Sweep

SHOWN = 20  # trials of a dry run, or of the table at the end


def sweep(
    file: Annotated[
        Path | None, typer.Argument(metavar="SWEEP", help="a file, or the name of a shipped one")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="SWEEP", help="the same as SWEEP")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="the experiment, if the file does not name it"),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--jobs", min=1, help="runs at a time; else parallel_jobs")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="how many settings to try; else as in the file")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="local", help="where runs are run; only here, for now")
    ] = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the trials and their number, run nothing")
    ] = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Try many settings of an experiment; the same command again goes on where it was.

    Grid, random, TPE, CMA-ES or Gaussian processes, with several seeds for each trial.
    """
    from rl_lab.core.errors import UserError
    from rl_lab.tuning.sweep_file import read_sweep

    if engine != "local":
        raise UserError(f"--engine {engine}: only local is there for now")
    if (file is None) == (config_file is None):
        raise UserError("name one sweep file, or a shipped one such as cartpole_ppo")
    asked = read_sweep(file or config_file or Path(), base)
    if number is not None:
        asked = replace(asked, parallel_jobs=number)
    if trials is not None:
        asked = replace(asked, trials=trials)
    return _preview(asked, as_json) if dry_run else _run(asked, runs_dir, as_json)


def _preview(asked: "Sweep", as_json: bool) -> int:
    from itertools import islice

    from rl_lab.cli.printing import say, say_json
    from rl_lab.tuning.driver import check, show, trial_count
    from rl_lab.tuning.tuner import Tuner

    check(asked)
    count = trial_count(asked)
    if asked.method == "grid":
        points = [asked.space.complete(each) for each in asked.space.points()]
        points = points[:count]
    else:
        tuner = Tuner(asked.space, method="random", seed=asked.seed)
        drawn = (tuner.suggest() for _ in range(min(count, SHOWN)))
        points = [each.settings for each in drawn if each is not None]
    runs = count * len(asked.seeds)
    if as_json:
        say_json({"trials": count, "runs": runs, "method": asked.method, "settings": points})
        return 0
    for index, settings in enumerate(islice(points, SHOWN)):
        say(f"trial {index}: {show(settings)}")
    if count > len(points[:SHOWN]):
        say(f"… and {count - len(points[:SHOWN])} more")
    if asked.method not in ("grid", "random"):
        say(f"(examples: {asked.method} chooses by what it has seen)")
    say(f"{count} trials x {len(asked.seeds)} seeds = {runs} runs, {asked.parallel_jobs} at a time")
    return 0


def _run(asked: "Sweep", runs_dir: Path, as_json: bool) -> int:
    from rl_lab.cli.printing import say, say_json, table, warn
    from rl_lab.display.live_table import LiveTable
    from rl_lab.tuning.driver import run_sweep, show
    from rl_lab.tuning.progress import Watcher
    from rl_lab.tuning.report import write_report

    with LiveTable() as live:
        if live.can_draw and not as_json:
            driver, complete = run_sweep(asked, runs_dir, live.say, Watcher(live))
        else:
            driver, complete = run_sweep(asked, runs_dir, warn if as_json else say)
    folder = asked.folder(runs_dir)
    facts = write_report(asked, driver.tuner, folder) | {"complete": complete}
    if as_json:
        say_json(facts)
    else:
        rows = [
            {"trial": str(row["trial"]), "state": row["state"], "value": row["value"],
             "settings": show(row["settings"])}
            for row in facts["trials"][:SHOWN]
        ]  # fmt: skip
        say("\n" + table(rows, ["trial", "value", "state", "settings"]))
        if facts["best"]:
            say(f"\nbest: trial {facts['best']['trial']}, {facts['best']['value']:,.6g}")
            say(f"  rl-lab train --config {facts['best']['config']}")
        say(f"report: {folder / 'report.md'}")
        if not complete:
            say("stopped: the same command goes on from here")
    if complete:
        return 0
    return 143 if driver.stopped == 15 else 130
