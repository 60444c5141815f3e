"""Stacks of frames are stored once: what is read is what was seen, whatever happened in between."""

import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.buffers import ram
from rl_lab.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.buffers.sequence import SequenceConfig, SequenceReplay
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, Discrete, EnvSpec
from rl_lab.core.state import join, split
from transition_stream import setup

WIDTH = 2  # numbers of a frame


def spec(size, stack):
    space = Box((size * WIDTH, 2), np.dtype(np.uint8), np.zeros(1), np.full(1, 255))
    return EnvSpec("Stack", space, Discrete(3), stack=stack)


class Camera:
    """Environments that show their last frames; episodes begin with copies, or with nothing."""

    def __init__(self, num_envs, size, seed):
        self.rng, self.size, self.num_envs = np.random.default_rng(seed), size, num_envs
        self.first = np.ones(num_envs, bool)
        self.stack = np.stack([self.begin() for _ in range(num_envs)])

    def frame(self):
        return self.rng.integers(4, size=(1, WIDTH, 2), dtype=np.uint8)  # few: some are alike

    def begin(self):
        empty = np.zeros((self.size - 1, WIDTH, 2), np.uint8)
        frame = self.frame()
        past = empty if self.rng.random() < 0.5 else frame.repeat(self.size - 1, 0)
        return np.concatenate([past, frame])

    def restart(self):
        """As after a crash: new episodes that nothing announced."""
        self.stack = np.stack([self.begin() for _ in range(self.num_envs)])
        self.first[:] = True

    def lose_steps(self, count):
        """Steps that nobody kept, in the same episodes."""
        for _ in range(count):
            self.stack = self.stepped()

    def stepped(self):
        new = np.stack([self.frame() for _ in range(self.num_envs)])
        return np.concatenate([self.stack[:, 1:], new], 1)

    def trajectory(self, steps):
        rows = {key: [] for key in ("obs", "next_obs", "terminated", "truncated", "reset")}
        for _ in range(steps):
            after = self.stepped()
            ended = self.rng.random(self.num_envs) < 0.2
            cut = self.rng.random(self.num_envs) < 0.1
            found = (self.stack, after, ended, cut, self.first)
            for key, value in zip(rows, found, strict=True):
                rows[key].append(value.copy())
            self.first = ended | cut
            fresh = np.stack([self.begin() for _ in range(self.num_envs)])
            self.stack = np.where(self.first[:, None, None, None], fresh, after)
        batch = {key: torch.from_numpy(np.stack(each)) for key, each in rows.items()}
        for key in ("obs", "next_obs"):
            batch[key] = batch[key].flatten(2, 3)
        numbers = self.rng.random((2, steps, self.num_envs))
        batch["action"] = torch.from_numpy((numbers[0] * 3).astype(np.int64))
        batch["reward"] = torch.from_numpy(numbers[1].astype(np.float32))
        return batch


EVENTS = st.lists(
    st.tuples(st.sampled_from(["go", "restart", "lose", "save"]), st.integers(1, 9)), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(2, 7), EVENTS, st.integers(0, 9))
def test_the_same_rows_as_if_stacks_were_stored_whole(size, num_envs, rows, events, seed):
    rings = []
    for stack in (1, size):
        config = UniformConfig(capacity=rows * num_envs)
        rings.append(UniformReplay(config, setup(spec(size, stack), num_envs)))
    camera = Camera(num_envs, size, seed)
    for event, steps in [*events, ("go", 1)]:
        if event == "restart":
            camera.restart()
        elif event == "lose":
            camera.lose_steps(steps)
        elif event == "save" and len(rings[1]):
            saved = join(*split(rings[1].state_dict()))
            config = UniformConfig(capacity=rows * num_envs)
            rings[1] = UniformReplay(config, setup(spec(size, size), num_envs))
            rings[1].load_state_dict(saved)
        trajectory = camera.trajectory(steps)
        for each in rings:
            each.add(trajectory)
        plain, once = (each.ring for each in rings)
        number = np.arange(plain.oldest * num_envs, plain.total * num_envs)
        for read in ("take", "next_frame"):
            expected, found = (getattr(each, read)("obs", number) for each in (plain, once))
            assert np.array_equal(found, expected), read
        assert np.array_equal(plain.is_cut(number), once.is_cut(number))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (PrioritizedReplay, PrioritizedConfig(capacity=40)),
        (SequenceReplay, SequenceConfig(capacity=40)),
    ],
)
def test_other_buffers_read_the_same(kind, config):
    buffers = [kind(config, setup(spec(3, stack), 2, seed=5)) for stack in (1, 3)]
    camera = Camera(2, 3, seed=1)
    for _ in range(10):
        trajectory = camera.trajectory(7)
        for each in buffers:
            each.add(trajectory)
        draws = [
            each.sequences(4, 5, 2) if kind is SequenceReplay else each.sample(6, n_step=3)
            for each in buffers
        ]
        for key, value in draws[0].items():
            assert torch.equal(value, draws[1][key]), key


