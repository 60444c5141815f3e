"""Saved and loaded equals never saved, and a checkpoint holds only what is new."""

import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.buffers import storage
from rl_lab.buffers.hindsight import HindsightConfig, HindsightReplay
from rl_lab.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import BufferSetup
from rl_lab.core.spec import EnvSpec
from rl_lab.core.state import differences, fingerprint, join, split
from rl_lab.core.tree import named_leaves
from transition_stream import GOALS, PARTS, SPEC, GoalStream, Stream, box, pay, setup

KINDS = {
    "uniform": lambda size, n: UniformReplay(UniformConfig(capacity=size), setup(num_envs=n)),
    "parts": lambda size, n: UniformReplay(UniformConfig(capacity=size), setup(PARTS, n)),
    "prioritized": lambda size, n: PrioritizedReplay(
        PrioritizedConfig(capacity=size), setup(num_envs=n)
    ),
    "her": lambda size, n: HindsightReplay(
        HindsightConfig(capacity=size, strategy="episode"), setup(GOALS, n, goal_reward=pay)
    ),
}

RNG = np.random.default_rng(0).bit_generator.state


def stream_for(kind, num_envs, seed):
    if kind == "her":
        return GoalStream(num_envs, seed)
    return Stream(num_envs, seed, PARTS if kind == "parts" else SPEC)


class Files:
    """What `records` does with chunks, in memory: each is written once."""

    def __init__(self):
        self.written = []

    def save(self, buffer):
        state = buffer.state_dict()
        for log in (state["log"], state["finals"]):
            for chunk in log.chunks:
                if not chunk.name:
                    rows = {name: column.copy() for name, column in chunk.read().items()}
                    self.written.append((chunk.first, chunk.count))
                    chunk.stored(str(len(self.written)), lambda rows=rows: rows)
        return {**state, "rng": buffer.setup.rng.bit_generator.state}


def load(buffer, state):
    state = dict(state)
    buffer.setup.rng.bit_generator.state = state.pop("rng")
    buffer.load_state_dict(state)
    return buffer


def same(left, right):
    pairs = zip(named_leaves(left), named_leaves(right), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    num_envs=st.integers(1, 3),
    rows=st.integers(1, 10),
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=10),
    saves=st.lists(st.sampled_from(["no", "files", "inline", "lost"]), min_size=10, max_size=10),
)
def test_saved_and_loaded_at_any_point_equals_never_saved(
    kind, num_envs, rows, seed, lengths, saves
):
    make, size = KINDS[kind], rows * num_envs
    stream = stream_for(kind, num_envs, seed)
    kept, moved, files = make(size, num_envs), make(size, num_envs), Files()
    n_step = 1 if kind == "her" else 3
    for turn, (length, save) in enumerate(zip(lengths, saves, strict=False)):
        trajectory = stream.trajectory(length)
        for buffer in (kept, moved):
            buffer.add(trajectory)
        if save == "files":
            moved = load(make(size, num_envs), files.save(moved))
        elif save == "inline":
            state = {**moved.state_dict(), "rng": moved.setup.rng.bit_generator.state}
            moved = load(make(size, num_envs), join(*split(state)))
        elif save == "lost":  # a save that failed: nothing was written
            moved.state_dict()
        left, right = (each.sample(6, 2, n_step=n_step, beta=0.4) for each in (kept, moved))
        assert same(left, right)
        assert same(kept.last(5), moved.last(5))
        if "index" in left:
            error = torch.linspace(-4, 3, 12).reshape(2, 6) / (turn + 1)  # the first is largest
            kept.reprioritize(left["index"], error)
            moved.reprioritize(right["index"], error)
            assert (kept.tree.sums == moved.tree.sums).all()
        assert differences(kept.state_dict(), moved.state_dict()) == []


def test_every_row_is_written_once():
    buffer, stream, files = KINDS["uniform"](60, 2), Stream(2, seed=1), Files()
    for _ in range(10):
        buffer.add(stream.trajectory(5))
        files.save(buffer)
        count = len(files.written)
        files.save(buffer)
        assert len(files.written) == count  # nothing is new
    rows = sorted(files.written[0::2])
    assert rows[0] == (0, 4)  # the newest row is not sealed
    again = load(KINDS["uniform"](60, 2), files.save(buffer))
    count = len(files.written)
    files.save(again)
    assert len(files.written) == count
    again.add(stream.trajectory(5))
    again.state_dict()
    fresh = [chunk for chunk in again.ring.chunks if not chunk.name]
    assert [(chunk.first, chunk.count) for chunk in fresh] == [(49, 5)]


