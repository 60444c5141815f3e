"""Frames in files: the same as in memory, through checkpoints, kills and damage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.buffers.disk import DiskConfig, DiskReplay
from rl_lab.buffers.sequence import SequenceConfig, SequenceReplay
from rl_lab.core.errors import UserError
from rl_lab.core.state import differences, join, split
from rl_lab.core.tree import named_leaves
from transition_stream import PARTS, SPEC, Stream, arrivals, setup

STEP = 12 + 8 + 4 + 2  # bytes of one made-up transition


@pytest.fixture(autouse=True, scope="module")
def no_power_cuts():
    """Waiting for the disk after every tiny file would be most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


def disk(folder, capacity=64, num_envs=2, spec=SPEC, steps=4, mapped=2, **options):
    """Files of so many vector steps, so many of them mapped at a time."""
    segment = STEP * num_envs * steps
    config = DiskConfig(
        folder=str(folder), capacity=capacity, segment=segment, ram=mapped * segment, **options
    )
    return DiskReplay(config, setup(spec, num_envs))


def memory(capacity=64, num_envs=2, spec=SPEC):
    return SequenceReplay(SequenceConfig(capacity=capacity), setup(spec, num_envs))


def same(left, right):
    pairs = zip(named_leaves(left), named_leaves(right), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def saved(buffer):
    state = {"buffer": buffer.state_dict(), "rng": buffer.setup.rng.bit_generator.state}
    return join(*split(state))


def load(buffer, state):
    buffer.setup.rng.bit_generator.state = state["rng"]
    buffer.load_state_dict(state["buffer"])
    return buffer


@settings(max_examples=20, deadline=None)
@given(
    num_envs=st.sampled_from([1, 3]),
    rows=st.integers(1, 14),
    steps=st.integers(1, 5),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.2, 1.0]),
    turns=st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from(["go", "save", "restart", "lose"])),
        min_size=1,
        max_size=8,
    ),
)
def test_it_is_the_buffer_in_memory(tmp_path_factory, num_envs, rows, steps, seed, ends, turns):
    stream = Stream(num_envs, seed, ends=ends)
    folder = tmp_path_factory.mktemp("disk")
    make = lambda: disk(folder, rows * num_envs, num_envs, steps=steps, mapped=6)  # noqa: E731
    there, here = make(), memory(rows * num_envs, num_envs)
    for length, event in turns:
        trajectory = stream.trajectory(length)
        there.add(trajectory)
        here.add(trajectory)
        if event == "save":
            there = load(make(), saved(there))
        elif event == "restart":
            stream.restart()
        elif event == "lose":
            stream.lose(env=seed % num_envs)
        assert len(there) == len(here)
        for window in (1, 3, 6):
            assert there.windows(window) == here.windows(window)
            if here.ready(window):
                assert same(there.sequences(4, window, 2), here.sequences(4, window, 2))
        assert same(there.sample(5, n_step=3), here.sample(5, n_step=3))
        assert same(there.last(7), here.last(7))


def test_a_run_goes_back_to_its_checkpoint_and_writes_the_same_again(tmp_path):
    stream = Stream(2, seed=1)
    trajectories = [stream.trajectory(5) for _ in range(12)]
    straight = disk(tmp_path / "straight")
    for turn, trajectory in enumerate(trajectories):
        straight.add(trajectory)
        if turn == 5:
            saved(straight)
    killed = disk(tmp_path / "killed")
    for trajectory in trajectories[:6]:
        killed.add(trajectory)
    state = saved(killed)
    before = contents(tmp_path / "killed")
    for trajectory in trajectories[6:11]:  # then it is killed
        killed.add(trajectory)
    (tmp_path / "killed" / "000000000099-4.draft").write_bytes(b"half a file")
    resumed = load(disk(tmp_path / "killed"), state)
    assert len(contents(tmp_path / "killed")) > len(before)  # nothing is touched yet
    assert resumed.ring.total == 30
    resumed.add(trajectories[6])
    found = contents(tmp_path / "killed")
    assert set(before) <= set(found) and len(found) <= len(before) + 2 + 1
    for trajectory in trajectories[7:]:
        resumed.add(trajectory)
    (tmp_path / "killed" / "000000000099-4.draft").unlink()
    assert differences(saved(straight)["buffer"], saved(resumed)["buffer"]) == []
    assert contents(tmp_path / "straight") == contents(tmp_path / "killed")


