"""Videos of the policy in training: on an environment of their own, off the training path."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from rl_lab.collect.play import play
from rl_lab.display.video import USUAL_FPS, film_suffix, filming, picture_of
from rl_lab.envs.render import make_shown
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.build import seeds

if TYPE_CHECKING:
    from rl_lab.run.orchestrator import Orchestrator

MOST_FRAMES = 1_000  # of one video: an episode may last for ever
FINAL = "final"  # what the video of a finished run is called
FINAL_SECONDS = 10.0  # of playing for it: nobody asked for this one


def film(run: "Orchestrator", name: str) -> Path | None:
    """One episode as a video in the run's `videos/` and its displays; None if there is none.

    Why there is none is reported, and training goes on.
    """
    try:
        file = _film(run, name, lambda: run.stop.impatient)
    except Exception as error:  # noqa: BLE001 - a user's render(); no video is worth a run
        lines = str(error).splitlines() or [type(error).__name__]
        run.sinks.warn(f"no video: {lines[0]}")
        return None
    run.sinks.film(run.counters.env_steps, file)
    return file


def film_end(run: "Orchestrator") -> None:
    """One episode of the last policy, for the report of a finished run; it ends at a signal.

    Where nothing can be drawn or written there is none, and only the log says why.
    """
    same = RunDirectory(run.folder).videos.glob(f"*-{run.counters.env_steps:012d}.*")
    if run.stop.requested or any(same):
        return
    end = time.monotonic() + FINAL_SECONDS
    try:
        file = _film(run, FINAL, lambda: run.stop.requested or time.monotonic() > end)
    except Exception as error:  # noqa: BLE001 - a user's render(); no video is worth a run
        lines = str(error).splitlines() or [type(error).__name__]
        run.sinks.log(f"no video of the last policy: {lines[0]}")
        return
    run.sinks.film(run.counters.env_steps, file)


def _film(run: "Orchestrator", name: str, interrupted: Callable[[], bool]) -> Path:
    """Random streams are borrowed and the environment is its own: training does not notice."""
    from rl_lab.run.policy import LoadedPolicy, Policy  # they import the session

    directory, config = RunDirectory(run.folder), run.config
    step = run.counters.env_steps
    file = directory.videos / f"{name}-{step:012d}{film_suffix()}"
    loaded = LoadedPolicy(
        directory, step, config, run.algorithm.context, run.algorithm, run.evaluate
    )
    with run.streams.borrowed("video/"):
        player = Policy.of(loaded)
        with closing(make_shown(config.environment, window=False)) as env:
            fps = float(env.metadata.get("render_fps") or USUAL_FPS)
            with filming(file, fps) as add:
                episodes = play(
                    env,
                    lambda obs: player.act(obs, deterministic=config.evaluation.deterministic),
                    seeds=seeds(config.experiment.seed, "eval", 1),
                    max_steps=MOST_FRAMES,
                    begin=player.reset,
                    show=lambda: add(picture_of(env.render(), config.environment.id)),
                    interrupted=interrupted,
                )
                for _ in episodes:
                    pass
    return file
