"""A mixture of buffers: exact shares, and priorities that find their way back."""

import numpy as np
import pytest
import torch

from rl_lab.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.buffers.rollout import RolloutBuffer, RolloutConfig
from rl_lab.buffers.union import UnionConfig, UnionReplay, divided
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import Replay
from rl_lab.core.state import fingerprint
from transition_stream import Stream, setup


def uniform(offset, **options):
    """Rewards of this buffer begin with `offset`."""
    buffer = UniformReplay(UniformConfig(capacity=64, **options), setup())
    buffer.add(rows(offset))
    return buffer


def rows(offset, steps=10):
    made = Stream(2, seed=0).trajectory(steps)
    return {**made, "reward": made["reward"] + offset}


def union(of, **others):
    return UnionReplay(UnionConfig(of=of), setup(others=others))


def test_every_minibatch_has_its_share_of_each():
    mixed = union({"replay": 0.75, "demos": 0.25}, demos=uniform(1000), replay=uniform(0))
    batch = mixed.sample(8, 5, n_step=3)
    assert batch["reward"].shape == (5, 8, 3) and batch["obs"].shape == (5, 8, 3)
    first = batch["reward"][..., 0]
    assert (first[:, :6] < 1000).all() and (first[:, 6:] >= 1000).all()
    assert len(mixed) == 40 and mixed.ready() and isinstance(mixed, Replay)


@pytest.mark.parametrize(
    ("size", "shares", "expected"),
    [
        (8, {"a": 0.75, "b": 0.25}, [6, 2]),
        (10, {"a": 3, "b": 1}, [8, 2]),  # 7.5 and 2.5: the first wins the tie
        (10, {"a": 1, "b": 1, "c": 1}, [4, 3, 3]),
        (7, {"a": 0.2, "b": 0.3, "c": 0.5}, [1, 2, 4]),  # 1.4, 2.1, 3.5: c gets the last one
    ],
)
def test_rows_are_divided_by_the_largest_remainder(size, shares, expected):
    assert list(divided(size, shares).values()) == expected


def test_what_is_added_goes_to_the_first():
    replay, demos = uniform(0), uniform(1000)
    mixed = union({"replay": 1, "demos": 1}, demos=demos, replay=replay)
    mixed.add(rows(0))
    assert (len(replay), len(demos)) == (40, 20)


def test_keys_that_one_part_does_not_have_are_left_out():
    videos = uniform(0, only=["obs", "next_obs"])
    mixed = union({"videos": 1, "replay": 1}, videos=videos, replay=uniform(0))
    assert set(mixed.sample(4)) == {"obs", "next_obs"}
    assert set(mixed.sample(4, only=["obs"])) == {"obs"}


def test_priorities_find_their_way_back():
    config = PrioritizedConfig(capacity=20, alpha=1.0)
    one, two = (PrioritizedReplay(config, setup(seed=seed)) for seed in (1, 2))
    for part in (one, two):
        part.add(rows(0))
    mixed = union({"one": 1, "plain": 1, "two": 1}, one=one, plain=uniform(0), two=two)
    batch = mixed.sample(30, 2)
    assert (batch["weight"] == 1).all() and batch["index"].shape == (2, 30)
    error = torch.arange(60.0).reshape(2, 30) + 5
    mixed.reprioritize(batch["index"], error)
    for part, place in ((one, slice(0, 10)), (two, slice(20, 30))):
        index = batch["index"][:, place].flatten().numpy() // 3
        last = dict(zip(index.tolist(), error[:, place].flatten().tolist(), strict=True))
        changed = part.tree.get(np.array(list(last)))
        assert changed.tolist() == pytest.approx(list(last.values()), rel=1e-5)
        rewards = part.ring.columns["reward"][index]
        assert rewards.tolist() == batch["reward"][:, place].flatten().tolist()


def test_it_saves_nothing_of_its_own():
    mixed = union({"replay": 1}, replay=uniform(0))
    assert mixed.state_dict() == {} and mixed.bytes_needed == 0
    before = fingerprint(mixed.parts["replay"].state_dict())
    mixed.load_state_dict({})
    mixed.done()
    assert fingerprint(mixed.parts["replay"].state_dict()) == before


def test_it_waits_for_every_part():
    empty = UniformReplay(UniformConfig(capacity=64), setup())
    assert not union({"a": 1, "b": 1}, a=uniform(0), b=empty).ready()


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(UserError, match=r"no buffer 'demo' is named before it .*'demos'"):
        union({"demo": 1}, demos=uniform(0))
    with pytest.raises(UserError, match="'rollout' is not a replay buffer"):
        union({"rollout": 1}, rollout=RolloutBuffer(RolloutConfig(), setup()))
    with pytest.raises(UserError, match="a batch of 2 has no row of 'b'"):
        divided(2, {"a": 0.9, "b": 0.1})
    with pytest.raises(ValueError, match="of must not be empty"):
        UnionConfig(of={})
    with pytest.raises(ValueError, match=r"of\.demos must be positive, got 0"):
        UnionConfig(of={"demos": 0})