def test_what_is_added_later_does_not_follow_what_was_there(tmp_path):
    first, second = Stream(2, seed=1, ends=0.1), Stream(2, seed=2, ends=0.1)
    buffer = disk(tmp_path, capacity=400)
    buffer.add(first.trajectory(30))
    buffer.state_dict()  # as at the end of a run
    first_files = contents(tmp_path)
    buffer = disk(tmp_path, capacity=400)
    assert len(buffer) == 58  # all but the newest row, of which nobody knew where it led to
    buffer.add(second.trajectory(30))
    again = load(disk(tmp_path, capacity=400), saved(buffer))
    reader = disk(tmp_path, capacity=400, mode="read")
    old = [frames[:-1] for frames in arrivals(first, 100)]
    for each in (buffer, again):
        for env in (0, 1):
            count = each.streams.next[env]
            batch = each.read_windows(np.array([env]), np.array([0]), int(count))
            rows = told({key: value[0] for key, value in batch.items()})
            new = arrivals(second, 100)[env]
            if first.rows[env][28]["fragment"] == first.rows[env][29]["fragment"]:
                last = first.rows[env][29]["obs"]
                row = first.rows[env][28]
                cut = (*last, row["action"], row["reward"], False, False, True)
                assert rows == [*old[env], cut, *new]
            else:
                assert rows == [*arrivals(first, 100)[env][:-1], *new]
    assert {name: contents(tmp_path)[name] for name in first_files} == first_files
    # A reader has no newest row: what the one before led to is its last frame, final or not.
    ended = sum(rows[28]["fragment"] != rows[29]["fragment"] for rows in second.rows)
    assert reader.windows(1) == again.windows(1) - ended


def told(batch):
    columns = [batch["obs"], batch["previous_action"][..., None], batch["reward"][..., None]]
    columns += [batch[flag][..., None] for flag in ("reset", "terminated", "truncated")]
    rows = torch.cat([column.double() for column in columns], -1)
    return [tuple(row) for row in rows[:, 0].tolist()]


def test_few_files_are_mapped_at_a_time(tmp_path):
    buffer = disk(tmp_path, capacity=2000, steps=3, mapped=2)
    buffer.add(Stream(2, seed=1).trajectory(500))
    buffer.sequences(16, 8)
    assert len(buffer.ring.segments) > 100 and len(buffer.ring.mapped) == 2


def test_the_flags_of_a_file_are_read_once(tmp_path):
    buffer = disk(tmp_path, steps=10)
    buffer.add(Stream(2, seed=1, ends=0.5).trajectory(21))
    first = buffer.ring._map(buffer.ring.segments[0])
    rows = np.flatnonzero(first.columns["cut"])
    assert 5 < len(rows) < 20
    found = first.final_frame("obs", rows)
    inner = rows < 9 * 2  # the last step's are those that the file ends with
    assert np.array_equal(found[inner], first.columns["final/obs"][: inner.sum()])
    del first.columns["cut"]
    assert np.array_equal(first.final_frame("obs", rows[3:5]), found[3:5])


BIG = """
import os, resource, sys
import numpy as np, torch
sys.path.insert(0, "tests/support")
from rl_lab.buffers.disk import DiskConfig, DiskReplay
from rl_lab.buffers.sequence import SequenceConfig, SequenceReplay
from rl_lab.core.spec import EnvSpec
from transition_stream import SPEC, box, setup

spec = EnvSpec("Pictures", box((3, 64, 64), np.uint8), SPEC.action)
MIB, rows = 2**20, 4000  # 47 MiB of pictures
os.fsync = lambda file: None
frames = torch.arange(201, dtype=torch.uint8)[:, None, None, None, None].expand(201, 1, 3, 64, 64)
flags = torch.zeros(200, 1, dtype=torch.bool)
piece = {"obs": frames[:-1], "next_obs": frames[1:], "action": flags.long()}
piece |= {"reward": flags.float(), "terminated": flags, "truncated": flags, "reset": flags}

def fill(buffer):
    for _ in range(rows // 200):
        buffer.add(piece)
    return buffer.sequences(8, 16)

options = {"folder": sys.argv[1], "capacity": rows, "segment": MIB, "ram": 4 * MIB}
torch.zeros(1) + 1, np.zeros(1) + 1  # whatever they take at first
used = int(next(line.split()[1] for line in open("/proc/self/status") if "VmData" in line)) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 24 * MIB, used + 24 * MIB))
batch = fill(DiskReplay(DiskConfig(**options), setup(spec, 1)))
steps = batch["obs"][0, :, :, 0, 0, 0].long()
assert ((steps[1:] - steps[:-1]) % 201 == 1).all()
try:
    fill(SequenceReplay(SequenceConfig(capacity=rows), setup(spec, 1)))
except MemoryError:
    print("only on disk")
"""


