"""The smallest buffer that grows: its state is a log of sealed rows, and how many there were."""

import numpy as np

from rl_lab.core.chunks import Chunk, Columns, Log


class Rows:
    """Row t holds t / 2 + `salt`. All but the newest `keep` rows are over."""

    def __init__(self, keep: int = 10**9, salt: int = 0, width: int = 1) -> None:
        self.keep, self.salt, self.width = keep, salt, width
        self.total = 0
        self.chunks: list[Chunk] = []

    def add(self, count: int) -> None:
        self.total += count

    def state_dict(self) -> dict[str, object]:
        first = max(self.total - self.keep, 0)
        held = [each for each in self.chunks if each.name and each.first + each.count > first]
        sealed = held[-1].first + held[-1].count if held else first
        if sealed < self.total:
            held.append(Chunk(sealed, self.total - sealed, self.columns(sealed, self.total)))
        self.chunks = held
        return {"log": Log(list(held), first), "total": self.total}

    def load_state_dict(self, state: dict) -> None:
        self.total, self.chunks = state["total"], list(state["log"].chunks)

    def columns(self, first: int, end: int) -> Columns:
        number = np.arange(first, end)
        camera = np.repeat(number[:, None] + self.salt, self.width, 1)
        return {"obs/camera": camera.astype(np.uint8), "reward": number / 2 + self.salt}
