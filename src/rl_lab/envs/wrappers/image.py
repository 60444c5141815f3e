"""Wrappers of image observations, rows first (H, W, C) or channels first (C, H, W)."""

from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.core import registry
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.core.options import limits
from rl_lab.envs.spaces import channel_axis
from rl_lab.envs.wrappers import arguments

Pixels = Annotated[int, limits(low=0)]
_LUMA = (299, 587, 114)  # thousandths of red, green and blue (ITU-R BT.601)


@registry.register("wrapper", "Grayscale")
class Grayscale(gym.ObservationWrapper[Any, Any, Any]):
    """Makes a color image gray, by brightness: (H, W), or one channel with `keep_channel`."""

    # Gymnasium's own cuts the sum of three rounded products: a gray 43 becomes 42.

    def __init__(self, env: gym.Env[Any, Any], keep_channel: bool = False) -> None:
        super().__init__(env)
        self.keep_channel = keep_channel
        space = env.observation_space
        shape = tuple(space.shape or ())
        if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(shape) != 3:
            raise UserError(f"needs a color image of type uint8, got {arguments.described(space)}")
        self.axis = -1 if shape[-1] == 3 else 0
        if shape[self.axis] != 3:
            raise UserError(f"needs an image with 3 channels, got {arguments.described(space)}")
        gray = self.observation(np.zeros(shape, np.uint8))
        self.observation_space = spaces.Box(0, 255, gray.shape, np.uint8)

    def observation(self, observation: Array) -> Array:
        """Weighted in whole numbers and rounded: a gray pixel keeps its value."""
        channels = np.moveaxis(observation, self.axis, 0).astype(np.uint32)
        total = sum(weight * each for weight, each in zip(_LUMA, channels, strict=True))
        gray = ((total + 500) // 1000).astype(np.uint8)
        return np.expand_dims(gray, self.axis) if self.keep_channel else gray


@registry.register("wrapper", "Crop")
class Crop(gym.ObservationWrapper[Any, Any, Any]):
    """Cuts rows and columns off an image: `bottom: 12` takes the bar away from CarRacing."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        top: Pixels = 0,
        bottom: Pixels = 0,
        left: Pixels = 0,
        right: Pixels = 0,
    ) -> None:
        super().__init__(env)
        space = arguments.box(env)
        if len(space.shape) not in (2, 3):
            raise UserError(f"needs an image, got {arguments.described(space)}")
        self.first_channel = len(space.shape) == 3 and channel_axis(space.shape) == 0
        rows, columns = space.shape[1:] if self.first_channel else space.shape[:2]
        if top + bottom >= rows or left + right >= columns:
            raise UserError(f"nothing is left of an image with {rows} rows, {columns} columns")
        self.top, self.bottom = top, rows - bottom
        self.left, self.right = left, columns - right
        low, high = self._inner(space.low), self._inner(space.high)
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """The inner part, as an array of its own."""
        return np.ascontiguousarray(self._inner(observation))

    def _inner(self, image: Array) -> Array:
        if self.first_channel:
            return image[:, self.top : self.bottom, self.left : self.right]
        return image[self.top : self.bottom, self.left : self.right]


@registry.register("wrapper", "Resize")
class Resize(gym.ObservationWrapper[Any, Any, Any]):
    """Makes an image `size` × `size` (or [height, width]): a pixel is the mean of what it covers.

    Plain numpy, so the pixels do not depend on which image library is installed.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        size: Annotated[int | Sequence[int], limits(low=1, not_empty=True)] = 84,
    ) -> None:
        super().__init__(env)
        space = arguments.box(env)
        if len(space.shape) not in (2, 3):
            raise UserError(f"needs an image, got {arguments.described(space)}")
        wanted = [size, size] if isinstance(size, int) else list(size)
        if len(wanted) != 2:
            raise UserError(f"size must be a number or [height, width], got {size!r}")
        height, width = wanted
        self.first_channel = len(space.shape) == 3 and channel_axis(space.shape) == 0
        rows, columns = space.shape[1:] if self.first_channel else space.shape[:2]
        self.rows, self.columns = _coverage(rows, height), _coverage(columns, width)
        low, high = space.low.min(), space.high.max()
        small = self._resized(np.zeros(space.shape, np.float32))
        self.observation_space = spaces.Box(low, high, small.shape, space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """Averaged; rounded where the pixels are whole numbers."""
        small = self._resized(observation.astype(np.float32))
        if np.issubdtype(observation.dtype, np.integer):
            small = np.rint(small)
        return small.astype(observation.dtype)

    def _resized(self, image: Array) -> Array:
        if image.ndim == 2 or self.first_channel:
            return self.rows @ image @ self.columns.T
        return np.moveaxis(self.rows @ np.moveaxis(image, -1, 0) @ self.columns.T, 0, -1)


def _coverage(old: int, new: int) -> NDArray[np.float32]:
    """[new, old]: which share of each new pixel every old one covers; the rows sum to 1."""
    edges = np.arange(new + 1) * (old / new)
    start, stop = edges[:-1, None], edges[1:, None]
    pixel = np.arange(old)
    covered = np.minimum(stop, pixel + 1) - np.maximum(start, pixel)
    return (np.clip(covered, 0, None) / (old / new)).astype(np.float32)
