"""An environment that changes the working directory does not move the run."""

import os
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from rl_lab.cli.main import main
from tiny_runs import SMALL, SMALL_PPO


class WanderingEnv(CartPoleEnv):
    def reset(self, **arguments):
        if Path.cwd().name != "elsewhere":
            Path("elsewhere").mkdir(exist_ok=True)
            os.chdir("elsewhere")
        return super().reset(**arguments)


@pytest.fixture
def place(tmp_path, monkeypatch):
    if "Wandering-v0" not in gym.registry:
        gym.register("Wandering-v0", entry_point=WanderingEnv)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_stays_where_it_began(place):
    words = ["Wandering-v0:ppo", *SMALL, *SMALL_PPO, "training.total_timesteps=256", "-q"]
    assert main(["train", *words]) == 0
    (run,) = (place / "runs").glob("Wandering-v0-ppo-*")
    assert (run / "summary.json").exists() and list(run.glob("checkpoints/step_*"))
    assert {path.name for path in place.iterdir()} == {"runs", "elsewhere"}
    assert not list((place / "elsewhere").rglob("runs"))
    os.chdir(place)
    assert main(["train", "--resume", f"runs/{run.name}", "-q"]) == 0
    os.chdir(place)
    words = ["--fork", f"runs/{run.name}:256", "--total-timesteps", "512", "-q"]
    assert main(["train", *words]) == 0
    assert len(list((place / "runs").glob("Wandering-v0-ppo-*"))) == 2
