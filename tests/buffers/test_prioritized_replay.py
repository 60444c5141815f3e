"""Priorities: the tree against plain sums, weights by hand, draws counted."""

import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from rl_lab.buffers.sum_tree import SumTree
from rl_lab.core.errors import NonFiniteError
from transition_stream import Stream, setup, told


def prioritized(capacity=4, num_envs=1, *, alpha=1.0, eps=1e-12, **more):
    config = PrioritizedConfig(capacity=capacity, alpha=alpha, eps=eps)
    return PrioritizedReplay(config, setup(num_envs=num_envs, **more))


def filled(errors, *, alpha=1.0):
    buffer = prioritized(len(errors), alpha=alpha)
    buffer.add(Stream(1, seed=0).trajectory(len(errors)))
    buffer.reprioritize(torch.arange(len(errors)), torch.tensor(errors))
    return buffer


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_the_tree_is_what_plain_sums_are(size, seed):
    rng = np.random.default_rng(seed)
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(30):
        index = rng.integers(size, size=rng.integers(1, 6))
        value = rng.random(len(index)) * (rng.random(len(index)) > 0.2)
        tree.set(index, value)
        plain[index] = value
        assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
        assert tree.get(np.arange(size)).tolist() == plain.tolist()
        node = np.arange(1, tree.leaves)
        assert (tree.sums[node] == tree.sums[2 * node] + tree.sums[2 * node + 1]).all()
    if tree.total:
        edges = np.cumsum(plain)
        points = rng.random(50) * tree.total
        assert tree.find(points).tolist() == np.searchsorted(edges, points, side="right").tolist()
        beyond = tree.find(np.array([0.0, tree.total, tree.total * (1 + 1e-9)]))
        assert (plain[beyond] > 0).all()  # rounding never finds a leaf that is not there


@pytest.mark.parametrize(
    ("beta", "expected"), [(1.0, [1, 0.5, 1 / 3, 0.25]), (0.5, [1, 0.7071068, 0.5773503, 0.5])]
)
def test_weights_by_hand(beta, expected):
    # P = p / 10, N = 4, w = (4 p / 10) ** -beta, divided by that of the smallest p drawn, 1
    buffer = filled([1.0, -2.0, 3.0, -4.0])
    batch = buffer.sample(100, beta=beta)
    weights = dict(zip(batch["index"][0].tolist(), batch["weight"][0].tolist(), strict=True))
    assert [weights[row] for row in range(4)] == pytest.approx(expected)


def test_the_largest_weight_is_that_of_the_minibatch():
    # One row with an error near 0 must not make the weights of all others vanish.
    buffer = filled([1e-3, 2.0, 4.0, 4.0])
    batch = buffer.sample(4)
    assert set(batch["index"][0].tolist()) == {1, 2, 3}
    assert sorted(batch["weight"][0].tolist()) == pytest.approx([0.5, 0.5, 0.5, 1.0])


def test_each_of_several_minibatches_has_its_own_largest_weight():
    buffer = filled([1.0, 2.0, 3.0, 4.0])
    batch = buffer.sample(2, 50, beta=0.5)
    priority = batch["index"] + 1.0
    expected = (priority.amin(1, keepdim=True) / priority) ** 0.5
    torch.testing.assert_close(batch["weight"], expected)
    assert len(set(priority.amin(1).tolist())) > 1


def test_rows_are_drawn_in_proportion():
    buffer = filled([1.0, 2.0, 3.0, 4.0])
    # minibatches of one row: independent draws; 16.27 is passed once in a thousand
    drawn = buffer.sample(1, 100_000)["index"].numpy().flatten()
    expected = np.array([0.1, 0.2, 0.3, 0.4]) * 100_000
    assert ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum() < 16.27
    # stratified: of ten rows exactly 1, 2, 3 and 4
    assert np.bincount(buffer.sample(10)["index"][0].numpy()).tolist() == [1, 2, 3, 4]


def test_alpha_is_the_power_and_eps_is_added_before_it():
    buffer = prioritized(4, alpha=0.5, eps=0.25)
    buffer.add(Stream(1, seed=0).trajectory(4))
    assert buffer.tree.get(np.arange(4)).tolist() == [1, 1, 1, 1]
    buffer.reprioritize(torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0.0, 2.0], [-6.0, 3.75]]))
    assert buffer.tree.get(np.arange(4)).tolist() == [0.5, 1.5, 2.5, 2.0]


def test_new_rows_have_the_largest_priority_so_far():
    buffer = filled([1.0, 2.0, 8.0, 4.0])
    buffer.reprioritize(torch.tensor([2]), torch.tensor([0.5]))
    stream = Stream(1, seed=1)
    buffer.add(stream.trajectory(2))  # over the oldest two
    assert buffer.tree.get(np.arange(4)).tolist() == pytest.approx([8, 8, 0.5, 4])


def test_an_index_names_the_row_that_was_drawn_after_wraps():
    stream, buffer = Stream(3, seed=2), prioritized(3 * 8, 3)
    for _ in range(5):
        buffer.add(stream.trajectory(3))
    batch = buffer.sample(2000, n_step=3)
    rows = {key: each[0] for key, each in batch.items()}
    assert len(buffer) == 24 and set(rows["index"].tolist()) == set(range(24))
    assert set(told(rows, 3)) == set(stream.windows(8, 3))
    place = buffer.ring.columns["reward"][rows["index"].numpy()]
    assert place.tolist() == rows["reward"][:, 0].tolist()


def test_a_long_trajectory_replaces_everything():
    buffer, stream = prioritized(6, 2), Stream(2, seed=0)
    buffer.add(stream.trajectory(10))
    assert buffer.tree.total == 6.0
    assert set(buffer.sample(100)["index"].flatten().tolist()) == set(range(6))


def test_bad_numbers_change_nothing():
    buffer = filled([1.0, 2.0])
    before = buffer.tree.sums.copy()
    with pytest.raises(NonFiniteError):
        buffer.reprioritize(torch.tensor([0, 1]), torch.tensor([3.0, float("nan")]))
    assert (buffer.tree.sums == before).all() and buffer.largest == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\], got 1.5"),
        ({"eps": 0.0}, "eps must be positive"),
    ],
)
def test_impossible_settings(wrong, said):
    with pytest.raises(ValueError, match=said):
        PrioritizedConfig(**wrong)


def test_the_memory_it_asks_for_is_what_it_makes():
    buffer = prioritized(1000, 2)
    ring = buffer.ring
    arrays = [*ring.columns.values(), *ring.finals.frames.values(), *ring.head.values()]
    arrays.append(ring.finals.which)
    assert buffer.bytes_needed == sum(array.nbytes for array in [*arrays, buffer.tree.sums])
