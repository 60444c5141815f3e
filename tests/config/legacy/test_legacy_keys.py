"""Version 0: configs of the earlier projects load as they are printed."""

from pathlib import Path
from typing import Any

import pytest

from rl_lab.config.compose import Composed, compose
from rl_lab.config.legacy.keys import RENAMED, new_name, upgrade
from rl_lab.config.tree import to_tree
from rl_lab.config.validate import validate
from rl_lab.core.errors import ConfigError, UserError
from seed_files import MASTER, SOLVER


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, *overrides: str) -> Composed:
    Path("old.yaml").write_text(text)
    return compose(None, overrides, config_file=Path("old.yaml"))


def renamed(tree: dict[str, Any]) -> dict[str, Any]:
    return upgrade(tree, {})[0]


def test_the_master_experiment_config_of_the_mono_repo_runs_as_it_is() -> None:
    composed = load(MASTER)
    config = validate(composed.tree, composed.origins)
    assert config.environment.id == "CartPole-v1" and config.environment.normalize_obs is True
    assert config.algorithm.learning_rate == 3e-4 and config.algorithm.clip_range == 0.2
    assert config.algorithm.value_coefficient == 0.5
    assert config.algorithm.entropy_coefficient == 0.01
    assert config.algorithm.rollout_steps * config.environment.num_envs == 2048
    assert config.evaluation.every_steps == 10_000 and config.evaluation.episodes == 10
    assert config.checkpoint.every_steps == 50_000
    assert config.network.encoder.hidden_dims == [64, 64] and not config.network.shared_torso
    assert config.logging.wandb.enabled and config.experiment.device == "auto"
    assert to_tree(config)["version"] == 1


def test_the_flat_keys_of_the_solver() -> None:
    composed = load(SOLVER)
    config = validate(composed.tree, composed.origins)
    assert config.environment.id == "CartPole-v1" and config.environment.num_envs == 4
    assert config.environment.wrappers == [{"id": "MaskObservation", "indices": [1, 3]}]
    assert config.environment.normalize_obs == "running"
    assert config.algorithm.rollout_steps == 32 and config.algorithm.batch_size == 0.25
    assert config.algorithm.learning_rate.start == 0.001


def test_one_line_says_so_and_origins_move_along() -> None:
    composed = load(MASTER)
    assert len(composed.notes) == 1 and "\n" not in composed.notes[0]
    assert composed.notes[0].startswith(
        "old.yaml: version 0, read as version 1 (experiment.device cuda → auto, environment.name →"
    )
    assert str(composed.origins["algorithm.learning_rate"]) == "old.yaml:9"
    assert str(composed.origins["algorithm.rollout_steps"]) == "old.yaml:34"
    assert str(composed.origins["network.encoder.hidden_dims"]) == "old.yaml:25"
    assert not {"algorithm.lr", "buffer.size", "network.actor.type"} & composed.origins.keys()


def test_a_problem_in_an_old_file_points_to_the_old_line() -> None:
    composed = load(MASTER.replace("3e-4", "fast"))
    with pytest.raises(ConfigError, match=r"algorithm\.learning_rate: .*'fast' — old\.yaml:9"):
        validate(composed.tree, composed.origins)


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_every_old_name_arrives(old: str) -> None:
    value: Any = {"x": 1} if "." not in RENAMED[old] else 1
    tree: dict[str, Any] = {}
    *parents, key = old.split(".")
    here = tree
    for parent in parents:
        here = here.setdefault(parent, {})
    here[key] = value
    there: Any = renamed(tree)
    for word in RENAMED[old].split("."):
        there = there[word]
    assert there == value


def test_the_particles_of_soft_q_learning() -> None:
    composed = load(
        "env_id: MultiGoal-v0\n"
        "algorithm: {name: sql, value_n_particles: 20, kernel_n_particles: 30}\n"
    )
    config = validate(composed.tree, composed.origins)
    assert config.algorithm.value_particles == 20 and config.algorithm.kernel_particles == 30