def test_chunks_that_fell_out_of_the_ring_are_dropped():
    buffer, stream, files = KINDS["uniform"](20, 2), Stream(2, seed=1), Files()
    for _ in range(7):
        buffer.add(stream.trajectory(4))
        state = files.save(buffer)
    log = state["log"]
    assert log.first == 18  # of 28 vector steps, ten are there
    assert log.chunks[0].first <= 18 < log.chunks[0].first + log.chunks[0].count
    ends = [chunk.first + chunk.count for chunk in log.chunks]
    assert [chunk.first for chunk in log.chunks[1:]] == ends[:-1] and ends[-1] == 27
    finals = state["finals"]
    assert sum(chunk.count for chunk in finals.chunks) < buffer.ring.finals.next - 1


def test_equal_rows_are_equal_however_they_were_sealed():
    often, once, files = KINDS["uniform"](20, 2), KINDS["uniform"](20, 2), Files()
    stream = Stream(2, seed=1)
    for _ in range(7):
        trajectory = stream.trajectory(4)
        often.add(trajectory)
        once.add(trajectory)
        files.save(often)
    assert fingerprint(often.state_dict()) == fingerprint(once.state_dict())


def test_chunks_are_small_and_do_not_wrap(monkeypatch):
    monkeypatch.setattr(storage, "CHUNK_BYTES", 200)  # 31 * 2 bytes in a vector step with its flag
    buffer, stream = KINDS["uniform"](60, 2), Stream(2, seed=1)
    buffer.add(stream.trajectory(50))
    log = buffer.state_dict()["log"]
    sizes = [sum(column.nbytes for column in chunk.read().values()) for chunk in log.chunks]
    assert max(sizes) <= 210 and len(sizes) >= 10
    assert not any(chunk.first < 30 < chunk.first + chunk.count for chunk in log.chunks)
    assert sum(chunk.count for chunk in log.chunks) == 29


def test_rows_that_are_not_written_yet_take_no_memory():
    buffer, stream = KINDS["uniform"](60, 2), Stream(2, seed=1)
    buffer.add(stream.trajectory(20))
    again = load(KINDS["uniform"](60, 2), join(*split({**buffer.state_dict(), "rng": RNG})))
    for each in (buffer, again):
        chunk = each.state_dict()["log"].chunks[0]
        assert np.shares_memory(chunk.columns["obs"], each.ring.columns["obs"])


def test_an_empty_buffer_can_be_saved():
    for kind, make in KINDS.items():
        buffer = make(12, 2)
        again = load(make(12, 2), Files().save(buffer))
        assert len(again) == 0
        again.add(stream_for(kind, 2, 0).trajectory(3))
        assert len(again) == 6


@pytest.mark.parametrize(
    ("size", "num_envs", "said"), [(10, 2, "rows = 6"), (18, 3, "num_envs = 2")]
)
def test_a_buffer_of_another_size_is_refused(size, num_envs, said):
    state = Files().save(KINDS["uniform"](12, 2))
    with pytest.raises(UserError, match=f"a saved buffer does not fit: it has {said}"):
        load(KINDS["uniform"](size, num_envs), state)


def test_going_back_in_the_same_object_forgets_what_came_later():
    buffer, stream, files = KINDS["uniform"](20, 2), Stream(2, seed=1), Files()
    buffer.add(stream.trajectory(7))
    state = files.save(buffer)
    before = buffer.sample(50)
    for _ in range(3):
        buffer.add(stream.trajectory(6))
    assert same(load(buffer, state).sample(50), before)


def test_images_stay_bytes_and_are_written_once():
    picture = EnvSpec("Pictures", box((1, 8, 8), np.uint8), SPEC.action)
    buffer = UniformReplay(
        UniformConfig(capacity=100), BufferSetup(picture, 1, np.random.default_rng(0))
    )
    steps, frames = 50, torch.randint(0, 255, (51, 1, 1, 8, 8), dtype=torch.uint8)
    flags = torch.zeros(steps, 1, dtype=torch.bool)
    buffer.add(
        {
            "obs": frames[:-1],
            "action": torch.zeros(steps, 1, dtype=torch.int64),
            "reward": torch.zeros(steps, 1),
            "terminated": flags,
            "truncated": flags,
            "next_obs": frames[1:],
            "reset": flags,
        }
    )
    assert torch.equal(buffer.last(50)["next_obs"], frames[1:, 0])
    columns = buffer.state_dict()["log"].read()
    assert sum(column.nbytes for column in columns.values()) == 49 * (64 + 8 + 4 + 3)
