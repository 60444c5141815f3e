"""`rl-lab play`: watch a trained policy, in a window or as a film."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, Run, RunsDir, Trust, count
from rl_lab.cli.printing import cell, say, say_json, warn

if TYPE_CHECKING:
    from rl_lab.collect.play import Played


def play(
    run: Run,
    episodes: Annotated[
        int, typer.Option(parser=count(1), metavar="N", help="episodes to play")
    ] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="sample actions, not the mode")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="other episodes")] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(parser=count(1), metavar="N", help="end episodes after this many steps"),
    ] = None,
    video: Annotated[
        Path | None, typer.Option(metavar="FILE.mp4|.gif", help="write a video, and open no window")
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Watch a trained policy, in a window or as a video: play @best --video best.mp4.

    Without a screen a video goes into the run's folder videos/. Ctrl-C ends it and keeps the video.
    """
    from rl_lab import api

    def tell(number: int, episode: "Played") -> None:
        if not as_json:
            end = "ended" if episode.terminated else "truncated"
            say(f"episode {number}: return {cell(episode.total)}, {episode.length:,} steps, {end}")

    result = api.play(
        run,
        episodes=episodes,
        sample=sample,
        seed=seed,
        max_steps=max_steps,
        video=video,
        trust=trust,
        runs_dir=runs_dir,
        tell=tell,
        warn=lambda line: warn(f"warning: {line}"),
    )
    if as_json:
        say_json(result.to_tree())
    else:
        number = len(result.played)
        plural = "episode" if number == 1 else "episodes"
        mean = cell(result.return_mean)
        say(f"return {mean} ({number} {plural}) · run {result.run} at step {result.step:,}")
        if result.video is not None:
            say(f"video: {result.video}")
    if result.exit_code:
        warn("interrupted")
    return result.exit_code
