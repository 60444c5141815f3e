"""What an algorithm wants of other blocks stands below everything that the user writes."""

from typing import Any, ClassVar

import pytest

from rl_lab.algorithms.base import Workflow
from rl_lab.config.tree import to_tree
from rl_lab.config.validate import merged, validate
from rl_lab.core import registry
from rl_lab.core.errors import ConfigError


class Wide(Workflow):
    """Wants other networks than the lab's own, and a buffer by name."""

    defaults: ClassVar[dict[str, Any]] = {
        "network": {"encoder": {"type": "auto", "hidden_dims": [7]}, "shared_torso": True},
        "buffers": {"replay": {"type": "rollout"}},
    }

    def act(self, obs, state, *, deterministic):
        raise NotImplementedError


@pytest.fixture(autouse=True)
def local(monkeypatch):
    monkeypatch.setitem(registry._entries["workflow"], "wide", Wide)


def tree(**blocks: Any) -> dict[str, Any]:
    written = {"version": 1, "environment": {"id": "CartPole-v1"}, "algorithm": {"name": "wide"}}
    return to_tree(validate({**written, **blocks}, {}))


def test_defaults_stand_where_nothing_is_written():
    found = tree()
    assert found["network"]["encoder"]["hidden_dims"] == [7]
    assert found["network"]["shared_torso"] is True
    assert found["buffers"] == {"replay": {"type": "rollout"}}
    assert tree(algorithm={"name": "ppo"})["network"]["encoder"]["hidden_dims"] == [64, 64]
    assert tree(algorithm={"name": "ppo"})["buffers"] == {}


def test_what_is_written_counts_and_the_rest_stays():
    found = tree(network={"encoder": {"activation": "relu"}, "shared_torso": False})
    assert found["network"]["encoder"]["hidden_dims"] == [7]
    assert found["network"]["encoder"]["activation"] == "relu"
    assert found["network"]["shared_torso"] is False


def test_a_block_of_another_type_has_none_of_its_keys():
    found = tree(network={"encoder": {"type": "mlp"}})
    assert found["network"]["encoder"]["hidden_dims"] == [64, 64]


def test_own_buffers_are_the_only_ones_and_a_known_name_is_filled_up():
    assert list(tree(buffers={"mine": {"type": "rollout"}})["buffers"]) == ["mine"]
    both = {"replay": {}, "more": {"type": "rollout"}}
    assert tree(buffers=both)["buffers"] == {key: {"type": "rollout"} for key in both}


def test_merging_changes_neither_tree():
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merged(below, above) == {"a": {"b": 1, "c": 2}}
    assert (below, above) == ({"a": {"b": 1}}, {"a": {"c": 2}})


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ({"replay": {"type": "rollout", "capacty": 3}}, "buffers.replay.capacty: unknown key"),
        ({"mine": {}}, "buffers.mine: needs a type"),
        ({"mine": 3}, "buffers.mine: must be a block with a type, got 3"),
        (["replay"], "buffers: must be a block of names"),
    ],
)
def test_a_mistake_in_a_buffer_is_told_with_its_place(buffers, message):
    with pytest.raises(ConfigError, match=message):
        tree(buffers=buffers)
