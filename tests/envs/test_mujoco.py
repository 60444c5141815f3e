"""MuJoCo resets itself in silence when a number goes bad; here that is an error."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_lab.core.errors import NonFiniteError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs import mujoco
from rl_lab.envs.make import make_vector
from rl_lab.run.session import train
from tiny_runs import tiny_config


@pytest.mark.needs("mujoco")
@pytest.mark.parametrize(
    ("field", "value", "what"),
    [("qpos", np.nan, "position"), ("qvel", 1e12, "velocity"), ("qfrc_applied", 1e300, "")],
)
def test_an_invalid_state_is_an_error(
    field: str, value: float, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where MuJoCo would write a file of its own
    vector: Any = make_vector(EnvironmentConfig(id="HalfCheetah-v5"), [0])
    vector.reset()
    action = np.full((1, 6), 0.5, np.float32)
    vector.step(action)
    getattr(vector.envs[0].unwrapped.data, field)[0] = value
    with pytest.raises(NonFiniteError, match=rf"HalfCheetah-v5 .* 2 steps .*bad {what}") as error:
        vector.step(action)
    assert error.value.details["action"] == [0.5] * 6 and error.value.details["step"] == 2
    vector.reset()  # and then it can go on
    assert np.isfinite(vector.step(action).obs).all()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("dm_control")
def test_the_suite_says_it_in_the_same_way() -> None:
    vector: Any = make_vector(EnvironmentConfig(id="dm_control/cheetah-run"), [0])
    vector.reset()
    vector.envs[0].unwrapped.suite.physics.data.qvel[0] = 1e12
    with pytest.raises(NonFiniteError, match=r"dm_control/cheetah-run .*BADQ(ACC|VEL)"):
        vector.step(np.zeros((1, 6), np.float32))


BROKEN = """
import gymnasium as gym
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv

class Breaking(InvertedPendulumEnv):
    def step(self, action):
        if self.data.time > 0.2:
            self.data.qvel[0] = 1e12
        return super().step(action)

gym.register("Breaking-v0", entry_point=Breaking, max_episode_steps=50)
"""


@pytest.mark.needs("mujoco")
def test_a_run_stops_before_it_learns_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaking_module.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("breaking_module:Breaking-v0:ppo_defaults", "algorithm.rollout_steps=64")
    with pytest.raises(NonFiniteError, match="nothing was stored"):
        train(tiny_config(*words), root=tmp_path / "runs")


@pytest.mark.needs("mujoco")
def test_only_arrays_that_stay_in_their_place_are_saved() -> None:
    """The others move when contacts come and go: written back, they would hit something else."""
    vector: Any = make_vector(EnvironmentConfig(id="Humanoid-v5"), [0])
    vector.reset()
    data = vector.envs[0].unwrapped.data

    def places() -> dict[str, int]:
        return {name: array.ctypes.data for name, array in mujoco._results(data).items()}

    before = places()
    for _ in range(15):
        vector.step(np.zeros((1, 17), np.float32))
    assert places() == before and {"xipos", "cinert", "qacc_warmstart"} < before.keys()


@pytest.mark.needs("mujoco")
def test_no_file_is_left_in_the_current_folder(tmp_path: Path) -> None:
    """It complains about HalfCheetah's model while it is made, into a file if nobody listens."""
    code = (
        "from rl_lab.envs.make import EnvironmentConfig, make_vector\n"
        "make_vector(EnvironmentConfig(id='HalfCheetah-v5'), [0]).reset()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert list(tmp_path.iterdir()) == [] and "WARNING" not in done.stdout + done.stderr
