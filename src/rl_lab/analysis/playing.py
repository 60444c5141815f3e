"""Play a trained policy: in a window, or as a video."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.analysis.controls import Controls, linger
from rl_lab.collect.play import Played, play
from rl_lab.core.batch import Obs
from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.display.video import USUAL_FPS, check_film, film_suffix, filming, picture_of
from rl_lab.display.window import Window, can_open
from rl_lab.envs.render import PICTURES, has_screen, make_shown
from rl_lab.run.build import MOST_EVALUATED
from rl_lab.run.policy import Policy
from rl_lab.run.signals import StopRequest, stop_on_signals

Tell = Callable[[int, Played], None]  # an episode's number, from 1, and how it went


@dataclass(frozen=True, repr=False)
class Playback:
    """What was played: the whole episodes, and the film if there is one."""

    played: list[Played]
    video: Path | None
    run: str
    step: int
    exit_code: int = 0  # 130 or 143: a signal ended it before the last episode

    @property
    def returns(self) -> list[float]:
        """Of the whole episodes."""
        return [each.total for each in self.played]

    @property
    def lengths(self) -> list[int]:
        """Of the whole episodes, in steps."""
        return [each.length for each in self.played]

    @property
    def return_mean(self) -> float | None:
        """None if there was no whole episode."""
        return float(np.mean(self.returns)) if self.played else None

    def __repr__(self) -> str:
        """What was played, not every episode."""
        mean = "None" if self.return_mean is None else f"{self.return_mean:.4g}"
        video = None if self.video is None else str(self.video)
        return (
            f"Playback(return_mean={mean}, episodes={len(self.played)}, video={video!r}, "
            f"run={self.run!r}, step={self.step})"
        )

    def to_tree(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "return_mean": self.return_mean,
            "episodes": len(self.played),
            "returns": self.returns,
            "lengths": self.lengths,
            "video": None if self.video is None else str(self.video),
            "run": self.run,
            "step": self.step,
        }


def check_show(video: Path | None) -> None:
    """Refuse what cannot be filmed here, before anything is loaded."""
    if video is not None:
        check_film(video)
    elif not has_screen():
        film_suffix()


def play_policy(
    player: Policy,
    *,
    deterministic: bool,
    seeds: Sequence[int],
    max_steps: int | None,
    video: Path | None,
    tell: Tell,
    other: Callable[[int], Policy],
) -> Playback:
    """Play one episode for each seed: into `video`, or in a window, or into the run's `videos/`.

    In a window keys pause, step, change the speed, begin again and go to another checkpoint, which
    `other` loads. The first Ctrl-C ends it after the step at hand; what was filmed
    so far becomes the film.
    """
    loaded = player.loaded
    has_window = video is None and has_screen()
    if video is None and not has_window:
        video = loaded.run.videos / f"play-{loaded.step:012d}{film_suffix()}"
    if max_steps is None and loaded.context.spec.max_episode_steps is None:
        max_steps = MOST_EVALUATED
    environment = loaded.config.environment
    played: list[Played] = []
    stop, controls, rest = StopRequest(), Controls(), list(seeds)
    with ExitStack() as open_things:
        open_things.enter_context(stop_on_signals(stop))
        window = open_things.enter_context(closing(Window())) if has_window and can_open() else None
        env = open_things.enter_context(closing(_shown(environment, has_window, window)))
        if window is not None and env.render_mode != PICTURES:
            window = None  # it draws a window of its own, and has no keys
        fps = float(env.metadata.get("render_fps") or USUAL_FPS)
        add = None if video is None else open_things.enter_context(filming(video, fps))

        def show() -> None:
            if add is not None:
                add(picture_of(env.render(), environment.id))
            elif window is not None:  # other windows draw by themselves
                picture = picture_of(env.render(), environment.id)

                def draw() -> None:
                    at = f"{player.loaded.run.id} at step {player.loaded.step:,}"
                    window.show(picture, f"{at} · {controls.words}")

                draw()
                linger(
                    controls,
                    window.keys,
                    seconds=1 / fps,
                    interrupted=lambda: stop.requested,
                    redraw=draw,
                )

        def act(obs: Obs) -> Any:
            return player.act(obs, deterministic=deterministic)

        def begin() -> None:
            player.reset()

        while rest and not controls.leave and not stop.requested:
            episodes = play(
                env,
                act,
                seeds=rest,
                max_steps=max_steps,
                begin=begin,
                show=show,
                interrupted=lambda: stop.requested or controls.ends_episode,
            )
            for episode in episodes:
                played.append(episode)
                rest = rest[1:]
                tell(len(played), episode)
            if controls.move:
                player = other(controls.move)
            if not controls.again and not controls.move:
                break
            controls.again, controls.move = False, 0
    code = stop.exit_code if stop.requested else 0
    return Playback(played, video, player.loaded.run.id, player.loaded.step, code)


def _shown(config: EnvironmentConfig, has_window: bool, window: Window | None) -> Any:
    """The environment: with pictures for a window of ours, if it has them."""
    if window is not None:
        with suppress(UserError):
            return make_shown(config, window=False)
    return make_shown(config, window=has_window)
