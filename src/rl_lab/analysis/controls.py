"""What keys do to an episode that is shown: pause, step, speed, begin again, another checkpoint."""

import time
from collections.abc import Callable
from dataclasses import dataclass

SLOWEST, FASTEST = 1 / 16, 64.0
LOOK_SECONDS = 0.02  # between two looks at the keys
HELP = "space pause, n step, + - speed, r again, c C checkpoint, q leave"


@dataclass
class Controls:
    """How the show goes on."""

    paused: bool = False
    single: bool = False  # one frame although it is paused
    speed: float = 1.0
    again: bool = False  # the episode begins again
    move: int = 0  # this many checkpoints later, or earlier
    leave: bool = False

    def press(self, key: str) -> None:
        """One key; others mean nothing."""
        if key == " ":
            self.paused = not self.paused
        elif key == "n":
            self.paused = self.single = True
        elif key in "+=":
            self.speed = min(self.speed * 2, FASTEST)
        elif key == "-":
            self.speed = max(self.speed / 2, SLOWEST)
        elif key == "r":
            self.again = True
        elif key in "cC":
            self.move += 1 if key == "c" else -1
        elif key == "q":
            self.leave = True

    @property
    def ends_episode(self) -> bool:
        """Whether this episode is not played on."""
        return self.again or self.leave or self.move != 0

    @property
    def words(self) -> str:
        """For the title of a window."""
        return f"{'paused · ' if self.paused else ''}{self.speed:g}x · {HELP}"


def linger(
    controls: Controls,
    keys: Callable[[], list[str]],
    *,
    seconds: float,
    interrupted: Callable[[], bool],
    redraw: Callable[[], None],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show a frame for this long at speed 1; while it is paused, until a key goes on."""
    shown = now()
    while True:
        before = controls.words
        for key in keys():
            controls.press(key)
        if controls.words != before:
            redraw()
        if controls.ends_episode or interrupted():
            return
        if controls.single:
            controls.single = False
            return
        if not controls.paused and now() - shown >= seconds / controls.speed:
            return
        sleep(LOOK_SECONDS if controls.paused else min(LOOK_SECONDS, seconds / controls.speed))
