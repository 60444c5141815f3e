"""The on-policy buffer: one rollout, used by the updates of its cycle, then forgotten."""

from dataclasses import dataclass
from typing import Any

from rl_lab.core.batch import Batch
from rl_lab.core.options import option
from rl_lab.core.protocols import BufferSetup
from rl_lab.core.schema import BufferConfig


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(BufferConfig):
    """Nothing to choose: its size is the algorithm's `rollout_steps`."""

    type: str = option("rollout", "holds the latest rollout")


class RolloutBuffer:
    """Holds the latest trajectory [T, N, …] until the cycle is over."""

    Config = RolloutConfig

    def __init__(self, config: RolloutConfig, setup: BufferSetup) -> None:
        self._rows: Batch | None = None

    def add(self, trajectory: Batch) -> None:
        """Keep the trajectory; an unused older one is dropped."""
        self._rows = trajectory

    def ready(self) -> bool:
        """True once something was collected in this cycle."""
        return self._rows is not None

    def sample(self) -> Batch:
        """The whole rollout."""
        assert self._rows is not None, "ask ready() first"
        return self._rows

    def done(self) -> None:
        """The cycle's updates are over: on-policy data is used once."""
        self._rows = None

    def state_dict(self) -> dict[str, Any]:
        """The rows, if a checkpoint falls between collect and update."""
        return {"rows": self._rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put them back."""
        self._rows = state["rows"]
