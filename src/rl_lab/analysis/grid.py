"""Several policies at play side by side: one video, the same episodes for each of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.analysis.playing import Playback
from rl_lab.collect.play import Moment, Played, episode
from rl_lab.core.batch import Array, Obs
from rl_lab.display.video import USUAL_FPS, captioned, filming, picture_of
from rl_lab.envs.render import make_shown
from rl_lab.run.build import MOST_EVALUATED
from rl_lab.run.policy import LoadedPolicy, Policy
from rl_lab.run.signals import StopRequest, stop_on_signals


@dataclass
class Seat:
    """One policy in the grid, with its own environment."""

    policy: Policy
    env: Any
    deterministic: bool
    played: list[Played] = field(default_factory=list)
    moments: Iterator[Moment] = field(default_factory=lambda: iter(()))
    now: Moment = field(default_factory=Moment)
    picture: Array | None = None  # the last one stays when the episode is over

    @property
    def loaded(self) -> LoadedPolicy:
        """The policy's run and step."""
        return self.policy.loaded

    def begin(self, seed: int, limit: int | None) -> None:
        """The first frame of an episode."""
        self.policy.reset()
        self.moments = episode(self.env, self._act, seed, max_steps=limit)
        self.now = next(self.moments)
        self._look()

    def step(self) -> None:
        """One step, unless the episode is over."""
        if self.now.over:
            return
        self.now = next(self.moments)
        self._look()
        if self.now.over:
            self.played.append(Played(self.now.total, self.now.length, self.now.terminated))

    def _act(self, obs: Obs) -> Any:
        return self.policy.act(obs, deterministic=self.deterministic)

    def _look(self) -> None:
        loaded = self.loaded
        picture = picture_of(self.env.render(), loaded.config.environment.id)
        caption = f"{loaded.run.id} · step {loaded.step:,} · return {self.now.total:.4g}"
        self.picture = captioned(picture, caption + (" · over" if self.now.over else ""))


def play_side_by_side(
    policies: Sequence[LoadedPolicy],
    video: Path,
    *,
    seeds: Sequence[int],
    deterministic: bool,
    max_steps: int | None,
    tell: Callable[[int, list[Played]], None],
) -> list[Playback]:
    """Film one episode for each seed; all policies begin it together, in environments of their own.

    Ctrl-C ends it, and what was filmed so far becomes the video.
    """
    stop = StopRequest()
    with ExitStack() as open_things:
        open_things.enter_context(stop_on_signals(stop))
        seats = []
        for loaded in policies:
            env = open_things.enter_context(
                closing(make_shown(loaded.config.environment, window=False))
            )
            seats.append(Seat(Policy.of(loaded), env, deterministic))
        fps = float(seats[0].env.metadata.get("render_fps") or USUAL_FPS)
        add = open_things.enter_context(filming(video, fps))
        for number, seed in enumerate(seeds, 1):
            for seat in seats:
                seat.begin(seed, max_steps or _limit(seat.loaded))
            add(tiled([_shown(seat) for seat in seats]))
            while not all(seat.now.over for seat in seats) and not stop.requested:
                for seat in seats:
                    seat.step()
                add(tiled([_shown(seat) for seat in seats]))
            if stop.requested:
                break
            tell(number, [seat.played[-1] for seat in seats])
    code = stop.exit_code if stop.requested else 0
    return [
        Playback(seat.played, video, seat.loaded.run.id, seat.loaded.step, code) for seat in seats
    ]


def _limit(loaded: LoadedPolicy) -> int | None:
    return None if loaded.context.spec.max_episode_steps else MOST_EVALUATED


def _shown(seat: Seat) -> Array:
    assert seat.picture is not None
    return seat.picture


def tiled(pictures: Sequence[Array]) -> Array:
    """Pictures [H, W, 3] of any sizes as one, in as many columns as rows or one more."""
    columns = math.ceil(math.sqrt(len(pictures)))
    height = max(each.shape[0] for each in pictures)
    width = max(each.shape[1] for each in pictures)
    rows = math.ceil(len(pictures) / columns)
    sheet = np.zeros((rows * height, columns * width, 3), np.uint8)
    for index, each in enumerate(pictures):
        row, column = divmod(index, columns)
        top, left = row * height, column * width
        sheet[top : top + each.shape[0], left : left + each.shape[1]] = each
    return sheet
