"""The disk is full for metrics: the run goes on for a while, then stops with one line."""

from pathlib import Path

import pytest

from rl_lab.core.errors import RunError
from rl_lab.display.sinks import Sink
from rl_lab.records import metrics
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.session import resume, train
from tiny_runs import run_hash, tiny_config, tiny_run

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


class FullDisk(Sink):
    """Between two steps, metrics.jsonl lies on a full disk: the kernel's own, /dev/full."""

    def __init__(self, monkeypatch, begin, end=10**9):
        self.begin, self.end, self.messages = begin, end, []
        self.log = self.file = None
        opened = metrics.MetricLog.__init__

        def remember(log, path, **options):
            opened(log, path, **options)
            if path.name == "metrics.jsonl":
                self.log = log

        monkeypatch.setattr(metrics.MetricLog, "__init__", remember)

    def write(self, step, row):
        if self.begin <= step < self.end and self.file is None:
            full = open("/dev/full", "wb", buffering=0)  # noqa: PTH123, SIM115 - closed by the log
            self.file, self.log._file = self.log._file, full
        elif step >= self.end and self.file is not None:
            self.log._file.close()
            self.log._file, self.file = self.file, None

    def say(self, message):
        self.messages.append(message)


def test_a_disk_that_is_full_for_a_while_costs_a_checkpoint_and_nothing_else(tmp_path, monkeypatch):
    disk = FullDisk(monkeypatch, 300, 600)
    outcome = train(tiny_config(), root=tmp_path / "full", view=lambda *_: [disk])
    warnings = [each for each in disk.messages if each.startswith("WARNING")]
    assert len(warnings) == 1 and "No space left on device" in warnings[0]
    assert outcome.exit_code == 0
    assert run_hash(outcome.run) == run_hash(tiny_run(tmp_path / "roomy").run)


def test_a_disk_that_stays_full_ends_the_run_with_a_line_and_it_can_be_resumed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(metrics, "BUFFER_BYTES", 1_000)
    monkeypatch.setattr(metrics, "PATIENCE_BYTES", 2_000)
    disk = FullDisk(monkeypatch, 300)
    with pytest.raises(RunError, match=r"metrics\.jsonl: No space left on device; make room"):
        train(tiny_config(), root=tmp_path / "full", view=lambda *_: [disk])
    disk.file.close()
    (path,) = (tmp_path / "full").glob("CartPole*")
    directory = RunDirectory(path)
    assert directory.read_summary()["status"] == "failed"
    assert CheckpointStore(directory.checkpoints).steps() == [256]
    resumed = resume(str(path), root=tmp_path / "full")
    assert run_hash(resumed.run) == run_hash(tiny_run(tmp_path / "roomy").run)
