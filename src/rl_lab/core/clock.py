"""Is it time? Small saved objects that count crossings, never `step % n`."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

PARTS = 1_000_000  # of a gradient step: whole numbers, so that nothing is rounded away


@dataclass
class Every:
    """Fires when the count crosses a multiple of `period`, however big the stride; 0 = never."""

    period: int
    last: int = 0

    def due(self, count: int) -> bool:
        """True once per crossing; remembers the count it fired at."""
        if self.period == 0 or count // self.period == self.last // self.period:
            return False
        self.last = count
        return True

    def state_dict(self) -> dict[str, Any]:
        """The last crossing; the period is configuration."""
        return {"last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after a restart."""
        self.last = int(state["last"])


@dataclass
class Counters:
    """The clocks of a run. `env_steps` is the one that everything is scheduled by."""

    env_steps: int = 0
    updates: int = 0
    cycles: int = 0
    episodes: int = 0

    def state_dict(self) -> dict[str, Any]:
        """All counters."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All counters, strictly."""
        for name, value in Counters(**state).__dict__.items():
            setattr(self, name, int(value))


class UpdateBudget:
    """How many gradient steps the replay ratio allows, and how many were taken.

    Exact at every point: with a ratio of 0.3, n environment steps allow floor(0.3 n) gradient
    steps. Fractions are carried, and there is nothing to catch up with after a restart.
    """

    def __init__(self, learning_starts: int = 0) -> None:
        self.steps = 0  # gradient steps taken
        self.seen = learning_starts  # environment steps already counted
        self.parts = 0  # millionths of a gradient step that are allowed and not taken yet

    def due(self, phase: Mapping[str, Any], ratio: float, *, ready: bool) -> int:
        """Number of gradient steps to take now: 1 in offline phases, else as the ratio allows.

        Environment steps before there is enough data (`ready`), and those of phases that only
        collect, allow nothing: they would all have to be learned from at once.
        """
        now = phase.get("env_steps", phase["step"])
        if not ready:
            self.seen = max(self.seen, now)
            return 0
        if _is_free(phase, ratio):
            return 1
        self.seen = max(self.seen, now - phase.get("phase_steps", now))
        self.parts += round(ratio * PARTS) * max(now - self.seen, 0)
        self.seen = max(now, self.seen)
        return max(self.parts // PARTS, 0)

    def take(self, count: int, phase: Mapping[str, Any], ratio: float) -> Iterator[int]:
        """Yield 0 … count - 1 for `count` gradient steps; `steps` counts the current one, too."""
        for index in range(count):
            self.steps += 1
            yield index
        if not _is_free(phase, ratio):
            self.parts -= count * PARTS

    def state_dict(self) -> dict[str, Any]:
        """All three numbers."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """All three numbers, strictly."""
        self.steps, self.seen, self.parts = (int(state[name]) for name in vars(self))


def _is_free(phase: Mapping[str, Any], ratio: float) -> bool:
    """Updates that no environment step has to allow."""
    return phase["type"] == "offline" or ratio == 0
