"""`rl-lab imagine`: what a saved world model foresees, beside what happens."""

from pathlib import Path
from typing import Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, Run, RunsDir
from rl_lab.cli.printing import say, say_json, warn


def imagine(
    run: Run,
    horizon: Annotated[int, typer.Option(min=1, help="steps to foresee")] = 15,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help=".mp4, .gif, .png or .json"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="another episode")] = None,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Film what a world model foresees, beside what happens: imagine @last --horizon 15."""
    from rl_lab.analysis.imagining import default_file, imagine_run, write_imagined
    from rl_lab.run import policy

    loaded = policy.load(run, runs_dir, seed=seed, warn=lambda line: warn(f"warning: {line}"))
    try:
        imagined = imagine_run(loaded, horizon)
        files = write_imagined(imagined, output or default_file(loaded, imagined))
    finally:
        loaded.context.train_environment.close()
    if as_json:
        names = [str(each) for each in files]
        found = {"run": loaded.run.id, "step": loaded.step, "files": names}
        say_json({**found, **imagined.to_tree()})
        return 0
    say(f"{imagined.horizon} steps predicted · run {loaded.run.id} at step {loaded.step:,}")
    for file in files:
        say(f"written: {file}")
    return 0
