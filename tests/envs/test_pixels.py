"""Pictures: the control suite through a camera, and CarRacing as the world-model papers see it."""

import ctypes
import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs import dmc, opengl
from rl_lab.envs.check import check_env
from rl_lab.envs.make import make_vector
from rl_lab.envs.wrappers import wrap
from rl_lab.envs.wrappers.image import Crop

CARTPOLE = "dm_control/cartpole-balance"
SHORT = {"task_kwargs": {"time_limit": 0.2}}  # 20 steps
PIXELS = {"from_pixels": True, "plain": True, "size": 32, **SHORT}
CAR = [{"id": "Crop", "bottom": 12}, {"id": "Resize", "size": 64}]

drawing = pytest.mark.skipif(
    "MUJOCO_GL" not in os.environ and not any(map(opengl.is_usable, opengl.BACKENDS)),
    reason="no OpenGL without a display",
)


@pytest.fixture(autouse=True)
def own_choice(monkeypatch):
    """What one test chooses is not the next one's environment."""
    if "MUJOCO_GL" in os.environ:
        return
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.delenv("MUJOCO_GL")


@pytest.mark.needs("dm_control")
@drawing
def test_a_camera_sees_the_state_and_nothing_else_changes():
    blind = make_vector(EnvironmentConfig(id=CARTPOLE, kwargs=SHORT), [3])  # imported first
    seeing = make_vector(EnvironmentConfig(id=CARTPOLE, kwargs=PIXELS), [3])
    blind.reset()
    first = seeing.reset()
    assert first.shape == (1, 3, 32, 32) and first.dtype == np.uint8
    assert len(np.unique(first)) > 20
    action = np.ones((1, 1), np.float32)
    for _ in range(8):
        state, seen = blind.step(action), seeing.step(action)
        assert state.reward == seen.reward
    assert (seen.obs != first).sum() > 20  # it has moved
    env = seeing.envs[0].unwrapped
    again = env.suite.physics.render(32, 32, camera_id=0)
    assert (seen.obs[0] == again.transpose(2, 0, 1)).all()


@pytest.mark.needs("dm_control")
@drawing
def test_pixels_resume_exactly():
    report = check_env(CARTPOLE, steps=6, num_envs=1, settings={"kwargs": PIXELS})
    assert report.level == "E0" and report.exact, report


@pytest.mark.needs("dm_control")
@drawing
def test_the_usual_camera():
    assert dmc.SuiteEnv("quadruped", "walk", from_pixels=True, size=8).camera == 2
    assert dmc.SuiteEnv("walker", "walk", from_pixels=True, size=8).camera == 0
    assert dmc.SuiteEnv("walker", "walk", from_pixels=True, size=8, camera=1).camera == 1


def test_without_opengl_there_is_one_clear_line(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(opengl, "is_usable", lambda backend: False)
    with pytest.raises(UserError, match=r"pictures of 'dm_control/cartpole-balance' need OpenGL"):
        make_vector(EnvironmentConfig(id=CARTPOLE, kwargs={"from_pixels": True}), [0])


def test_a_library_that_is_not_there_is_not_usable(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert not opengl.is_usable("egl") and not opengl.is_usable("osmesa")
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libOSMesa.so.8")
    assert opengl.is_usable("osmesa")


def test_a_choice_that_does_not_work_is_told():
    code = f"from rl_lab.envs.dmc import choose_renderer; choose_renderer('{CARTPOLE}')"
    environment = {**os.environ, "MUJOCO_GL": "nonsense"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    said = done.stderr.decode().splitlines()[-1]
    assert f"pictures of '{CARTPOLE}': MUJOCO_GL=nonsense does not work here" in said


class Picture(gym.Env):
    """Row times ten plus column."""

    observation_space = gym.spaces.Box(0, 255, (8, 6, 3), np.uint8)
    action_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, ends=99):
        self.time, self.ends, self.actions = 0, ends, []

    def frame(self):
        grid = np.arange(8)[:, None] * 10 + np.arange(6)
        return np.repeat(grid[:, :, None], 3, 2).astype(np.uint8) + np.uint8(self.time)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self.frame(), {}

    def step(self, action):
        self.time += 1
        self.actions.append(np.array(action).tolist())
        return self.frame(), 1.0, self.time >= self.ends, False, {}


def test_crop_by_hand():
    env = Crop(Picture(), top=1, bottom=2, left=3, right=1)
    seen, _ = env.reset()
    assert seen[:, :, 0].tolist() == [[13, 14], [23, 24], [33, 34], [43, 44], [53, 54]]
    assert env.observation_space.shape == (5, 2, 3) and env.observation_space.contains(seen)
    first = gym.wrappers.TransformObservation(
        Picture(), lambda obs: obs.transpose(2, 0, 1), gym.spaces.Box(0, 255, (3, 8, 6), np.uint8)
    )
    seen, _ = Crop(first, bottom=7).reset()
    assert seen.shape == (3, 1, 6) and seen[0].tolist() == [[0, 1, 2, 3, 4, 5]]
    with pytest.raises(UserError, match="nothing is left of an image with 8 rows, 6 columns"):
        Crop(Picture(), top=4, bottom=4)
    with pytest.raises(UserError, match="bottom: must be at least 0, got -1"):
        wrap(Picture(), [{"id": "Crop", "bottom": -1}])


def test_an_episode_is_shown_later():
    env = wrap(Picture(), [{"id": "SkipStart", "steps": 5}])
    seen, _ = env.reset()
    assert seen[0, 0, 0] == 5 and env.unwrapped.actions == [[0, 0, 0]] * 5
    seen, _ = wrap(Picture(ends=3), [{"id": "SkipStart", "steps": 5}]).reset()
    assert seen[0, 0, 0] == 0  # it ended: the next one, from its first frame
    with pytest.raises(UserError, match="SkipStart: steps: must be at least 0"):
        wrap(Picture(), [{"id": "SkipStart", "steps": -1}])


@pytest.mark.needs("Box2D")
def test_car_racing_as_in_the_paper():
    raw = gym.make("CarRacing-v3", max_episode_steps=60)
    env = wrap(raw, [{"id": "SkipStart", "steps": 50}, *CAR])
    seen, _ = env.reset(seed=1)
    assert seen.shape == (64, 64, 3) and seen.dtype == np.uint8
    whole = raw.unwrapped.state
    assert (whole[84:] == 0).all(-1).mean() > 0.5  # the bar that is cut off is mostly black
    corner = whole[:84, :, :].astype(float)
    assert abs(seen.astype(float).mean() - corner.mean()) < 1  # a mean of what is left
    assert raw._elapsed_steps == 50
    green = (seen[..., 1] > seen[..., 0].astype(int) + 30).mean()
    assert 0.3 < green < 0.99  # grass and a road
    env.close()