def test_names_of_the_replay_family() -> None:
    text = "env_id: Pendulum-v1\nalgorithm: {{name: sac, tau: 0.01, {}: 2}}\n"
    for word in ("utd", "utd_ratio"):
        composed = load(text.format(word))
        config = validate(composed.tree, composed.origins)
        assert config.algorithm.target_rate == 0.01 and config.algorithm.replay_ratio == 2


@pytest.mark.parametrize(
    ("old", "new"), [("tau", "target_rate"), ("utd_ratio", "replay_ratio"), ("utd", "replay_ratio")]
)
def test_in_a_file_of_today_they_are_hints(old: str, new: str) -> None:
    composed = compose("Pendulum-v1:sac", [f"algorithm.{old}=1"])
    message = rf"algorithm\.{old}: unknown key \(did you mean '{new}'\?\)"
    with pytest.raises(ConfigError, match=message):
        validate(composed.tree, composed.origins)


def test_old_and_new_overrides_both_reach_the_option() -> None:
    for word in ("algorithm.lr=1e-3", "algorithm.learning_rate=1e-3"):
        composed = load(MASTER, word)
        assert composed.tree["algorithm"]["learning_rate"] == 1e-3
        assert "lr" not in composed.tree["algorithm"]
        assert str(composed.origins["algorithm.learning_rate"]) == "command line"


def test_a_gpu_is_optional_in_an_old_file_and_strict_where_it_is_typed() -> None:
    assert load(MASTER).tree["experiment"]["device"] == "auto"
    assert load(MASTER, "experiment.device=cuda").tree["experiment"]["device"] == "cuda"


def test_the_same_option_twice_is_refused() -> None:
    with pytest.raises(UserError, match=r"algorithm\.lr: the same option as .*old\.yaml:2"):
        load("algorithm:\n  lr: 1\n  learning_rate: 2\n")


def test_buffers() -> None:
    sizes = {"buffer": {"type": "trajectory", "size": 2048}, "environment": {"n_envs": 4}}
    assert renamed(sizes)["algorithm"] == {"rollout_steps": 512} and "buffer" not in renamed(sizes)
    assert renamed({"buffer": {"type": "replay", "size": 9}})["buffers"] == {
        "replay": {"type": "uniform", "capacity": 9}
    }


def test_networks_of_different_widths_become_heads() -> None:
    actor = {"type": "mlp", "hidden_dims": [64], "activation": "tanh"}
    critic = {"type": "mlp", "hidden_dims": [256], "activation": "relu"}
    network = renamed({"network": {"actor": actor, "critic": critic}})["network"]
    assert network == {
        "encoder": {"type": "mlp", "hidden_dims": []},
        "actor": {"hidden_dims": [64], "activation": "tanh"},
        "critic": {"hidden_dims": [256], "activation": "relu"},
    }


def test_a_workflow_file_of_the_phase_lab() -> None:
    tree = {
        "workflow": {"_target_": "src.workflows.mine.Mine"},
        "algorithm": {"learning_rate": 1},
        "components": {"encoder": {"x": 1}},
        "controllers": {"actor": {"y": 2}},
    }
    assert renamed(tree)["algorithm"] == {"learning_rate": 1, "_target_": "src.workflows.mine.Mine"}
    assert renamed(tree)["components"] == {"encoder": {"x": 1}, "actor": {"y": 2}}


def test_nothing_old_means_no_note() -> None:
    tree, _, note = upgrade({"environment": {"id": "x"}}, {})
    assert tree == {"version": 1, "environment": {"id": "x"}} and note is None


def test_new_names_for_hints() -> None:
    assert new_name("algorithm.lr") == "learning_rate"
    assert new_name("training.eval_frequency") == "evaluation.every_steps"
    assert new_name("algorithm.gamma") is None
