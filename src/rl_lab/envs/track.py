"""A car on an icy, winding road, seen from above: the smallest pixel task that needs a memory.

A frame shows where the car is and how the road goes on, never how fast the car slides sideways.
That slide grows by itself, so whoever steers by a single frame swings wider and wider and leaves
the road; whoever remembers the frames before knows the slide and can stop it.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]

# Lengths are in columns and rows of a frame of 32 × 32.
VIEW = 32  # how far it sees, ahead and across
PACE = 4  # rows that the car drives per step
STEERING = 0.8  # columns per step² at full lock
SLIDE = 1.08  # what is left of the sideways speed after a step: more than there was
WIND = 0.15  # deviation of the random push of each step
LANE = 4.0  # the reward falls from 1 in the middle of the road to 0 this far from it
LIMIT = 12.0  # further away is off the track
ROAD = 6.0  # half of the width that is drawn
SOFT = 3.0  # width over which the edge fades: a small move changes many pixels a little
WAVES = np.array([360.0, 220.0, 148.0])  # rows per bend, for three bends on top of each other
HEIGHTS = np.array([4.0, 2.5, 1.5])  # how far each swings at most
DASH = 12.0  # rows from one dash of the middle line, or one strip of grass, to the next
GRASS, MOWN = np.array([0.0, 50.0, 0.0]), np.array([60.0, 190.0, 60.0])
TARMAC, PAINT = np.array([180.0, 180.0, 180.0]), np.array([255.0, 255.0, 255.0])
SHOWN = 256  # pixels of a picture for people


class PixelTrackEnv(gym.Env[Frame, NDArray[np.float32]]):
    """Observes a frame [size, size, 3], steers by one number in [−1, 1] (right is positive).

    reward = max(0, 1 − |distance to the middle of the road| / 4) after the step. Leaving the track
    terminates the episode. Every episode has another road.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, size: int = VIEW, render_mode: str | None = None) -> None:
        if size < 16:
            raise ValueError(f"size must be at least 16 pixels, got {size}")
        self.render_mode = render_mode
        self.observation_space: gym.Space[Any] = gym.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space: gym.Space[Any] = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        middles = (np.arange(size) + 0.5) * VIEW / size
        self.columns = middles - VIEW / 2  # relative to the car, which is always in the middle
        self.rows = VIEW - middles[:, None]  # ahead of the car, which is at the lower edge
        self.phases = np.zeros(3)
        self.heights = HEIGHTS.copy()
        self.driven = 0
        self.position = self.speed = 0.0  # across

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Another road; the car stands in the middle of it."""
        super().reset(seed=seed)
        self.phases = self.np_random.uniform(0.0, 2 * np.pi, 3)
        self.heights = HEIGHTS * self.np_random.uniform(0.5, 1.0, 3)
        self.driven = 0
        self.position, self.speed = float(self._road(0.0)), 0.0
        return self._frame(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """A little further: the steering pushes, the ice amplifies, the wind disturbs."""
        push = STEERING * float(np.clip(action[0], -1.0, 1.0))
        push += WIND * float(self.np_random.standard_normal())
        self.speed = SLIDE * self.speed + push
        self.position += self.speed
        self.driven += PACE
        distance = abs(float(self._road(self.driven)) - self.position)
        reward = max(0.0, 1.0 - distance / LANE)
        return self._frame(), reward, distance > LIMIT, False, {}

    def render(self) -> Any:
        """The frame itself, enlarged so that it can be seen; None if nobody asked for it."""
        if self.render_mode is None:
            return None
        frame = self._frame()
        times = max(SHOWN // len(frame), 1)
        return frame.repeat(times, 0).repeat(times, 1)

    def _road(self, row: NDArray[Any] | float) -> Any:
        """Where the middle of the road is, at rows [..., 1] or at one row."""
        return (self.heights * np.sin(2 * np.pi * row / WAVES + self.phases)).sum(-1)

    def _frame(self) -> Frame:
        rows = self.driven + self.rows
        beside = np.abs(self.columns - (self._road(rows) - self.position)[:, None])
        strips = (0.5 + 0.5 * np.cos(2 * np.pi * rows / DASH))[..., None]
        road = np.clip((ROAD - beside) / SOFT + 0.5, 0.0, 1.0)[..., None]
        line = strips * np.clip(2.0 - beside, 0.0, 1.0)[..., None]
        ground = GRASS + (MOWN - GRASS) * strips
        ground = ground + (TARMAC - ground) * road
        return (ground + (PAINT - ground) * line).astype(np.uint8)
