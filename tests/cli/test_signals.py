"""Ctrl-C and SIGTERM on a real process: it saves, says how to go on, and then does."""

import signal
import subprocess
import sys

import pytest

from rl_lab.cli.main import main
from tiny_runs import SMALL, SMALL_PPO, run_hash

WORDS = ["CartPole-v1:ppo_defaults", *SMALL, *SMALL_PPO, "--total-timesteps", "4096"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    root = tmp_path_factory.mktemp("straight")
    assert main(["train", *WORDS, "-q", "--runs-dir", str(root)]) == 0
    return run_hash(the_run(root))


def the_run(root):
    from rl_lab.records.run_directory import find_run

    return find_run("@last", root)[0]


@pytest.mark.parametrize(
    ("number", "code", "status"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "preempted"),
        (signal.SIGHUP, 129, "preempted"),
    ],
)
def test_a_signal_saves_and_the_resumed_run_is_the_same(
    tmp_path, uninterrupted, capsys, number, code, status
):
    command = [sys.executable, "-u", "-m", "rl_lab", "train", *WORDS, "--runs-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if "steps/s" in line:  # it trains
                process.send_signal(number)
                break
        rest = process.stdout.read()
    assert process.returncode == code
    run = the_run(tmp_path)
    summary = run.read_summary()
    assert summary["status"] == status and 0 < summary["env_steps"] < 4096
    assert f"Resume it with: rl-lab train --resume {run.id} --runs-dir {tmp_path}" in rest
    assert main(["train", "--resume", run.id, "--runs-dir", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "test return: last " in output and "Try next:" in output
    assert run_hash(run) == uninterrupted
    assert run.read_summary()["status"] == "finished" and run.read_summary()["resumes"] == 1


def test_a_finished_run_may_be_resumed_and_stays_as_it_is(tmp_path, capsys):
    words = ["CartPole-v1:random", *SMALL, "-q", "--runs-dir", str(tmp_path)]
    assert main(["train", *words]) == 0
    before = run_hash(the_run(tmp_path))
    assert main(["train", "--resume", "@last", "-q", "--runs-dir", str(tmp_path)]) == 0
    assert run_hash(the_run(tmp_path)) == before


def test_resume_from_a_step(tmp_path, capsys):
    words = ["CartPole-v1:ppo_defaults", *SMALL, *SMALL_PPO, "-q", "--runs-dir", str(tmp_path)]
    assert main(["train", *words, "checkpoint.keep_last=9"]) == 0
    before = run_hash(the_run(tmp_path))
    assert main(["train", "training.resume_path=@last:512", "--runs-dir", str(tmp_path)]) == 0
    assert run_hash(the_run(tmp_path)) == before
