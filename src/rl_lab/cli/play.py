"""`rl-lab play`: watch a trained policy, in a window or as a film."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.arguments import RUN_HELP, RUNS, Json, RunsDir, Trust, count
from rl_lab.cli.printing import cell, say, say_json, table, warn
from rl_lab.core.errors import UserError

if TYPE_CHECKING:
    from rl_lab.analysis.playing import Playback
    from rl_lab.collect.play import Played


def play(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN…", help=f"{RUN_HELP}; several with --grid")
    ],
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
    grid: Annotated[
        bool, typer.Option("--grid", help="several runs or checkpoints side by side in one video")
    ] = False,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Watch a trained policy, in a window or as a video: play @best --video best.mp4.

    Without a screen a video goes into the run's folder videos/. Ctrl-C ends it and keeps the video.
    In a window: space pauses, n steps, + and - change the speed, r begins again, c and C go to the
    next and the last checkpoint, q leaves.
    """
    from rl_lab import api

    if grid:
        if video is None:
            raise UserError("--grid needs --video FILE.mp4 or .gif")
        found = api.play_grid(
            runs,
            video,
            episodes=episodes,
            sample=sample,
            seed=seed or 0,
            max_steps=max_steps,
            trust=trust,
            runs_dir=runs_dir,
            warn=lambda line: warn(f"warning: {line}"),
        )
        return _told(found, as_json=as_json)
    if len(runs) > 1:
        raise UserError("several runs are played side by side with --grid --video FILE")
    run = runs[0]

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


def _told(found: list["Playback"], *, as_json: bool) -> int:
    """What was played side by side, a line for each policy."""
    if as_json:
        say_json([each.to_tree() for each in found])
    else:
        rows = [
            {"run": each.run, "step": f"{each.step:,}", "return": cell(each.return_mean)}
            for each in found
        ]
        say(table(rows, ["run", "step", "return"]))
        say(f"video: {found[0].video}")
    if found[0].exit_code:
        warn("interrupted")
    return found[0].exit_code
