"""A window of our own: it shows pictures and hands over keys. It needs pygame."""

import importlib.util
from typing import Any

import numpy as np

from rl_lab.core.batch import Array

LEAST_PIXELS = 240  # small pictures are enlarged to this height
LEAVE = "q"


def can_open() -> bool:
    """Whether there is what draws it."""
    return importlib.util.find_spec("pygame") is not None


class Window:
    """Opens with the first picture."""

    def __init__(self) -> None:
        self._screen: Any = None

    def show(self, picture: Array, title: str) -> None:
        """A picture [H, W, 3], enlarged by a whole number if it is small."""
        import pygame

        times = max(LEAST_PIXELS // picture.shape[0], 1)
        picture = picture.repeat(times, 0).repeat(times, 1)
        size = picture.shape[1], picture.shape[0]
        if self._screen is None or self._screen.get_size() != size:
            pygame.init()
            self._screen = pygame.display.set_mode(size)
        pygame.display.set_caption(title)
        surface = pygame.surfarray.make_surface(np.swapaxes(picture, 0, 1))
        self._screen.blit(surface, (0, 0))
        pygame.display.flip()

    def keys(self) -> list[str]:
        """What was pressed since the last call; a closed window is the key that leaves."""
        import pygame

        if self._screen is None or not pygame.display.get_init():
            return [LEAVE]
        found = []
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                found.append(LEAVE)
            elif event.type == pygame.KEYDOWN:
                found.append(LEAVE if event.key == pygame.K_ESCAPE else event.unicode)
        return [key for key in found if key]

    def close(self) -> None:
        """Gone."""
        if self._screen is not None:
            import pygame

            self._screen = None
            pygame.display.quit()
