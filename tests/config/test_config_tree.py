"""The typed tree as data: YAML and back, hash, differences, descriptions."""

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import yaml

from rl_lab.config.catalog import BUILT_INS
from rl_lab.config.tree import ABSENT, config_hash, describe, diff, to_tree, to_yaml, tree_hash
from rl_lab.config.validate import validate
from rl_lab.core import registry
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig
from rl_lab.run.session import resume
from tiny_runs import tiny_run


def config(**blocks: Any) -> RunConfig:
    return validate({"version": 1, "environment": {"id": "CartPole-v1"}, **blocks}, {})


def test_the_tree_is_plain_data_and_comes_back_equal() -> None:
    first = config(
        algorithm={
            "name": "ppo",
            "learning_rate": "lin_1e-3",
            "clip_range": {"start": 1, "to": 0.5},
        },
        training={"phases": [{"name": "a", "hooks": ["collect", {"update": 2}]}]},
    )
    tree = to_tree(first)
    assert json.loads(json.dumps(tree)) == tree
    assert tree["algorithm"]["name"] == "ppo" and next(iter(tree["algorithm"])) == "name"
    assert validate(yaml.safe_load(to_yaml(first)), {}) == first


def test_the_tree_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        config().experiment.seed = 3  # type: ignore[misc]


def test_the_hash_sees_what_decides_the_run_and_nothing_else() -> None:
    plain = config_hash(config())
    same = config(experiment={"name": "x", "tags": ["y"]}, logging={"tensorboard": False})
    assert config_hash(same) == plain and len(plain) == 64
    written = config(algorithm={"name": "ppo", "gamma": 0.99})  # the default, written out
    assert config_hash(written) == plain
    for other in (
        config(experiment={"seed": 1}),
        config(algorithm={"gamma": 0.98}),
        config(network={"memory": "gru"}),
        config(training={"total_timesteps": 7}),
    ):
        assert config_hash(other) != plain


def test_diff_names_what_changed_appeared_and_went() -> None:
    left = {"a": {"b": 1, "c": [1, 2], "same": 0}, "gone": None, "kind": 1}
    right = {"a": {"b": 2, "c": [1, 3], "same": 0}, "came": {"x": 1}, "kind": True}
    assert diff(left, right) == [
        ("a.b", 1, 2),
        ("a.c", [1, 2], [1, 3]),
        ("gone", None, ABSENT),
        ("kind", 1, True),
        ("came.x", ABSENT, 1),
    ]
    assert diff(left, left) == []


def test_every_option_is_described() -> None:
    rows = describe(RunConfig)
    for name in BUILT_INS["workflow"]:
        rows += describe(registry.get("workflow", name).Config, "algorithm.")
    for kind in ("memory", "encoder"):
        for name in registry.names(kind):
            rows += describe(registry.get(kind, name).Config, f"network.{kind}.")
    by_path = {row.path: row for row in rows}
    assert [row.path for row in rows if not row.help] == []
    assert by_path["training.total_timesteps"][1:3] == ("int", 100_000)
    assert by_path["compute.threads"].type == "'auto' | int"
    assert by_path["evaluation.stop_at"].type == "float | null"
    assert by_path["algorithm.name"].default == "ppo"
    assert by_path["algorithm.optimizer.name"].default == "adam"


def test_a_run_of_an_earlier_version_resumes_and_an_edited_one_does_not(tmp_path, monkeypatch):
    """Options that came later are not in its config.yaml, nor in the hash that it saved."""
    from rl_lab.run import build

    def without_snapshot(tree):
        environment = {k: v for k, v in tree["environment"].items() if k != "snapshot"}
        return {**tree, "environment": environment}

    with monkeypatch.context() as patch:
        patch.setattr(build, "config_hash", lambda c: tree_hash(without_snapshot(to_tree(c))))
        run = tiny_run(tmp_path, "CartPole-v1:random", "algorithm.collect_steps=16").run
    text = run.config_file.read_text()
    written = without_snapshot(yaml.safe_load(text))
    run.config_file.write_text(yaml.safe_dump(written))
    assert resume("@last:768", root=tmp_path).exit_code == 0
    written["evaluation"]["episodes"] = 3
    run.config_file.write_text(yaml.safe_dump(written))
    with pytest.raises(UserError, match="was changed after the checkpoint"):
        resume("@last:768", root=tmp_path)
