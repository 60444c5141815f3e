"""Environments that misbehave on purpose; importable in a worker process."""

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.envs.counter import CounterEnv


class Unwell(CounterEnv):
    """Counts like its parent. At step `at`: raises, hangs or exits; `once` needs a file of marks.

    With `once`, the first one to come there leaves its mark and all later ones stay well.
    """

    def __init__(self, how: str, at: int = 3, once: str | None = None, seconds: float = 60) -> None:
        super().__init__(lengths=(100,))
        self.how, self.at, self.once, self.seconds = how, at, once, seconds

    def step(self, action: Any) -> Any:
        if self.t + 1 == self.at and self._is_first():
            if self.how == "raise":
                raise ValueError("the lander has no fuel")
            if self.how == "exit":
                os._exit(7)
            time.sleep(self.seconds)
        return super().step(action)

    def _is_first(self) -> bool:
        if self.once is None:
            return True
        try:
            Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Heavy(CounterEnv):
    """Its state is larger than what a pipe holds."""

    def __init__(self) -> None:
        super().__init__()
        self.ballast = np.zeros(1_000_000)


class Global(CounterEnv):
    """Draws from the process-wide generators, as an environment should not."""

    def _frame(self) -> Any:
        return np.array([random.random(), np.random.random()], np.float32)


class Opaque(CounterEnv):
    """Holds something that cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class NeverMade(CounterEnv):
    """Can be made in the process that first made it, and in no other."""

    def __init__(self, home: int) -> None:
        if os.getpid() != home:
            raise RuntimeError("no display")
        super().__init__()
