"""`--jobs N`: the seeds of one experiment in processes side by side, reported line by line."""

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rl_lab.run.signals import StopRequest, stop_on_signals
from rl_lab.tuning.processes import TRAIN, launch, usable

POLL_SECONDS = 0.05


@dataclass
class Ended:
    """How the run of one seed ended: what `train --json` printed, if it came to that."""

    seed: int
    code: int
    summary: dict[str, Any] | None


@dataclass
class _Job:
    seed: int
    slot: int
    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    reader: threading.Thread

    def ended(self) -> Ended:
        self.reader.join()
        self.output.seek(0)
        try:
            summary = json.loads(self.output.read())
        except ValueError:  # it failed before there was a result
            summary = None
        self.output.close()
        return Ended(self.seed, self.process.returncode, summary)


def run_seeds(
    commands: Mapping[int, Sequence[str]], jobs: int, tell: Callable[[str], None]
) -> tuple[list[Ended], int]:
    """Run the words of each seed, `jobs` at a time: how each ended, and the exit code of a signal.

    A seed that fails does not stop the others. A signal is passed on to those that run, which
    save; the rest is not begun, and the code is that of the signal (otherwise 0).
    """
    threads = max(len(usable()) // jobs, 1)
    waiting, active, done = list(commands), list[_Job](), list[Ended]()
    stop, passed_on = StopRequest(), 0
    with stop_on_signals(stop):
        while active or (waiting and not stop.requested):
            while waiting and len(active) < jobs and not stop.requested:
                slot = min(set(range(jobs)) - {job.slot for job in active})
                active.append(_start(waiting[0], commands[waiting.pop(0)], slot, threads, tell))
            if stop.count > passed_on and stop.signal is not None:
                passed_on = stop.count
                for job in active:
                    job.process.send_signal(stop.signal)
            for job in [job for job in active if job.process.poll() is not None]:
                active.remove(job)
                done.append(job.ended())
            time.sleep(POLL_SECONDS)
    order = list(commands)
    return sorted(done, key=lambda each: order.index(each.seed)), (
        stop.exit_code if stop.requested else 0
    )


def _start(
    seed: int, words: Sequence[str], slot: int, threads: int, tell: Callable[[str], None]
) -> _Job:
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the job has ended
    process = launch(
        [*TRAIN, *words], slot=slot, threads=threads, stdout=output, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    reader = threading.Thread(target=_forward, args=(process.stderr, seed, tell), daemon=True)
    reader.start()
    return _Job(seed, slot, process, output, reader)


def _forward(lines: IO[bytes], seed: int, tell: Callable[[str], None]) -> None:
    """Everything that a job prints, each line with its seed in front."""
    with lines:
        for line in lines:
            tell(f"seed {seed} | {line.decode(errors='replace').rstrip()}")
