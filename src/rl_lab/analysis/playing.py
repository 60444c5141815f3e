"""Play a trained policy: in a window, or as a video."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.collect.play import Played, play
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.display.video import USUAL_FPS, check_film, film_suffix, filming
from rl_lab.envs.render import has_screen, make_shown
from rl_lab.run.build import MOST_EVALUATED
from rl_lab.run.policy import LoadedPolicy
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
    loaded: LoadedPolicy,
    act: Callable[[Any], Any],
    begin: Callable[[], None],
    *,
    seeds: Sequence[int],
    max_steps: int | None,
    video: Path | None,
    tell: Tell,
) -> Playback:
    """Play one episode for each seed: into `video`, or in a window, or into the run's `videos/`.

    The first Ctrl-C ends it after the step at hand; what was filmed so far becomes the film.
    """
    window = video is None and has_screen()
    if video is None and not window:
        video = loaded.run.videos / f"play-{loaded.step:012d}{film_suffix()}"
    if max_steps is None and loaded.context.spec.max_episode_steps is None:
        max_steps = MOST_EVALUATED
    environment = loaded.config.environment
    played: list[Played] = []
    stop = StopRequest()
    with ExitStack() as open_things:
        open_things.enter_context(stop_on_signals(stop))
        env = open_things.enter_context(closing(make_shown(environment, window=window)))
        fps = float(env.metadata.get("render_fps") or USUAL_FPS)
        add = None if video is None else open_things.enter_context(filming(video, fps))

        def show() -> None:
            if add is not None:  # a window draws by itself
                add(picture_of(env.render(), environment.id))

        episodes = play(
            env,
            act,
            seeds=seeds,
            max_steps=max_steps,
            begin=begin,
            show=show,
            interrupted=lambda: stop.requested,
        )
        for number, episode in enumerate(episodes, 1):
            played.append(episode)
            tell(number, episode)
    code = stop.exit_code if stop.requested else 0
    return Playback(played, video, loaded.run.id, loaded.step, code)


def picture_of(rendered: object, id: str) -> Array:
    """What `render` returned as [H, W, 3] bytes; gray becomes color, transparency goes."""
    picture = np.asarray(rendered)
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3):
        raise UserError(f"'{id}' cannot be recorded: its render() gives {_described(rendered)}")
    if picture.ndim == 2:
        picture = picture[..., None]
    return np.repeat(picture, 3, 2) if picture.shape[2] == 1 else picture[..., :3]


def _described(rendered: object) -> str:
    if isinstance(rendered, np.ndarray):
        return f"{rendered.dtype} of the shape {rendered.shape}, no picture"
    return f"a {type(rendered).__name__}, no picture"
