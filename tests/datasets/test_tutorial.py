"""docs/datasets.md as a reader follows it, with small numbers."""

import re
import shlex
from pathlib import Path

import pytest

from rl_lab.api import load_policy
from rl_lab.cli.main import main
from rl_lab.datasets.folder import Folder

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUICK = (
    "environment.max_episode_steps=20 network.actor.hidden_dims=[8] "
    "network.critic.hidden_dims=[8] algorithm.learning_starts=16 algorithm.batch_size=8 "
    "evaluation.episodes=2 evaluation.test_episodes=2 logging.report=false"
)
SHORTER = {
    "4000": "160",
    "4_000": "60",
    "every_steps=1000": "every_steps=80",
    "--episodes 20": "--episodes 2 --batch 1 --references 1",
    "1_000": "5",
    "2_000": "5",
    "repeat: 6": "repeat: 2",
}


def shorter(text):
    for old, new in SHORTER.items():
        text = text.replace(old, new)
    return text


@pytest.fixture
def tutorial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_DATASETS")  # beside the runs, as it is for a reader
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    section = PAGE.read_text().partition("## From a dataset")[2].partition("\n## ")[0]
    blocks = FENCE.findall(section)
    documents = [shorter(text) for kind, text in blocks if kind == "yaml"]
    commands = [
        shorter(line.removeprefix("rl-lab "))
        for kind, text in blocks
        if kind == "bash"
        for line in text.splitlines()
    ]
    return documents, commands


def test_from_a_dataset_to_a_deployed_policy(tutorial, tmp_path, capsys):
    (offline, online), commands = tutorial
    Path("offline.yaml").write_text(offline)
    Path("online.yaml").write_text(online)
    done = []
    for command in [*commands, "train --config online.yaml"]:
        if command.startswith("train"):
            command += f" {QUICK}"
        if command.startswith("evaluate"):
            command = command.replace(" --batch 1 --references 1", "")
        assert main(shlex.split(command)) == 0, command
        done.append(command.split()[0])
        said = capsys.readouterr().out
        if command.startswith("evaluate"):
            assert "· normalized" in said
    assert done == ["train", *["dataset"] * 3, "train", "evaluate", "export-policy", "train"]
    assert Folder.open("pendulum/replay").about["episodes"] == 8
    assert Path("policy.pt").stat().st_size > 1000
    rows = [each.read_text() for each in sorted(Path("runs").glob("*td3*/metrics.jsonl"))]
    assert len(rows) == 1 and rows[0].count("eval/normalized_return") >= 1
    assert load_policy("@last").loaded.config.algorithm.name == "sac"
