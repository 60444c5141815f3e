"""How long a policy takes to decide: measured on a few of the real decisions of a run."""

import time

import torch

from rl_lab.core.batch import Action, Obs
from rl_lab.core.protocols import Act

SAMPLE_EVERY = 16  # decisions; a GPU has to be waited for twice at each that is measured


class Stopwatch:
    """Seconds of the measured decisions. A clock can only be read: the run is not changed by it."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.seconds = 0.0
        self.measured = 0
        self._decisions = 0

    def timed(self, act: Act) -> Act:
        """The same policy; one of `SAMPLE_EVERY` decisions is measured, the first of a run not."""

        def decide(obs: Obs, state: object, *, deterministic: bool) -> Action:
            self._decisions += 1
            if self._decisions % SAMPLE_EVERY:
                return act(obs, state, deterministic=deterministic)
            self._wait()
            started = time.perf_counter()
            action = act(obs, state, deterministic=deterministic)
            self._wait()
            self.seconds += time.perf_counter() - started
            self.measured += 1
            return action

        vars(decide)["__wrapped__"] = act  # an error about what it decided names its own place
        return decide

    def _wait(self) -> None:
        """A GPU computes on while Python goes on: its work counts too."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
