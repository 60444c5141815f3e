"""Out of memory, for real: one line that says what to reduce, and checkpoints stay good."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl_lab.core.errors import OutOfMemoryError
from rl_lab.records.run_directory import list_runs
from rl_lab.run.out_of_memory import advice, explaining_memory, is_out_of_memory
from rl_lab.run.session import resume
from tiny_runs import SMALL, SMALL_PPO, tiny_config

PPO = ["CartPole-v1:ppo_defaults", *SMALL, *SMALL_PPO, "-q"]
# The process may have this much more memory than it has when the run is built, or starts its
# second cycle: room for the message, not for the run.
LIMITED = """
import resource, sys
from rl_lab.cli.main import main
from rl_lab.run import orchestrator
from rl_lab.run import build
from rl_lab.algorithms import ppo

def limit(more):
    pages = int(open("/proc/self/statm").read().split()[0])
    size = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (size, size))

if sys.argv[1] == "at once":
    real_context = build.make_context
    build.make_context = lambda config: (limit(256 << 20), real_context(config))[1]
else:  # a run that has begun to eat memory
    real, eaten = ppo.PPO.update, []

    def update(self, batch, *, phase):
        if phase["step"] > 512:
            eaten or limit(256 << 20)
            eaten.append(batch["obs"].new_ones(64 << 20))
        return real(self, batch, phase=phase)

    ppo.PPO.update = update
sys.exit(main(sys.argv[2:]))
"""


def limited(when, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LIMITED, when, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_network_that_does_not_fit(tmp_path):
    words = ["train", *PPO, "network.encoder.hidden_dims=[30000,30000]"]
    done = limited("at once", *words, "--runs-dir", str(tmp_path))
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: out of memory on this machine, 3.4 GiB more were needed: try")
    assert "a smaller environment.num_envs (now 4)" in line
    assert "a smaller algorithm.rollout_steps (now 16)" in line
    assert "network.encoder.hidden_dims (now [30000, 30000])" in line
    assert list_runs(tmp_path) == []  # nothing was left behind


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_run_that_grows_too_large_keeps_its_checkpoint(tmp_path):
    done = limited("later", "train", *PPO, "--runs-dir", str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "error: out of memory on this machine" in done.stderr
    (run,) = list_runs(tmp_path)
    summary = run.read_summary()
    assert summary["status"] == "failed"
    assert summary["error"].startswith("out of memory")
    again = resume("@last", root=tmp_path)  # this process has no such limit
    assert again.summary["status"] == "finished"


ALLOCATOR = "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 123456789012 bytes."  # noqa: E501


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("Unable to allocate 8.00 GiB for an array"), "this machine: try"),
        (RuntimeError(ALLOCATOR), "this machine, 115.0 GiB more were needed: try"),
        (OSError(12, "Cannot allocate memory"), "this machine: try"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB."),
            "this GPU, 2.50 GiB more were needed: try",
        ),
    ],
)
def test_every_kind_is_understood(error, words):
    config = tiny_config("CartPole-v1:ppo_defaults", "algorithm.batch_size=32")
    with pytest.raises(OutOfMemoryError) as caught, explaining_memory(config):
        raise error
    assert words in str(caught.value)
    assert "a smaller algorithm.batch_size (now 32)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_errors_are_left_alone():
    config = tiny_config()
    for error in (RuntimeError("shapes do not fit"), OSError(28, "No space left"), KeyError("x")):
        assert not is_out_of_memory(error)
        with pytest.raises(type(error)), explaining_memory(config):
            raise error


def test_buffers_come_first():
    config = tiny_config()
    object.__setattr__(config, "buffers", {"replay": {"type": "uniform", "capacity": 1_000_000}})
    text = advice(config, MemoryError())
    assert "try a smaller buffers.replay.capacity (now 1_000_000), a smaller environment" in text
