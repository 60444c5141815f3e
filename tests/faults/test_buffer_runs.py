"""Runs with a replay buffer: interrupted, damaged, and stopped by a bad number."""

import shutil

import pytest

from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.records import faults
from rl_lab.records.commit import read_tree
from rl_lab.records.run_directory import find_run
from rl_lab.run.crash_replay import replay
from rl_lab.run.policy import load
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_run

DQN = "CartPole-v1:dqn"
SMALL = [
    "algorithm.learning_starts=64",
    "algorithm.batch_size=8",
    "buffers.replay.capacity=400",
    "environment.num_envs=4",
    "evaluation.every_steps=0",
    "evaluation.test_episodes=0",
]


@pytest.fixture(autouse=True)
def fresh_faults():
    faults.reset()
    yield
    faults.reset()


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("straight"), DQN, *SMALL).run


def the_run(root):
    return find_run("@last", root)[0]


def crash(root, spec, *words):
    """Train until it fails; the dump."""
    with pytest.raises(NonFiniteError):
        tiny_run(root, spec, *SMALL, *words)
    (dump,) = (the_run(root).path / "crash").iterdir()
    return dump


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_an_interrupted_run_with_a_buffer_is_the_same_run(tmp_path, monkeypatch, straight):
    monkeypatch.setenv(faults.VARIABLE, "hook.before:error@90")  # of 128 hooks
    with pytest.raises(OSError, match="injected"):
        tiny_run(tmp_path, DQN, *SMALL)
    resume("@last", root=tmp_path)
    assert run_hash(the_run(tmp_path)) == run_hash(straight)


def test_rows_of_a_checkpoint_that_failed_are_in_the_next(tmp_path, monkeypatch, straight):
    monkeypatch.setenv(faults.VARIABLE, "chunk.after_fsync:error@4")
    run = tiny_run(tmp_path, DQN, *SMALL).run
    assert "checkpoint at 512 failed" in run.log_file.read_text()
    assert run_hash(run) == run_hash(straight)


def test_a_damaged_chunk_costs_a_checkpoint_and_not_the_run(tmp_path, straight):
    run = shutil.copytree(straight.path, tmp_path / straight.path.name)
    newest = max((run / "checkpoints" / "chunks").iterdir())
    flip(newest)
    policy = load(straight.id, tmp_path, warn=print)  # needs no rows
    assert policy.step == 1024
    resume("@last", root=tmp_path)
    copied = the_run(tmp_path)
    assert newest.name in copied.log_file.read_text()
    assert run_hash(copied) == run_hash(straight)


def test_a_failed_update_is_dumped_without_the_buffer(tmp_path):
    dump = crash(tmp_path, DQN, "algorithm.learning_rate=1e30", "algorithm.learning_starts=300")
    tree, _ = read_tree(dump)
    assert tree["state"]["parts"]["buffer.replay"] is None
    assert tree["state"]["parts"]["collector"] is not None
    moved = shutil.copytree(dump, tmp_path / "elsewhere")  # without its run
    found = replay(str(moved), tmp_path)
    assert found.hook == "update" and found.reproduced


# The environment fails at step 384, updates since the checkpoint of step 256 need its buffer.
def test_a_failed_rollout_finds_the_buffer_in_its_checkpoint(tmp_path):
    dump = crash(tmp_path, "bad_number_envs:test/GoesBad-v0:dqn")
    found = replay(str(dump), tmp_path)
    assert found.hook == "collect" and found.reproduced
    before = size(dump)
    shutil.rmtree(the_run(tmp_path).checkpoints / "step_000000000256")
    with pytest.raises(UserError, match=r"buffer\.replay of step 256, .*no checkpoint at step 256"):
        replay(str(dump), tmp_path)
    assert size(dump) == before
