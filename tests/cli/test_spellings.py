"""The ways in which one experiment may be written all mean the same tree."""

import json

import pytest

from rl_lab.cli.main import main
from rl_lab.cli.request import Request

PPO = ["CartPole-v1:ppo"]


@pytest.fixture
def tree(capsys):
    def tree(*words):
        assert main(["config", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return tree


@pytest.mark.parametrize(
    ("spelling", "same"),
    [
        (["+experiment=CartPole-v1/ppo"], PPO),
        (["experiment=CartPole-v1/ppo"], PPO),
        ([*PPO, "--total-timesteps", "5e3"], [*PPO, "training.total_timesteps=5000"]),
        ([*PPO, "--total_timesteps", "5_000"], [*PPO, "training.total_timesteps=5000"]),
        ([*PPO, "--max-timesteps", "5000"], [*PPO, "training.total_timesteps=5000"]),
        ([*PPO, "--seed", "7"], [*PPO, "experiment.seed=7"]),
        (["algorithm.gamma=0.9", *PPO], [*PPO, "algorithm.gamma=9e-1"]),
        (
            ["BipedalWalker-v3:ppo_gru_defaults"],
            ["environment.id=BipedalWalker-v3", "network.memory=gru"],
        ),
        (["Acrobot-v1"], ["environment.id=Acrobot-v1", "algorithm.name=ppo"]),
    ],
)
def test_two_spellings_one_tree(tree, spelling, same):
    assert tree(*spelling) == tree(*same)


def test_a_config_file_and_a_preset_folder(tree, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "version: 1\nenvironment: {id: CartPole-v1}\nalgorithm: {gamma: 0.5}\n"
    for file in ("mine.yaml", "more/experiment/CartPole-v1/mine.yaml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    expected = tree("environment.id=CartPole-v1", "algorithm.gamma=0.5")
    assert tree("--config", "mine.yaml") == expected
    assert tree("CartPole-v1:mine", "--config-dir", "more") == expected
    (tmp_path / "more").rename(tmp_path / "configs")  # ./configs is found by itself
    assert tree("CartPole-v1:mine") == expected


def test_resume_path_is_a_spelling_of_resume():
    from rl_lab.cli.train import _resumed

    assert _resumed(Request(words=["training.resume_path=@last"])) == "@last"
    words = ["+experiment=CartPole-v1/ppo", "training.resume_path=@last"]
    assert _resumed(Request(words=words)) == "@last"
    assert _resumed(Request(words=PPO)) is None


def test_the_runs_folder_comes_from_the_environment_variable(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RL_LAB_RUNS", str(tmp_path / "elsewhere"))
    assert main(["list"]) == 0
    assert str(tmp_path / "elsewhere") in capsys.readouterr().out
