"""What environments print must not break `--json`: not in Python, not in C, not in a worker."""

import json
import os
import subprocess
import sys

import pytest

from tiny_runs import SMALL, SMALL_PPO

NOISY = """
import os
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class Noisy(CartPoleEnv):
    def reset(self, **options):
        print("from Python")
        os.write(1, b"from C\\n")
        return super().reset(**options)


gym.register("Noisy-v0", Noisy, max_episode_steps=40)
"""


@pytest.mark.parametrize("vectorization", ["sync", "process"])
def test_stdout_is_json_and_nothing_else(tmp_path, vectorization):
    (tmp_path / "noisy.py").write_text(NOISY)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    settings = [*SMALL, *SMALL_PPO, f"environment.vectorization={vectorization}"]
    small = ["training.total_timesteps=128", "evaluation.every_steps=0", "environment.num_envs=2"]
    named = ["environment.id=noisy:Noisy-v0", "algorithm.name=ppo", "--json"]
    words = ["train", *settings, *small, *named]
    done = subprocess.run(
        [sys.executable, "-m", "rl_lab", *words, "--runs-dir", "runs"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"
    assert "from Python" in done.stderr and "from C" in done.stderr
