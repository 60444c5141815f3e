"""Names to classes: built-ins, decorators, and the entry points of installed packages."""

from importlib.metadata import EntryPoint

import pytest

from rl_lab.core import registry
from rl_lab.core.errors import UserError


@pytest.fixture
def points(monkeypatch):
    """`points(name=target, …)`: as if installed packages had these entry points."""
    monkeypatch.setattr(registry, "_entries", {"buffer": {"own": "collections:OrderedDict"}})

    def install(**targets):
        found = [
            EntryPoint(name.replace("__", "."), target, registry.ENTRY_POINT_GROUP)
            for name, target in targets.items()
        ]
        monkeypatch.setattr(registry, "_plugins", None)
        monkeypatch.setattr(registry, "entry_points", lambda group: found)

    return install


def test_plug_ins_are_known_by_name_and_imported_when_asked_for(points):
    points(buffer__queue="collections:deque", buffer__never="no_such_module:X")
    assert registry.names("buffer") == ["never", "own", "queue"]
    assert registry.target("buffer", "queue") == "collections:deque"
    from collections import OrderedDict, deque

    assert registry.get("buffer", "queue") is deque
    assert registry.get("buffer", "own") is OrderedDict
    assert [each.name for each in registry.plugins("buffer")] == ["queue", "never"]
    assert registry.plugins("env") == []


def test_users_words_for_kinds(points):
    points(algorithm__a="collections:deque", network__b="m:B", environment__c="m:C")
    assert registry.names("workflow") == ["a"]
    assert registry.names("encoder") == ["b"]
    assert registry.names("env") == ["c"]
    registry.register("algorithm", "mine")(UserError)
    assert registry.get("workflow", "mine") is UserError


def test_a_name_that_is_taken_is_ignored_with_a_warning(points, caplog):
    points(buffer__own="collections:deque", nothing="collections:deque")
    from collections import OrderedDict

    assert registry.get("buffer", "own") is OrderedDict
    assert registry.plugins() == []
    assert "buffer 'own' of the package ? is ignored: RL Lab itself has that name" in caplog.text
    assert "'nothing' of ? is ignored: write kind.name" in caplog.text


def test_a_plug_in_may_register_itself_under_its_own_name(points):
    points(buffer__queue="collections:deque")
    from collections import deque

    registry.register("buffer", "queue")(deque)
    assert registry.get("buffer", "queue") is deque


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module:X", "cannot import 'no_such_module:X'"),
        ("collections:Deque", "'collections' has no 'Deque'"),
    ],
)
def test_a_broken_one_says_which_and_why(points, target, reason):
    points(buffer__bad=target)
    with pytest.raises(
        UserError, match=r"buffer .bad. of the package \S+ does not load: "
    ) as error:
        registry.get("buffer", "bad")
    assert reason in str(error.value)


def test_unknown_names_see_plug_ins_too(points):
    points(buffer__queue="collections:deque")
    with pytest.raises(UserError, match="did you mean 'queue'"):
        registry.get("buffer", "quue")
