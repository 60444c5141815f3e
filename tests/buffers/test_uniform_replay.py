"""The uniform buffer against lists, and its rules by hand."""

import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import Replay
from rl_lab.core.tree import named_leaves
from transition_stream import PARTS, Stream, setup, told


def uniform(capacity=64, num_envs=2, **more):
    return UniformReplay(UniformConfig(capacity=capacity), setup(num_envs=num_envs, **more))


def everything(buffer, n_step=1):
    """Every transition that could be drawn, once."""
    ring = buffer.ring
    number = np.arange(ring.oldest * ring.num_envs, ring.total * ring.num_envs)
    return buffer.as_tensors(buffer.transitions(number, n_step), (len(number),))


@settings(max_examples=150, deadline=None)
@given(
    num_envs=st.integers(1, 4),
    rows=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    events=st.lists(st.sampled_from(["go", "go", "restart", "lose"]), min_size=8, max_size=8),
)
def test_it_holds_what_a_list_would_hold(num_envs, rows, seed, ends, lengths, events):
    stream = Stream(num_envs, seed, ends=ends)
    buffer = uniform(rows * num_envs + num_envs - 1, num_envs)  # rounded down to whole steps
    for length, event in zip(lengths, events, strict=False):
        buffer.add(stream.trajectory(length))
        for n_step in (1, 3):
            assert told(everything(buffer, n_step), n_step) == stream.windows(rows, n_step)
        if event == "restart":
            stream.restart()
        elif event == "lose":
            stream.lose(env=seed % num_envs)


def test_windows_after_a_wrap_stay_in_one_episode():
    stream = Stream(3, seed=5, ends=0.1)
    buffer = uniform(3 * 40, num_envs=3)
    for _ in range(12):  # 1.5 times its size
        buffer.add(stream.trajectory(5))
    assert len(buffer) == 120
    ring = buffer.ring
    number = np.arange(20 * 3, 60 * 3)
    every, steps = ring.window(number, 5)
    for row, count in zip(every, steps, strict=True):
        frames = ring.take("obs", row[:count])
        assert len(set(map(tuple, frames[:, :2]))) == 1  # one environment, one episode
        assert (np.diff(frames[:, 2]) == 1).all()
        if count < 5:  # cut short only where it must be
            assert ring.is_last(row[[count - 1]])[0]
    assert (steps == 5).sum() > 30 and (steps < 5).sum() > 20


def by_hand(terminated=(), truncated=(), rewards=(1, 2, 3, 4)):
    """One environment, one trajectory: obs t, next_obs t + 1."""
    steps = len(rewards)
    t = torch.arange(steps, dtype=torch.float32)
    frames = torch.stack([t * 0, t * 0, t], -1)[:, None]
    flag = lambda at: torch.tensor([[step in at] for step in range(steps)])  # noqa: E731
    return {
        "obs": frames,
        "action": torch.arange(steps)[:, None],
        "reward": torch.tensor(rewards, dtype=torch.float32)[:, None],
        "terminated": flag(terminated),
        "truncated": flag(truncated),
        "next_obs": frames + torch.tensor([0.0, 0.0, 1.0]),
        "reset": flag([0]),
        "state": None,
    }


@pytest.mark.parametrize("ends", [{"truncated": [3]}, {"terminated": [3]}])
def test_windows_of_three_steps_by_hand(ends):
    buffer = uniform(num_envs=1)
    buffer.add(by_hand(**ends))
    batch = everything(buffer, n_step=3)
    # t = 0: rewards 1 2 3, ends in s3. t = 2: rewards 3 4, ends in the final frame s4.
    assert batch["reward"].tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 0]]
    assert batch["steps"].tolist() == [3, 3, 2, 1]
    assert batch["next_obs"][:, 2].tolist() == [3, 4, 4, 4]
    assert batch["terminated"].tolist() == [False, *["terminated" in ends] * 3]
    assert batch["truncated"].tolist() == [False, *["truncated" in ends] * 3]


def test_the_final_frame_is_kept_when_the_next_episode_follows():
    buffer = uniform(num_envs=1)
    buffer.add(by_hand(truncated=[3]))
    second = by_hand(rewards=(5, 6))
    second["obs"] += 100
    second["next_obs"] += 100
    buffer.add(second)
    batch = everything(buffer)
    assert batch["next_obs"][:, 2].tolist() == [1, 2, 3, 4, 101, 102]
    assert batch["obs"][:, 2].tolist() == [0, 1, 2, 3, 100, 101]


@pytest.mark.parametrize("same_frame", [False, True])
@pytest.mark.parametrize("between", [False, True])
def test_a_restart_cuts_though_no_flag_says_so(between, same_frame):
    # obs 0 1 2 3; at the third row the environment was started anew, by chance in the same frame
    rows = by_hand()
    rows["reset"][2] = True
    if not same_frame:
        rows["obs"][2:] += 100
        rows["next_obs"][2:] += 100
    buffer = uniform(num_envs=1)
    if between:
        buffer.add({key: each[:2] for key, each in rows.items() if key != "state"})
        buffer.add({key: each[2:] for key, each in rows.items() if key != "state"})
    else:
        buffer.add(rows)
    batch = everything(buffer, n_step=3)
    assert batch["steps"].tolist() == [2, 1, 2, 1]
    assert batch["next_obs"][:2, 2].tolist() == [2, 2]
    assert not batch["terminated"].any() and not batch["truncated"].any()  # it bootstraps


