"""Windows of frames against lists, and their rules by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.buffers.sequence import SequenceConfig, SequenceReplay
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import Replay
from rl_lab.core.schema import CheckpointConfig
from rl_lab.core.spec import EnvSpec
from rl_lab.core.tree import named_leaves
from rl_lab.records.checkpoint import CheckpointStore
from transition_stream import PARTS, SPEC, Stream, arrivals, box, setup

FLAGS = ("reset", "terminated", "truncated")


def sequence(capacity=64, num_envs=2, spec=SPEC, **options):
    return SequenceReplay(SequenceConfig(capacity=capacity, **options), setup(spec, num_envs))


def every_window(buffer, length):
    """All windows that could be drawn, once each: env, first position, rows [length, W]."""
    stretches = buffer.stretches()
    places = [
        (env, first)
        for env, begin, stop in zip(*stretches, strict=True)
        for first in range(begin, stop - length + 1)
    ]
    assert len(places) == buffer.windows(length)
    if not places:
        return []
    env, first = np.array(places).T
    batch = buffer.read_windows(env, first, length)
    return told({name: each[0] for name, each in batch.items()})


def told(batch):
    """Windows [L, W, …] as `arrivals` has its rows."""
    columns = [batch["obs"], batch["previous_action"][..., None], batch["reward"][..., None]]
    columns += [batch[flag][..., None] for flag in FLAGS]
    rows = torch.cat([column.double() for column in columns], -1)  # [L, W, 8]
    return [tuple(map(tuple, window)) for window in rows.transpose(0, 1).tolist()]


def expected_windows(stream, rows, length, within):
    found = []
    for frames in arrivals(stream, rows):
        for first in range(len(frames) - length + 1):
            window = frames[first : first + length]
            if not within or not any(frame[5] for frame in window[1:]):
                found.append(tuple(window))
    return found


@settings(max_examples=80, deadline=None)
@given(rows=st.integers(1, 12), seed=st.integers(0, 10**6), ends=st.sampled_from([0.0, 0.2, 1.0]))
def test_windows_are_no_longer_than_the_longest_episode(rows, seed, ends):
    """As many frames as the longest window of one episode; and there is always one to be drawn."""
    stream, buffer = Stream(2, seed, ends=ends), sequence(rows * 2, 2)
    assert buffer.window_length(9) == 0
    for length in (3, 1, 7):
        buffer.add(stream.trajectory(length))
        fits = [each for each in range(1, 30) if expected_windows(stream, rows, each, True)]
        assert buffer.window_length(50) == max(fits, default=0)
        assert buffer.window_length(2) == min(2, max(fits, default=0))
        assert not fits or buffer.ready(buffer.window_length(50))


def test_windows_within_episodes_are_not_cut():
    buffer = sequence(within_episodes=True)
    buffer.add(Stream(2, 0).trajectory(5))
    assert buffer.window_length(50) == 50


@settings(max_examples=150, deadline=None)
@given(
    num_envs=st.sampled_from([1, 2, 3, 8]),
    rows=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    events=st.lists(st.sampled_from(["go", "go", "restart", "lose"]), min_size=8, max_size=8),
    within=st.booleans(),
)
def test_it_holds_what_a_list_would_hold(num_envs, rows, seed, ends, lengths, events, within):
    stream = Stream(num_envs, seed, ends=ends)
    buffer = sequence(rows * num_envs, num_envs, within_episodes=within)
    for length, event in zip(lengths, events, strict=False):
        buffer.add(stream.trajectory(length))
        for window in (1, 2, 5):
            expected = expected_windows(stream, rows, window, within)
            assert sorted(every_window(buffer, window)) == sorted(expected)
            assert buffer.ready(window) == bool(expected)
        if event == "restart":
            stream.restart()
        elif event == "lose":
            stream.lose(env=seed % num_envs)


@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("within", [False, True])
def test_windows_after_a_wrap_go_on_in_time(num_envs, within):
    """Row 19: filled 1.5 times, every window there is."""
    stream = Stream(num_envs, seed=5, ends=0.1)
    buffer = sequence(40 * num_envs, num_envs, within_episodes=within)
    for _ in range(12):
        buffer.add(stream.trajectory(5))
    windows = every_window(buffer, 6)
    assert len(windows) > 10 * num_envs
    crossing = 0
    for window in windows:
        assert len({frame[0] for frame in window}) == 1  # one environment
        for before, after in pairwise(window):
            if after[5]:
                assert after[2] == 0 and after[1] == before[1] + 1  # the next episode begins
                assert before[6] or before[7]  # after the final frame of the one before
                crossing += 1
            else:
                assert after[1] == before[1] and after[2] == before[2] + 1
    assert bool(crossing) != within


def by_hand(steps, *, terminated=(), truncated=(), start=0, reset=(0,)):
    """One environment: frames start, start + 1, …; action and reward of step t are 10 + t."""
    t = torch.arange(start, start + steps, dtype=torch.float32)
    frames = torch.stack([t * 0, t * 0, t], -1)[:, None]
    flag = lambda at: torch.tensor([[step in at] for step in range(steps)])  # noqa: E731
    return {
        "obs": frames,
        "action": 10 + torch.arange(start, start + steps)[:, None],
        "reward": 10.0 + t[:, None],
        "terminated": flag(terminated),
        "truncated": flag(truncated),
        "next_obs": frames + torch.tensor([0.0, 0.0, 1.0]),
        "reset": flag(reset),
    }


@pytest.mark.parametrize("how", ["terminated", "truncated", "neither"])
def test_two_episodes_by_hand(how):
    buffer = sequence(num_envs=1)
    ends = {} if how == "neither" else {how: [2]}
    buffer.add(by_hand(3, **ends))
    assert not buffer.ready(4)  # what the third step led to is not known to be final
    buffer.add(by_hand(2, start=50))  # frames 50 51; the next one is not here yet
    ((*rows,),) = every_window(buffer, 6)
    final = [False, how == "terminated", how != "terminated"]
    assert [row[2:] for row in rows] == [
        (0, 0, 0, True, False, False),
        (1, 10, 10, False, False, False),
        (2, 11, 11, False, False, False),
        (3, 12, 12, *final),  # the final frame, with what led to it
        (50, 0, 0, True, False, False),
        (51, 60, 60, False, False, False),
    ]


def test_both_flags_are_a_termination():
    buffer = sequence(num_envs=1)
    buffer.add(by_hand(2, terminated=[1], truncated=[1]))
    buffer.add(by_hand(1))
    ((*rows,),) = every_window(buffer, 4)
    assert rows[2][5:] == (False, True, False)


def test_episodes_of_one_step():
    buffer = sequence(num_envs=1)
    buffer.add(by_hand(4, terminated=range(4), reset=range(4)))
    ((*rows,),) = every_window(buffer, 7)  # 0 1' 1 2' 2 3' 3
    assert [row[2] for row in rows] == [0, 1, 1, 2, 2, 3, 3]
    assert [row[5] for row in rows] == [True, False] * 3 + [True]
    assert [row[6] for row in rows] == [False, True] * 3 + [False]
    assert [row[3] for row in rows] == [0, 10, 0, 11, 0, 12, 0]


def test_the_shape_and_the_types():
    stream = Stream(3, seed=1, spec=PARTS)
    buffer = sequence(capacity=60, num_envs=3, spec=PARTS)
    buffer.add(stream.trajectory(30))
    batch = buffer.sequences(5, 7, count=2)
    shapes = {name: (tuple(each.shape), each.dtype) for name, each in named_leaves(batch)}
    assert shapes == {
        "obs/camera": ((2, 7, 5, 3), torch.uint8),
        "obs/arm/speed": ((2, 7, 5, 3), torch.float32),
        "previous_action": ((2, 7, 5, 2), torch.float32),
        "reward": ((2, 7, 5), torch.float32),
        **dict.fromkeys(FLAGS, ((2, 7, 5), torch.bool)),
    }
    assert torch.equal(batch["obs"]["camera"].float(), batch["obs"]["arm/speed"])
    assert (batch["previous_action"][batch["reset"]] == 0).all() and batch["reset"].any()
    assert (batch["obs"]["camera"][:, :, :, 0] == batch["obs"]["camera"][:, :1, :, 0]).all()


def test_burn_in_is_marked_until_an_episode_begins():
    buffer = sequence(num_envs=1, burn_in=3)
    buffer.add(by_hand(8, terminated=[2], reset=[3]))  # frames 0 1 2 3' | 3 4 5 6 7
    batch = buffer.sequences(300, 4)
    begins = [tuple(map(bool, each)) for each in batch["reset"][0].T]
    marked = [tuple(map(bool, each)) for each in batch["burn_in"][0].T]
    yes, no = True, False
    assert dict(zip(begins, marked, strict=True)) == {
        (yes, no, no, no): (no, no, no, no),
        (no, yes, no, no): (yes, no, no, no),
        (no, no, yes, no): (yes, yes, no, no),
        (no, no, no, yes): (yes, yes, yes, no),
        (no, no, no, no): (yes, yes, yes, no),
    }
    with pytest.raises(UserError, match="a window of 3 frames has none left after a burn_in of 3"):
        buffer.sequences(2, 3)
    assert "burn_in" not in sequence(num_envs=1).marked({"reset": batch["reset"]})


def test_every_window_is_equally_likely():
    stream = Stream(2, seed=3)
    for within in (False, True):
        buffer = sequence(capacity=20, within_episodes=within)
        buffer.add(stream.trajectory(13))  # wraps
        windows = every_window(buffer, 3)
        drawn = told({k: v[0] for k, v in buffer.sequences(50_000, 3).items()})
        numbers = {window: number for number, window in enumerate(windows)}
        counts = np.bincount([numbers[window] for window in drawn], minlength=len(windows))
        mean = 50_000 / len(windows)
        # chi-squared: mean k, variance 2k; five deviations
        freedom = len(windows) - 1
        assert freedom >= 4
        assert ((counts - mean) ** 2 / mean).sum() < freedom + 5 * np.sqrt(2 * freedom)


def test_fresh_windows_come_once_and_first():
    stream = Stream(2, seed=3, ends=0.2)
    buffer = sequence(capacity=2000, online=True)
    given, fresh = [], []
    for _ in range(30):
        buffer.add(stream.trajectory(7))
        if not buffer.ready(5):
            continue
        before = buffer.fresh.copy()
        batch = told({k: v[0] for k, v in buffer.sequences(4, 5).items()})
        count = int((buffer.fresh - before).sum()) // 5
        assert count <= 4
        fresh.append(count)
        given += batch[:count]
    assert sum(fresh) > 30 and min(fresh) >= 1
    by_env = [[row for window in given if window[0][0] == env for row in window] for env in (0, 1)]
    for rows, frames in zip(by_env, arrivals(stream, 10_000), strict=True):
        assert rows == frames[: len(rows)]  # every frame once, in order, none left out
        assert len(frames) - len(rows) < 5
    # all were given: the next are random
    before = buffer.fresh.copy()
    buffer.sequences(40, 5)
    assert (buffer.fresh == before).all()


def test_fresh_windows_that_were_overwritten_are_not_given():
    stream = Stream(1, seed=3, ends=0.2)
    buffer = sequence(capacity=20, num_envs=1, online=True)
    buffer.add(stream.trajectory(90))
    (frames,) = arrivals(stream, 20)
    batch = told({k: v[0] for k, v in buffer.sequences(2, 5).items()})
    assert batch == [tuple(frames[:5]), tuple(frames[5:10])]


@pytest.mark.parametrize("options", [{}, {"within_episodes": True}, {"online": True}])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_saved_in_files_and_loaded_equals_never_saved(tmp_path, options, num_envs):
    make = lambda: sequence(25 * num_envs, num_envs, PARTS, **options)  # noqa: E731
    stream = Stream(num_envs, seed=2, spec=PARTS)
    kept, moved = make(), make()
    store = CheckpointStore(tmp_path, CheckpointConfig())
    for turn in range(1, 15):
        trajectory = stream.trajectory(turn % 4 + 1)
        kept.add(trajectory)
        moved.add(trajectory)
        state = {"buffer": moved.state_dict(), "rng": moved.setup.rng.bit_generator.state}
        store.save(turn, state)
        if turn % 3 == 0:
            saved = store.load()[0]
            moved = make()
            moved.setup.rng.bit_generator.state = saved["rng"]
            moved.load_state_dict(saved["buffer"])
        if kept.ready(4):
            left, right = (dict(named_leaves(each.sequences(6, 4, 2))) for each in (kept, moved))
            assert all(torch.equal(left[name], right[name]) for name in left)
    assert kept.ring.oldest > 0 and kept.ready(4)
    assert [kept.windows(k) for k in range(1, 9)] == [moved.windows(k) for k in range(1, 9)]


def test_an_empty_buffer_can_be_saved():
    buffer, again = sequence(), sequence()
    again.load_state_dict(buffer.state_dict())
    assert not again.ready()
    again.add(Stream(2, seed=0).trajectory(3))
    assert again.ready(3)


def test_pictures_stay_bytes_and_are_copied_once(monkeypatch):
    picture = EnvSpec("Pictures", box((3, 8, 8), np.uint8), SPEC.action)
    buffer = sequence(capacity=100, num_envs=1, spec=picture)
    frames = torch.randint(0, 255, (51, 1, 3, 8, 8), dtype=torch.uint8)
    made = by_hand(50, truncated=[9, 29]) | {"obs": frames[:-1], "next_obs": frames[1:]}
    buffer.add(made)
    gathered = []
    take = buffer.ring.take
    monkeypatch.setattr(
        buffer.ring, "take", lambda name, at: gathered.append(take(name, at)) or gathered[-1]
    )
    obs = buffer.sequences(4, 20)["obs"]
    assert obs.dtype == torch.uint8
    (pictures,) = [each for each in gathered if each.dtype == np.uint8]
    assert np.shares_memory(obs.numpy(), pictures)


def test_it_is_a_buffer_and_a_replay_too():
    buffer = sequence()
    assert isinstance(buffer, Replay) and not buffer.ready() and len(buffer) == 0
    with pytest.raises(UserError, match="no window of 3 frames yet: collect more"):
        buffer.sequences(2, 3)
    buffer.add(Stream(2, seed=0).trajectory(3))
    buffer.done()
    assert buffer.ready() and len(buffer) == 6
    assert buffer.sample(4)["next_obs"].shape == (1, 4, 3)
    arrays = [*buffer.ring.columns.values(), *buffer.ring.finals.frames.values()]
    arrays += [*buffer.ring.head.values(), buffer.ring.finals.which]
    arrays += [buffer.streams.codes, buffer.streams.episodes]
    assert buffer.bytes_needed == sum(array.nbytes for array in arrays)


def test_what_cannot_be_asked_for():
    with pytest.raises(ValueError, match="online must be false where within_episodes is true"):
        SequenceConfig(online=True, within_episodes=True)


def test_the_newest_window_is_looked_at_without_drawing():
    stream, buffer = Stream(num_envs=2, seed=3), sequence(online=True)
    assert buffer.newest(4) is None
    buffer.add(stream.trajectory(12))
    before = buffer.setup.rng.bit_generator.state, buffer.fresh.copy()
    window = buffer.newest(4)
    assert buffer.setup.rng.bit_generator.state == before[0]
    assert list(buffer.fresh) == list(before[1])
    assert window["obs"].shape[:2] == (4, 1)
    assert told(window)[0] in expected_windows(stream, 64, 4, within=True)


def test_the_newest_window_is_of_one_episode():
    stream, buffer = Stream(num_envs=1, seed=3, ends=0.25), sequence(32, num_envs=1)
    older = 0
    for _ in range(40):
        buffer.add(stream.trajectory(2))
        (window,) = told(buffer.newest(6))
        there = [expected_windows(stream, 32, length, within=True) for length in range(1, 7)]
        longest = max(length for length, windows in enumerate(there, 1) if windows)
        assert window == there[longest - 1][-1]  # as long as there is any, the last of them
        older += window[-1] != there[0][-1][0]
    assert older > 5  # the episode that goes on is often too short


def test_the_newest_window_is_shorter_where_all_episodes_are():
    buffer = sequence(num_envs=1)
    buffer.add(by_hand(3, terminated=(2,)))
    buffer.add(by_hand(1, start=20))
    window = buffer.newest(10)
    assert window["obs"][:, 0, 2].tolist() == [0, 1, 2, 3]  # the final frame is one of them
    assert buffer.newest(2)["obs"][:, 0, 2].tolist() == [2, 3]
    assert buffer.newest(1)["obs"][:, 0, 2].tolist() == [20]
