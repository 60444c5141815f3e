"""`rl-lab record`: episodes of a checkpoint, step by step, for the inspector of `rl-lab ui`."""

from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, Run, RunsDir, Trust, count
from rl_lab.cli.printing import cell, say, say_json, warn

if TYPE_CHECKING:
    from rl_lab.collect.play import Played


def record(
    run: Run,
    episodes: Annotated[
        int, typer.Option(parser=count(1), metavar="N", help="episodes to play")
    ] = 3,
    seed: Annotated[
        int, typer.Option(min=0, help="of the episodes: equal ones for every checkpoint and run")
    ] = 0,
    sample: Annotated[bool, typer.Option("--sample", help="sample actions, not the mode")] = False,
    max_steps: Annotated[
        int | None,
        typer.Option(parser=count(1), metavar="N", help="end episodes after this many steps"),
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Record episodes step by step, to be looked at with `rl-lab ui`: record @best --episodes 3.

    Observations, actions, probabilities, values, rewards and frames go into the run's folder
    recordings/. The same checkpoint and seed give the same recording.
    """
    from rl_lab import api

    def tell(number: int, episode: "Played") -> None:
        if not as_json:
            end = "ended" if episode.terminated else "truncated"
            say(f"episode {number}: return {cell(episode.total)}, {episode.length:,} steps, {end}")

    result = api.record(
        run,
        episodes=episodes,
        seed=seed,
        sample=sample,
        max_steps=max_steps,
        trust=trust,
        runs_dir=runs_dir,
        tell=tell,
        warn=lambda line: warn(f"warning: {line}"),
    )
    if as_json:
        say_json(result.to_tree())
    else:
        say(f"recorded: {result.folder}")
        say(f"look at it with: rl-lab ui {result.run}")
    if result.exit_code:
        warn("interrupted")
    return result.exit_code
