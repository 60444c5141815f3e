"""A run that an agent of a W&B sweep has started takes what the agent wants tried."""

import json
import os
import sys
from pathlib import Path

import pytest

from rl_lab.cli.main import main
from rl_lab.config.compose import compose
from rl_lab.core.errors import UserError
from rl_lab.tuning.wandb_sweep import agent_words

WANTED = {
    "algorithm.gamma": {"value": 0.91},
    "algorithm": {"value": {"learning_rate": 0.25}},
    "environment.kwargs": {"value": {"is_slippery": False}},
}


@pytest.fixture
def agent(tmp_path: Path, monkeypatch):
    """What an agent leaves to the command that it starts, written by W&B itself."""
    config_util = pytest.importorskip("wandb.sdk.lib.config_util")
    for name in [each for each in os.environ if each.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "agent" / "config-abc.yaml"
    config_util.save_config_file_from_dict(str(file), WANTED)
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(file))
    return file


def test_what_the_agent_wants_becomes_overrides(agent):
    words = agent_words(os.environ)
    tree = compose("FrozenLake-v1:q_learning", ["algorithm.gamma=0.5", *words]).tree
    assert tree["algorithm"]["gamma"] == 0.91  # it comes last, so it wins
    assert tree["algorithm"]["learning_rate"] == 0.25
    assert tree["algorithm"]["name"] == "q_learning"  # a block is merged, not replaced
    assert tree["environment"]["kwargs"] == {"is_slippery": False}
    assert tree["logging"]["wandb"]["enabled"] is True


def test_train_runs_with_it_and_tracks(agent, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "disabled")  # nothing leaves this machine
    typed = ["FrozenLake-v1:q_learning", "algorithm.gamma=0.5", "logging.tensorboard=false"]
    command = ["train", *typed, "--total-timesteps", "200", "--json"]
    assert main([*command, "--runs-dir", str(tmp_path / "runs")]) == 0
    run = Path(json.loads(capsys.readouterr().out)["path"])
    config = (run / "config.yaml").read_text()
    assert "gamma: 0.91" in config and "learning_rate: 0.25" in config
    assert "W&B: disabled (WANDB_MODE)" in (run / "logs" / "run.log").read_text()


def test_without_an_agent_nothing_is_asked_for():
    assert agent_words({}) == []
    assert agent_words({"WANDB_SWEEP_ID": ""}) == []


def test_what_is_missing_is_said_in_one_line(agent, tmp_path: Path, monkeypatch, capsys):
    with pytest.raises(UserError, match="WANDB_SWEEP_PARAM_PATH: start this with `wandb agent`"):
        agent_words({"WANDB_SWEEP_ID": "s1"})
    with pytest.raises(UserError, match="cannot read"):
        agent_words({**os.environ, "WANDB_SWEEP_PARAM_PATH": str(tmp_path / "none")})
    agent.write_text("algorithm.gamma: 0.9\n")
    with pytest.raises(UserError, match="is no file of an agent"):
        agent_words(os.environ)
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert main(["train", "FrozenLake-v1:q_learning", "--runs-dir", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0 and "wandb is not installed: pip install" in said
    assert not (tmp_path / "runs").exists()
