"""`rl-lab demo` for real, with few steps: killed, resumed, identical, compared, a page."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from rl_lab.cli.main import main
from rl_lab.records.run_directory import list_runs


def test_the_demo_kills_resumes_proves_and_compares(tmp_path, capfd):
    assert main(["demo", "--steps", "4000", "--runs-dir", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert [int(n) for n in re.findall(r"^\[(\d)/6\]", out, re.M)] == [1, 2, 3, 4, 5, 6]
    first, second = list_runs(tmp_path)
    assert re.search(r"killed with SIGKILL; its newest checkpoint is of step [\d,]+", out)
    assert first.read_summary()["resumes"] == 1 and first.read_summary()["status"] == "finished"
    assert f"IDENTICAL: {first.path.name}" in out
    assert second.read_summary()["env_steps"] == 4000
    assert "algorithm.gamma=0.9" in out and "eval/return_mean" in out
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "gamma" in page and 'class="plot"' in page
    # every command that is shown was typed as it stands there
    assert f"rl-lab train --resume {first.id}" in out.replace("python -m ", "")


def test_ctrl_c_ends_the_training_too(tmp_path):
    command = [sys.executable, "-m", "rl_lab", "demo", "--steps", "200000"]
    process = subprocess.Popen(
        [*command, "--runs-dir", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    begun = ("*/metrics.jsonl", "*/run.lock")
    while time.monotonic() < deadline and not all(any(tmp_path.glob(each)) for each in begun):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted" in told
    (run,) = list_runs(tmp_path)
    owner = int(run.lock_file.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(owner, 0)


def test_a_demo_that_is_too_short_is_refused(capsys):
    assert main(["demo", "--steps", "10"]) == 2
    assert "4000 or more" in capsys.readouterr().err
