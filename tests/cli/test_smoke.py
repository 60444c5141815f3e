"""`rl-lab smoke` runs what it lists, and tells failed from skipped."""

import json

import gymnasium as gym
import pytest

from rl_lab.cli import smoke
from rl_lab.cli.main import main
from rl_lab.core import registry
from rl_lab.core.errors import UserError

BROKEN = """\
import gymnasium as gym
from rl_lab import register_environment

@register_environment("Falling-v0")
class Falling(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        raise RuntimeError("the world fell apart")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_LAB_RUNS", str(tmp_path / "runs"))
    yield tmp_path
    registry._entries.get("env", {}).pop("Falling-v0", None)
    gym.registry.pop("Falling-v0", None)


def test_presets_are_trained_and_environments_stepped(folder, capsys):
    assert main(["smoke", "FrozenLake-v1", "--timesteps", "100", "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["ok"] and {(row["what"], row["name"]) for row in found["results"]} == {
        ("train", "FrozenLake-v1:dreamer_v2"),
        ("train", "FrozenLake-v1:dreamer_v3"),
        ("train", "FrozenLake-v1:ppo"),
        ("train", "FrozenLake-v1:q_learning"),
        ("train", "FrozenLake-v1:sarsa"),
        ("step", "FrozenLake-v1"),
    }
    assert all(row["status"] == "ok" and row["seconds"] > 0 for row in found["results"])
    assert "[3/6] train FrozenLake-v1:ppo" in printed.err  # progress
    assert not (folder / "runs").exists()


def test_a_preset_whose_dataset_is_not_here_is_skipped(capsys):
    assert main(["smoke", "Pendulum-v1:iql", "--presets", "--limit", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["status"] == "skipped"
    assert row["detail"].startswith("buffers.data: pendulum/replay is missing")


def test_only_one_kind_and_a_limit(capsys):
    assert main(["smoke", "cartpole", "--envs", "--limit", "1", "--timesteps", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["what", "name", "status", "seconds", "detail"]
    assert lines[1].split()[:3] == ["step", "CartPole-v0", "ok"]
    assert lines[-1] == "1 ok, 0 failed, 0 skipped"


def test_an_unknown_text_is_an_error(capsys):
    assert main(["smoke", "no such thing"]) == 2
    assert "nothing has 'no such thing' in its name" in capsys.readouterr().err


def test_a_failure_is_reported_and_the_others_go_on(folder, capsys):
    presets = folder / "configs" / "experiment" / "mine"
    presets.mkdir(parents=True)
    (folder / "broken.py").write_text(BROKEN)
    text = "version: 1\nalgorithm: {name: random}\nenvironment: {id: ID, num_envs: 2}\n"
    plugin = f"plugins: [{folder / 'broken.py'}]\n"
    (presets / "bad.yaml").write_text(plugin + text.replace("ID", "Falling-v0"))
    (presets / "good.yaml").write_text(text.replace("ID", "CartPole-v1"))
    (presets / "typo.yaml").write_text(text.replace("ID", "CartPole-v1, idd: 3"))
    assert main(["smoke", "mine", "--presets", "--timesteps", "10"]) == 1
    rows = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()[1:4]]
    assert [row[2] for row in rows] == ["failed", "ok", "failed"]
    assert "the world fell apart" in rows[0][4] and "unknown key" in rows[2][4]


def test_what_is_missing_is_skipped_with_the_command_that_installs_it():
    def job():
        try:
            import no_such_package  # noqa: F401
        except ImportError as error:
            raise UserError("environment 'x' needs a package") from error

    found = smoke.attempt(job)
    assert found["status"] == "skipped"
    assert found["detail"] == "environment 'x' needs a package: pip install no_such_package"
