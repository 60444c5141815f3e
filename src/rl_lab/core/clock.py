"""Is it time? Small saved objects that count crossings, never `step % n`."""

from dataclasses import asdict, dataclass
from typing import Any


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
