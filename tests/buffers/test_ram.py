"""What does not fit is refused before it is made."""

import numpy as np
import pytest

from rl_lab.buffers import ram
from rl_lab.buffers.ram import GIB, free_bytes, rounded_down
from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Discrete, EnvSpec
from transition_stream import SPEC, Stream, box, setup

PICTURES = EnvSpec("Pictures", box((4, 84, 84), np.uint8), Discrete(4))


MEMINFO = "MemTotal: 32000000 kB\nMemAvailable:   16777216 kB\n"  # 16 GiB


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_the_machine_says_what_is_free(tmp_path):
    assert free_bytes(tmp_path) is None
    write(tmp_path, "proc/meminfo", MEMINFO)
    assert free_bytes(tmp_path) == 16 * GIB
    real = free_bytes()
    assert real is None or 0 < real < 2**50


def test_a_container_may_have_less(tmp_path):
    write(tmp_path, "proc/meminfo", MEMINFO)
    write(tmp_path, "proc/self/cgroup", "0::/jobs/mine\n")
    group = "sys/fs/cgroup/jobs"
    write(tmp_path, f"{group}/memory.max", f"{8 * GIB}\n")
    write(tmp_path, f"{group}/memory.current", f"{5 * GIB}\n")
    write(tmp_path, f"{group}/memory.stat", f"anon {GIB}\ninactive_file {2 * GIB}\n")
    write(tmp_path, f"{group}/mine/memory.max", "max\n")
    write(tmp_path, f"{group}/mine/memory.current", f"{GIB}\n")
    assert free_bytes(tmp_path) == 5 * GIB  # 8 - 5, and 2 of files that can be dropped


def test_an_older_container_may_have_less(tmp_path):
    write(tmp_path, "proc/meminfo", MEMINFO)
    write(tmp_path, "proc/self/cgroup", "3:cpu,cpuacct:/x\n5:memory:/x\n")
    group = "sys/fs/cgroup/memory/x"
    write(tmp_path, f"{group}/memory.limit_in_bytes", f"{4 * GIB}\n")
    write(tmp_path, f"{group}/memory.usage_in_bytes", f"{GIB}\n")
    assert free_bytes(tmp_path) == 3 * GIB


def test_a_buffer_that_is_too_large_is_refused_with_what_fits(monkeypatch):
    monkeypatch.setattr(ram, "free_bytes", lambda: 10 * GIB)
    made = setup(PICTURES)
    monkeypatch.setattr(np, "zeros", None)  # no array is made
    # 4 * 84 * 84 + action 8 + reward 4 + flags 2 + 8 bytes; a 64th of the frames again: 28_687
    with pytest.raises(UserError) as refused:
        UniformReplay(UniformConfig(capacity=1_000_000), made)
    assert str(refused.value) == (
        "capacity 1_000_000 needs 26.7 GiB, 10.0 GiB are free: at most 370_000 fit"
    )


def test_what_is_said_to_fit_fits(monkeypatch):
    monkeypatch.setattr(ram, "free_bytes", lambda: 10 * 2**20)
    assert len(UniformReplay(UniformConfig(capacity=360), setup(PICTURES))) == 0
    with pytest.raises(UserError, match="at most 360 fit"):
        UniformReplay(UniformConfig(capacity=370), setup(PICTURES))


def test_buffers_share_the_memory(monkeypatch):
    monkeypatch.setattr(ram, "free_bytes", lambda: 10 * 2**20)
    first = UniformReplay(UniformConfig(capacity=300), setup(PICTURES))
    with pytest.raises(UserError, match="capacity 100 needs"):
        UniformReplay(UniformConfig(capacity=100), setup(PICTURES, others={"first": first}))


@pytest.mark.parametrize(("missing", "refused"), [(0, False), (1, True)])
def test_final_frames_beyond_the_room_for_them_are_asked_for(monkeypatch, missing, refused):
    """Every step ends an episode: room for one final frame in 64 rows does not last."""
    buffer = UniformReplay(UniformConfig(capacity=64), setup(SPEC, num_envs=1))
    stream = Stream(1, seed=0, ends=1.0)
    buffer.add(stream.trajectory(2))  # the second one has no follower yet
    # 62 rows of 12 + 8 + 4 + 2 bytes are to come, and a second final frame of 12
    monkeypatch.setattr(ram, "free_bytes", lambda: 62 * 26 + 12 - missing)
    if refused:
        with pytest.raises(UserError) as told:
            buffer.add(stream.trajectory(1))
        assert str(told.value) == (
            "1 more observations kept whole, and the rows to come, need 0.0 GiB, "
            "0.0 GiB are free: set a smaller capacity"
        )
    else:
        buffer.add(stream.trajectory(1))
        assert buffer.last(3)["next_obs"][:, 1].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("number", "shown"), [(387_421, 380_000), (99, 99), (7, 7), (0, 0)])
def test_two_digits_that_count(number, shown):
    assert rounded_down(number) == shown
