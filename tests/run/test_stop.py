"""Only a process that really holds a run's lock is asked to stop."""

import signal
import subprocess
import sys

import pytest

from rl_lab.core.errors import UserError
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.stop import stop_run

HOLDS = """
import sys, time
from pathlib import Path
from rl_lab.records.run_directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_who_holds_the_lock_is_interrupted(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    assert stop_run(RunDirectory(tmp_path)) == holder.pid
    assert holder.wait(30) in (1, -signal.SIGINT)
    holder.stdout.close()


def test_a_number_in_the_file_is_not_enough(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (tmp_path / "run.lock").write_text(f"{other.pid}\n")
    try:
        with pytest.raises(UserError, match="not in training"):
            stop_run(RunDirectory(tmp_path))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