def test_a_sample_is_right_after_wraps():
    stream, buffer = Stream(2, seed=4), uniform(capacity=20)
    for _ in range(5):
        buffer.add(stream.trajectory(5))
    for n_step in (1, 3):
        rows = {key: each[0] for key, each in buffer.sample(1000, n_step=n_step).items()}
        assert set(told(rows, n_step)) == set(stream.windows(10, n_step))


def test_a_sample_has_the_shape_and_the_types():
    stream = Stream(2, seed=1, spec=PARTS)
    buffer = uniform(spec=PARTS)
    buffer.add(stream.trajectory(20))
    batch = buffer.sample(5, 3, n_step=4)
    shapes = {name: (tuple(each.shape), each.dtype) for name, each in named_leaves(batch)}
    assert shapes == {
        "obs/camera": ((3, 5, 3), torch.uint8),
        "obs/arm/speed": ((3, 5, 3), torch.float32),
        "action": ((3, 5, 2), torch.float32),
        "steps": ((3, 5), torch.int64),
        "reward": ((3, 5, 4), torch.float32),
        "terminated": ((3, 5), torch.bool),
        "truncated": ((3, 5), torch.bool),
        "next_obs/camera": ((3, 5, 3), torch.uint8),
        "next_obs/arm/speed": ((3, 5, 3), torch.float32),
    }
    assert torch.equal(batch["obs"]["camera"].float(), batch["obs"]["arm/speed"])
    assert torch.equal(batch["next_obs"]["camera"].float(), batch["next_obs"]["arm/speed"])
    assert set(buffer.sample(5)) == set(batch) - {"steps"}


def test_every_transition_is_equally_likely():
    buffer = uniform(capacity=20)
    stream = Stream(2, seed=3)
    buffer.add(stream.trajectory(13))  # wraps
    drawn = buffer.sample(1000, 100)
    counts = np.bincount((drawn["reward"] * 8).long().flatten() % 1000)
    counts = counts[counts > 0]
    # chi-squared with 19 degrees of freedom: 43.8 is passed once in a thousand
    assert len(counts) == 20
    assert ((counts - 5000) ** 2 / 5000).sum() < 43.8


def test_it_keeps_copies():
    buffer = uniform(num_envs=1)
    trajectory = by_hand()
    buffer.add(trajectory)
    before = {name: each.clone() for name, each in named_leaves(everything(buffer))}
    for _, leaf in named_leaves({k: v for k, v in trajectory.items() if v is not None}):
        leaf.zero_()
    sample = buffer.sample(64)
    sample["obs"].zero_()
    assert all(torch.equal(each, before[name]) for name, each in named_leaves(everything(buffer)))


def test_the_last_ones_in_time_order():
    buffer = uniform(capacity=10)
    stream = Stream(2, seed=3, ends=0.0)
    buffer.add(stream.trajectory(7))
    assert buffer.last(3)["reward"].tolist() == [5.125, 6, 6.125]
    assert len(buffer.last(1000)["reward"]) == 10
    assert uniform().last(3)["reward"].shape == (0,)


def test_only_some_fields():
    stream = Stream(2, seed=3)
    config = UniformConfig(capacity=64, only=["obs", "next_obs"])
    view = UniformReplay(config, setup())
    view.add(stream.trajectory(7))
    assert set(view.sample(4)) == {"obs", "next_obs"}
    assert set(view.sample(4, n_step=3)) == {"obs", "next_obs", "steps"}
    assert set(view.sample(4, only=["reward"])) == set(view.last(4, only=["reward"])) == {"reward"}
    with pytest.raises(UserError, match=r"no 'rewards'.*'reward'"):
        view.sample(4, only=["rewards"])
    with pytest.raises(ValueError, match=r"only must name obs, .*, got rewards"):
        UniformConfig(only=["rewards"])


def test_it_is_a_buffer_and_a_replay():
    buffer = uniform()
    assert isinstance(buffer, Replay) and not buffer.ready() and len(buffer) == 0
    buffer.add(Stream(2, seed=0).trajectory(3))
    buffer.done()
    assert buffer.ready() and len(buffer) == 6
    buffer.reprioritize(torch.tensor([0]), torch.tensor([1.0]))


def test_impossible_sizes():
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        UniformConfig(capacity=0)
    with pytest.raises(UserError, match="capacity 3 is less than one step of 4 environments"):
        uniform(capacity=3, num_envs=4)


def test_frames_are_stored_once_and_pages_only_when_used():
    buffer = uniform(capacity=1000)
    ring = buffer.ring
    frames = sum(column.nbytes for name, column in ring.columns.items() if name == "obs")
    assert frames == 1000 * 12
    arrays = [*ring.columns.values(), *ring.finals.frames.values(), *ring.head.values()]
    arrays.append(ring.finals.which)
    assert buffer.bytes_needed == sum(array.nbytes for array in arrays)
