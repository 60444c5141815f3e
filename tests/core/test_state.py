import numpy as np
import pytest
import torch

from rl_lab.core.seeding import Streams, integer
from rl_lab.core.state import differences, fingerprint, join, split
from rl_lab.core.tree import where_rows

TREE = {
    "weights": torch.arange(6.0).reshape(2, 3).T,
    "moments": {"mean": np.array(1 / 3), "count": 2**60},
    "words": np.arange(4, dtype=np.uint32),
    "list": [1, 2.5, None, True, "text", torch.tensor(True)],
    "empty": {},
}


def test_split_and_join_keep_every_bit_and_kind():
    tensors, skeleton = split(TREE)
    again = join(tensors, skeleton)
    assert fingerprint(again) == fingerprint(TREE)
    assert isinstance(again["words"], np.ndarray)
    assert isinstance(again["weights"], torch.Tensor)


def test_a_saved_tensor_does_not_follow_the_original():
    weights = torch.zeros(3)
    tensors, _ = split({"w": weights})
    weights += 1
    assert tensors["/w"].sum() == 0


@pytest.mark.parametrize(
    "bad", [{1.5: "key"}, {"x": object()}, {"x": np.array([object()])}, {"x": {1, 2}}]
)
def test_what_cannot_be_saved_is_refused_with_its_path(bad):
    with pytest.raises(TypeError, match="state at"):
        split(bad)


def test_differences_are_named():
    other = {**TREE, "moments": {"mean": np.array(0.5), "count": 2**60}}
    assert differences(TREE, other) == ["/moments/mean"]
    assert differences(TREE, TREE) == []


def test_where_rows():
    old, new = {"h": torch.ones(3, 2)}, {"h": torch.zeros(3, 2)}
    mixed = where_rows(torch.tensor([True, False, True]), new, old)
    assert mixed["h"][:, 0].tolist() == [0, 1, 0]


def draws(streams: Streams) -> list[float]:
    return [
        streams.numpy("a").random(),
        float(torch.rand(1, generator=streams.torch("a"))),
        float(torch.rand(1)),
        float(np.random.random()),
    ]


def test_streams_continue_exactly():
    streams = Streams(7)
    draws(streams)
    saved = join(*split(streams.state_dict()))
    expected = draws(streams)
    fresh = Streams(1)
    fresh.load_state_dict(saved)
    assert draws(fresh) == expected


def test_borrowed_streams_come_back_and_are_the_same_every_time():
    streams = Streams(7)
    draws(streams)
    before = fingerprint(streams.state_dict())
    with streams.borrowed("eval/"):
        first = draws(streams)
    assert fingerprint(streams.state_dict()) == before
    draws(streams)
    with streams.borrowed("eval/"):
        assert draws(streams) == first


def test_names_and_seeds_give_different_streams():
    values = {integer(seed, name, key) for seed in (0, 1) for name in ("a", "b") for key in (0, 1)}
    assert len(values) == 8


def test_a_stream_that_an_evaluation_asks_for_first_is_not_the_runs():
    untouched = Streams(7).numpy("late").random()
    streams = Streams(7)
    with streams.borrowed("eval/"):
        held = streams.numpy("late")
        first = held.random()
        streams.torch("later").seed()
    assert first != untouched
    assert streams.numpy("late") is held and held.random() == untouched
    assert streams.torch("later").initial_seed() == Streams(7).torch("later").initial_seed()
    with streams.borrowed("eval/"):
        assert streams.numpy("late").random() == first
