"""Videos of the policy in training: on an environment of their own, off the training path."""

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


def film(run: "Orchestrator", name: str) -> Path | None:
    """One episode as a video in the run's `videos/` and its displays; None if there is none.

    Why there is none is reported, and training goes on.
    """
    try:
        file = _film(run, name)
    except Exception as error:  # noqa: BLE001 - a user's render(); no video is worth a run
        lines = str(error).splitlines() or [type(error).__name__]
        run.sinks.warn(f"no video: {lines[0]}")
        return None
    run.sinks.film(run.counters.env_steps, file)
    return file


def _film(run: "Orchestrator", name: str) -> Path:
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
                    interrupted=lambda: run.stop.impatient,
                )
                for _ in episodes:
                    pass
    return file
