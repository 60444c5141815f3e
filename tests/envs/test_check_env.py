"""The proof in a second process, and that it can fail."""

from pathlib import Path
from typing import Any

import pytest

from extras import installed_case
from rl_lab.envs.check import check_env
from rl_lab.envs.make import list_environments

SIMULATORS = [
    *(id for id in list_environments("-v5") if "/" not in id),  # MuJoCo
    *(id for id in list_environments("dm_control") if not id.endswith("-escape")),  # it must draw
    *("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3"),
    *("BipedalWalkerHardcore-v3", "CarRacing-v3"),
]
MASK = {"wrappers": [{"id": "MaskObservation", "indices": [1, 3]}]}


@pytest.mark.parametrize(
    ("id", "settings"), [("CartPole-v1", {}), ("CartPole-v1", MASK), ("FrozenLake-v1", {})]
)
def test_exact_environments_are_proven(id: str, settings: dict[str, Any]) -> None:
    report = check_env(id, settings=settings)
    assert report.level == "E0" and report.exact and report.reason is None
    names = [point.name for point in report.points]
    assert len(names) == 5 and "one step before an episode's end" in names
    assert all(point.difference is None for point in report.points)


@pytest.mark.parametrize(
    ("id", "level"),
    [
        installed_case("Ant-v5", "E0"),
        installed_case("LunarLander-v3", "E1"),
        installed_case("BipedalWalker-v3", "E1"),
        installed_case("dm_control/finger-turn_hard", "E0"),
    ],
)
def test_simulators_are_proven(id: str, level: str) -> None:
    report = check_env(id, num_envs=1, settings={"max_episode_steps": 90})
    assert (report.level, report.exact, report.reason) == (level, True, None)
    assert len(report.points) == 5 and "one step before an episode's end" in str(report.points)


@pytest.mark.slow
@pytest.mark.parametrize("id", map(installed_case, SIMULATORS))
def test_every_simulator_is_proven(id: str) -> None:
    report = check_env(id, settings={"max_episode_steps": 250})
    assert report.exact and report.reason is None


CHEAT = """
import gymnasium as gym
import numpy as np

class Cheat(gym.Env):
    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    hidden = [0]  # on the class: no instance attribute, so no capture sees it

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.hidden[0] = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.hidden[0] += 1
        return np.array([self.hidden[0]], np.float32), 0.0, False, False, {}

gym.register("Cheat-v0", entry_point=Cheat)
"""


def test_hidden_state_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cheating_module.py").write_text(CHEAT)
    monkeypatch.syspath_prepend(tmp_path)
    report = check_env("cheating_module:Cheat-v0", steps=20, num_envs=1)
    assert report.level == "E3" and not report.exact
    assert report.reason == "after 50 steps: another next_obs at step 0"
    assert [point.step for point in report.points] == [0, 50, 75, 100, 125]


def test_a_replay_that_is_not_exact_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = CHEAT.replace("[self.hidden[0]]", "[np.random.default_rng().random()]")
    (tmp_path / "noisy_module.py").write_text(noisy.replace("Cheat-v0", "Noisy-v0"))
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"snapshot": "replay"}
    report = check_env("noisy_module:Noisy-v0", steps=20, num_envs=1, settings=settings)
    assert report.level == "E3" and report.reason == "after the reset: another next_obs at step 0"
