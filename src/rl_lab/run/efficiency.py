"""What a run costs: speed, latency, memory, parameters. For timing.jsonl and summary.json only."""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_lab.collect.collector import Stopwatch
from rl_lab.core.clock import Counters
from rl_lab.core.learner import Learner
from rl_lab.core.protocols import VectorEnv
from rl_lab.core.state import Tree
from rl_lab.core.tree import named_leaves

GB = 1e9
MEMORY_SECONDS = 1.0  # a measured memory is used again for this long
PROC = Path("/proc")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
PEAKS = ("sys/ram_gb", "sys/gpu_memory_gb", "sys/gpu_reserved_gb")  # the most of them matters


@dataclass
class Efficiency:
    """Measures the stretch between two rows, and keeps what the summary of a run wants to know.

    Nothing of it is saved: another machine, or another day, gives other numbers.
    """

    environment: VectorEnv
    stopwatch: Stopwatch
    device: str = "cpu"
    folder: Path | None = None  # on the disk whose room is measured
    total_steps: int = 0
    totals: dict[str, float] = field(default_factory=dict)  # of this process
    peaks: dict[str, float] = field(default_factory=dict)
    _memory: dict[str, float] = field(default_factory=dict)
    _measured: float = float("-inf")
    _began: tuple[int, float] | None = None  # step and time at the first row of this process

    def row(
        self, before: Counters, now: Counters, seconds: Mapping[str, float]
    ) -> dict[str, float]:
        """The timing metrics of the stretch between two rows; `seconds` are those of its stages."""
        counts = {
            "steps": now.env_steps - before.env_steps,
            "updates": now.updates - before.updates,
            "decisions": self.stopwatch.measured,
            "collect": seconds.get("collect", 0.0),
            "update": seconds.get("update", 0.0),
            "decide": self.stopwatch.seconds,
        }
        self.stopwatch.seconds, self.stopwatch.measured = 0.0, 0
        for name, count in counts.items():
            self.totals[name] = self.totals.get(name, 0.0) + count
        row = {f"time/{stage}": spent for stage, spent in seconds.items()}
        row |= rates(counts) | self._machine_now() | self._expected(now.env_steps)
        faults = getattr(self.environment, "faults", None)  # workers can be lost, and are counted
        if faults is not None:
            row["sys/env_faults"] = faults
        for name in PEAKS:
            if name in row:
                self.peaks[name] = max(row[name], self.peaks.get(name, 0.0))
        return row

    def summary(self) -> dict[str, float]:
        """The same numbers over all rows of this process, and the most memory."""
        return rates(self.totals) | self.peaks

    def _expected(self, step: int) -> dict[str, float]:
        """How long the whole run takes at the speed of this process, its waiting included."""
        now = time.monotonic()
        if self._began is None:
            self._began = step, now
        since, began = self._began
        if step <= since or not self.total_steps:
            return {}
        return {"time/total_hours": (now - began) / (step - since) * self.total_steps / 3600}

    def _machine_now(self) -> dict[str, float]:
        if time.monotonic() - self._measured > MEMORY_SECONDS:
            self._measured = time.monotonic()
            ram = resident_bytes()
            self._memory = {} if ram is None else {"sys/ram_gb": ram / GB}
            if ram is not None and (room := memory_bytes()):
                self._memory["sys/ram_share"] = ram / room
            if self.folder is not None:
                with suppress(OSError):
                    self._memory["sys/disk_free_gb"] = shutil.disk_usage(self.folder).free / GB
            if self.device.startswith("cuda"):
                self._memory |= {
                    "sys/gpu_memory_gb": torch.cuda.max_memory_allocated(self.device) / GB,
                    "sys/gpu_reserved_gb": torch.cuda.max_memory_reserved(self.device) / GB,
                }
        return self._memory


def rates(counts: Mapping[str, float]) -> dict[str, float]:
    """Speed and latencies, where there was something to divide by."""
    found: dict[str, float] = {}
    if counts.get("steps"):
        trained = counts["collect"] + counts["update"]
        found["time/sps"] = counts["steps"] / max(trained, 1e-9)
    if counts.get("decisions"):
        found["time/inference_ms"] = 1e3 * counts["decide"] / counts["decisions"]
    if counts.get("updates"):
        found["time/update_ms"] = 1e3 * counts["update"] / counts["updates"]
    return found


def fixed_costs(
    parts: Iterable[object], state: Tree, decision_flops: int, num_envs: int
) -> dict[str, float]:
    """What does not depend on the machine, where it is known.

    Floating-point operations of one decision in one environment and of one gradient step, and the
    bytes of `state`, a memory's for one environment.
    """
    learners = [part for part in parts if isinstance(part, Learner)]
    found = {
        "sys/decision_mflops": decision_flops / num_envs / 1e6,
        "sys/gradient_mflops": sum(each.flops or 0 for each in learners) / 1e6,
        "sys/state_bytes": sum(leaf.nbytes for _, leaf in named_leaves(state) if leaf is not None),
    }
    return {name: value for name, value in found.items() if value}


def resident_bytes(process: int | str = "self") -> int | None:
    """RAM of a process and all its descendants; None where the system does not tell (not Linux).

    A page that two processes share is counted in both: what is asked of /proc stays cheap.
    """
    total = None
    for each in _family(process):
        with suppress(OSError, IndexError, ValueError):  # it may end while we look
            pages = int((PROC / str(each) / "statm").read_text().split()[1])
            total = (total or 0) + pages * os.sysconf("SC_PAGE_SIZE")
    return total


def memory_bytes() -> int | None:
    """RAM that this process may use: of the machine, or of its container."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
    with suppress(OSError, ValueError):  # no such file, or "max"
        whole = min(whole, int(CONTAINER_LIMIT.read_text()))
    return whole


def count_parameters(parts: Iterable[Any]) -> dict[str, int]:
    """Parameters of every network among the parts, each once; buffers are not counted."""
    modules = [part.module if isinstance(part, Learner) else part for part in parts]
    found = {
        id(parameter): parameter
        for module in modules
        if isinstance(module, nn.Module)
        for parameter in module.parameters()
    }
    trainable = [each.numel() for each in found.values() if each.requires_grad]
    return {"total": sum(each.numel() for each in found.values()), "trainable": sum(trainable)}


def _family(process: int | str) -> Iterator[int | str]:
    yield process
    for file in (PROC / str(process) / "task").glob("*/children"):
        with suppress(OSError):
            for child in file.read_text().split():
                yield from _family(int(child))