def test_memory_is_that_of_single_frames():
    """Of each row one frame of four, and what begins an episode whole."""
    sizes = []
    for stack in (1, 4):
        buffer = UniformReplay(UniformConfig(capacity=1000), setup(spec(4, stack), 2))
        ring = buffer.ring
        arrays = [*ring.columns.values(), *ring.head.values()]
        for pool in ring.pools:
            arrays += [*pool.frames.values(), pool.which]
        if ring.stacks:
            arrays.append(ring.stacks.tail)
        assert buffer.bytes_needed == sum(each.nbytes for each in arrays)
        sizes.append(ring.columns["obs"].nbytes)
    assert sizes[0] == 4 * sizes[1]


def test_sealed_rows_are_written_once():
    buffer = UniformReplay(UniformConfig(capacity=400), setup(spec(3, 3), 2))
    camera = Camera(2, 3, seed=2)
    buffer.add(camera.trajectory(100))
    first = buffer.state_dict()["stacks"]["starts"]
    for number, chunk in enumerate(first.chunks):
        chunk.name = f"file{number}"  # as if it was written
    buffer.add(camera.trajectory(10))
    again = buffer.state_dict()["stacks"]["starts"]
    new = [each for each in again.chunks if not each.name]
    assert sum(each.count for each in first.chunks) > 20
    assert 0 < sum(each.count for each in new) < 20


def test_a_buffer_of_whole_stacks_is_refused():
    whole, once = (UniformReplay(UniformConfig(capacity=40), setup(spec(3, n), 2)) for n in (1, 3))
    whole.add(Camera(2, 3, seed=0).trajectory(3))
    with pytest.raises(UserError, match="only one of the two stores stacks once"):
        once.load_state_dict(join(*split(whole.state_dict())))


def unrelated(camera, steps):
    """A trajectory in which no observation is a stack of those before it."""
    camera.stepped = lambda: camera.rng.integers(256, size=camera.stack.shape, dtype=np.uint8)
    return camera.trajectory(steps)


def taken(ring):
    arrays = [*ring.columns.values(), *ring.head.values(), ring.stacks.tail]
    for pool in ring.pools:
        arrays += [*pool.frames.values(), pool.which]
    return sum(each.nbytes for each in arrays)


def test_stacks_that_do_not_follow_ask_before_they_take_more(monkeypatch):
    free = 10 * 2**20
    buffer = UniformReplay(UniformConfig(capacity=1000), setup(spec(4, 4), 1))
    camera = Camera(1, 4, seed=3)
    monkeypatch.setattr(ram, "free_bytes", lambda: free)
    buffer.add(unrelated(camera, 200))
    assert taken(buffer.ring) > buffer.bytes_needed
    free = 800 * (4 + 8 + 4 + 2)  # enough for the rows to come, if each had one frame only
    with pytest.raises(
        UserError, match=r"more observations kept whole, and the rows to come, need"
    ):
        buffer.add(unrelated(camera, 400))


def test_stacks_that_do_not_follow_are_read_as_they_were():
    buffer = UniformReplay(UniformConfig(capacity=50), setup(spec(4, 4), 2))
    rows = unrelated(Camera(2, 4, seed=3), 40)
    buffer.add(rows)
    found = buffer.last(50)
    assert torch.equal(found["obs"], rows["obs"][-25:].flatten(0, 1))
    assert torch.equal(found["next_obs"], rows["next_obs"][-25:].flatten(0, 1))