def test_more_than_memory_holds(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BIG, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={"OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "only on disk\n", done.stderr
    assert sum(map(len, contents(tmp_path).values())) > 45 * 2**20


def test_damage_is_found_before_anything_is_given(tmp_path):
    buffer = disk(tmp_path, capacity=400)
    buffer.add(Stream(2, seed=1).trajectory(30))
    state = saved(buffer)
    victim = sorted(tmp_path.glob("*.npz"))[2]
    good = victim.read_bytes()
    where = good.index(b"obs.npy") + 200
    victim.write_bytes(good[:where] + bytes([good[where] ^ 1]) + good[where + 1 :])
    broken = load(disk(tmp_path, capacity=400), state)
    with pytest.raises(UserError, match=rf"{victim.name} is damaged: obs.npy"):
        broken.sequences(50, 5)
    victim.write_bytes(good[:100])
    with pytest.raises(UserError, match=rf"{victim.name} is not an .npz file"):
        disk(tmp_path)
    victim.write_bytes(good)
    state["buffer"]["checksums"][2] += 1
    with pytest.raises(UserError, match=rf"{victim.name} is not what the checkpoint knows"):
        load(disk(tmp_path, capacity=400), state)
    victim.unlink()
    with pytest.raises(UserError, match="has no file for the steps from 8 to 12"):
        disk(tmp_path)
    for path in tmp_path.glob("*.npz"):
        path.unlink()
    with pytest.raises(UserError, match=r"000000000000-4\.npz is missing: the checkpoint needs it"):
        load(disk(tmp_path, capacity=400), state)


def test_two_runs_cannot_share_a_folder(tmp_path):
    one, two, stream = disk(tmp_path), disk(tmp_path), Stream(2, seed=1)
    one.add(stream.trajectory(9))
    with pytest.raises(UserError, match=r"000000000000-4\.npz is of another run"):
        two.add(stream.trajectory(9))


@pytest.mark.parametrize("more", [0, 3])  # rows that it wrote after its checkpoint, in segments
def test_a_resumed_run_does_not_delete_what_another_run_has_added(tmp_path, more):
    stream, other = Stream(2, seed=1), Stream(2, seed=2)
    killed = disk(tmp_path)
    killed.add(stream.trajectory(10))
    state = saved(killed)
    killed.add(stream.trajectory(4 * more + 1))
    between = disk(tmp_path)
    between.add(other.trajectory(20))
    kept = saved(between)
    files = contents(tmp_path)
    with pytest.raises(UserError, match=r"npz was added by another run after the checkpoint"):
        load(disk(tmp_path), state)
    assert contents(tmp_path) == files
    load(disk(tmp_path), kept).add(other.trajectory(20))  # the last one may go on
    reader = disk(tmp_path, mode="read")
    state = saved(reader)
    disk(tmp_path).add(stream.trajectory(20))
    assert load(disk(tmp_path, mode="read"), state).windows(3) == reader.windows(3)


def test_only_reading(tmp_path):
    with pytest.raises(UserError, match=r"nowhere has no dataset\.json: no disk buffer has"):
        disk(tmp_path / "nowhere", mode="read")
    buffer = disk(tmp_path, spec=PARTS)
    buffer.add(Stream(2, seed=1, spec=PARTS).trajectory(20))
    buffer.state_dict()
    reader = disk(tmp_path, mode="read", spec=PARTS)
    assert reader.sequences(3, 4)["obs"]["camera"].shape == (1, 4, 3, 3)
    with pytest.raises(UserError, match="is only read: collect into another buffer"):
        reader.add(Stream(2, seed=1, spec=PARTS).trajectory(1))


def test_anybody_can_read_the_files(tmp_path):
    stream = Stream(2, seed=1, ends=0.3)
    disk(tmp_path, steps=10).add(stream.trajectory(21))
    arrays = np.load(tmp_path / "000000000000-10.npz")
    assert arrays["obs"].tolist() == [
        [stream.rows[env][step]["obs"] for env in (0, 1)] for step in range(10)
    ]
    assert arrays["final/obs"].tolist() == [
        stream.rows[env][step]["next_obs"]
        for step in range(10)
        for env in (0, 1)
        if arrays["cut"][step, env]
    ]
    about = json.loads((tmp_path / "dataset.json").read_text())
    assert about["num_envs"] == 2 and about["columns"]["obs"] == {"shape": [3], "dtype": "float32"}
    with pytest.raises(UserError, match="has num_envs = 2, here it is 3"):
        disk(tmp_path, num_envs=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "folder must not be empty"),
        ({"folder": "x", "mode": "write"}, "mode must be 'append' or 'read', got 'write'"),
        ({"folder": "x", "segment": 0}, "segment must be at least 1, got 0"),
        ({"folder": "x", "ram": 0}, "ram must be at least 1, got 0"),
    ],
)
def test_values_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        DiskConfig(**options)
