"""Environments that can be looked at: pictures of our own ones, windows, and clear refusals."""

import os

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs import opengl
from rl_lab.envs.canvas import PAPER, SIZE, Disc, draw
from rl_lab.envs.make import make_vector
from rl_lab.envs.multi_goal import MultiGoalEnv
from rl_lab.envs.point_goal import GOAL, POINT, PointGoalEnv
from rl_lab.envs.render import has_screen, make_shown
from rl_lab.envs.track import PixelTrackEnv

OURS = ["PointGoal-v0", "PointGoalDiscrete-v0", "MultiGoal-v0", "PixelTrack-v0"]
drawing = pytest.mark.skipif(
    "MUJOCO_GL" not in os.environ and not any(map(opengl.is_usable, opengl.BACKENDS)),
    reason="no OpenGL without a display",
)


@pytest.fixture(autouse=True)
def no_screen(monkeypatch):
    """Nor does one test's choice of a renderer become the next one's."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MUJOCO_GL", "SDL_VIDEODRIVER"):
        if name not in os.environ:
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)


def where(picture, colour):
    """Rows and columns [M, 2] of exactly this colour."""
    return np.argwhere((picture == colour).all(-1))


def test_a_disc_is_where_it_belongs():
    red, blue = (255, 0, 0), (0, 0, 255)
    one = Disc(np.array([0.5, 0.5]), 0.25, red)
    picture = draw([one, Disc(np.array([0.5, 0.5]), 0.1, blue)], 1.0)
    assert picture.shape == (SIZE, SIZE, 3) and picture.dtype == np.uint8
    assert tuple(picture[-1, 0]) == PAPER
    # x = 0.5 of a square from -1.05 to 1.05: (0.5 + 1.05) / 2.1 · 256 = 189; y is up: 256 - 189.
    assert where(picture, blue).mean(0) == pytest.approx([67, 189], abs=1)
    assert len(where(picture, red)) > 0  # around the later one, which is on top
    # area: π · 0.25² / 2.1² · 256² pixels, without the fading edge
    covered = len(where(draw([one], 1.0), red))
    assert covered == pytest.approx(np.pi * 0.25**2 / 2.1**2 * SIZE**2, rel=0.1)


def test_pictures_show_the_state():
    env = PointGoalEnv(render_mode="rgb_array")
    env.reset(seed=0)
    env.position, env.goal = np.array([-0.5, 0.0]), np.array([0.0, -0.5])
    picture = env.render()
    row, column = where(picture, POINT).mean(0)
    assert abs(row - SIZE / 2) < 2 and column < SIZE / 2 - 40
    row, column = where(picture, GOAL).mean(0)
    assert row > SIZE / 2 + 40 and abs(column - SIZE / 2) < 2  # below
    many = MultiGoalEnv(render_mode="rgb_array")
    many.reset(seed=0)
    assert len(where(many.render(), GOAL)) == pytest.approx(4 * np.pi * 17.4**2, rel=0.15)
    track = PixelTrackEnv(render_mode="rgb_array")
    first, _ = track.reset(seed=0)
    assert np.array_equal(track.render()[4::8, 4::8], first) and len(track.render()) == 256


@pytest.mark.parametrize("id", OURS)
def test_our_own_worlds_can_be_shown_and_are_the_same_worlds(id):
    env = make_shown(EnvironmentConfig(id=id, num_envs=4), window=False)
    plain = gym.make(id, disable_env_checker=True)
    seen, _ = env.reset(seed=3)
    other, _ = plain.reset(seed=3)
    env.action_space.seed(0)
    for _ in range(5):
        action = env.action_space.sample()
        seen, reward, *_ = env.step(action)
        other, same, *_ = plain.step(action)
        assert reward == same
        picture = env.render()
        assert picture.shape == (256, 256, 3) and len(np.unique(picture)) > 2
    assert str(seen) == str(other)
    assert env.metadata["render_fps"] > 0
    assert plain.unwrapped.render() is None  # nobody asked for it
    assert make_vector(EnvironmentConfig(id=id), [0]).snapshot_level == "E0"


@pytest.mark.needs("dm_control")
@drawing
def test_the_control_suite_draws_for_people_and_keeps_its_state():
    id = "dm_control/cartpole-balance"
    plain = make_vector(EnvironmentConfig(id=id), [0])  # imported without a renderer
    env = make_shown(EnvironmentConfig(id=id, kwargs={"plain": True}), window=False)
    first, _ = env.reset(seed=0)
    assert first.shape == (5,) and env.metadata["render_fps"] == 100  # 0.01 seconds a step
    before = env.render()
    for _ in range(20):
        env.step(np.ones(1, np.float32))
    after = env.render()
    assert before.shape == (240, 320, 3) and before.dtype == np.uint8
    assert (before != after).any(-1).sum() > 50
    own = vars(plain.envs[0].unwrapped)
    assert "render_mode" not in own and "metadata" not in own  # a snapshot is what it was
    assert plain.snapshot_level == "E0" and plain.envs[0].unwrapped.render() is None
    env.close()


@pytest.mark.needs("mujoco")
@drawing
def test_mujoco_draws_without_a_screen():
    env = make_shown(EnvironmentConfig(id="InvertedPendulum-v5"), window=False)
    env.reset(seed=0)
    assert env.render().shape == (480, 480, 3)
    env.close()


@pytest.mark.needs("mujoco")
@drawing
@pytest.mark.parametrize(("kwargs", "camera"), [({}, 0), ({"camera_id": -1}, -1)])
def test_the_camera_follows_unless_another_was_asked_for(kwargs, camera):
    """The cheetah's model has one camera, number 0, that moves with it; -1 stands still."""
    env = make_shown(EnvironmentConfig(id="HalfCheetah-v5", kwargs=kwargs), window=False)
    assert env.unwrapped.mujoco_renderer.camera_id == camera
    env.close()


@pytest.mark.needs("mujoco")
def test_mujoco_without_opengl_is_one_line(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(opengl, "is_usable", lambda backend: False)
    with pytest.raises(UserError, match="pictures of 'InvertedPendulum-v5' need OpenGL"):
        make_shown(EnvironmentConfig(id="InvertedPendulum-v5"), window=False)


@pytest.mark.parametrize("id", ["CartPole-v1", "PointGoal-v0"])  # with a window of its own, without
def test_a_window(id, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = make_shown(EnvironmentConfig(id=id), window=True)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert env.render_mode == "human"
    env.close()


def test_wrappers_stay_but_not_those_for_training():
    blocks = [{"id": "MaskObservation", "indices": [1]}, {"id": "RewardShape", "scale": 9}]
    config = EnvironmentConfig(id="CartPole-v1", wrappers=blocks, max_episode_steps=3)
    env = make_shown(config, window=False)
    env.reset(seed=0)
    steps = [env.step(0) for _ in range(3)]
    assert all(step[0][1] == 0 and step[1] == 1 for step in steps) and steps[-1][3]
    assert env.render().shape == (400, 600, 3)


class Windowed(gym.Env):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012
    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)


def test_what_cannot_be_shown_is_said_in_one_line():
    with pytest.raises(UserError, match="'rl_lab/Counter-v0' cannot be shown: it draws nothing"):
        make_shown(EnvironmentConfig(id="rl_lab/Counter-v0"), window=True)
    gym.register("Windowed-v0", Windowed)
    try:
        with pytest.raises(UserError, match=r"in a window only: it offers human, and not rgb_arr"):
            make_shown(EnvironmentConfig(id="Windowed-v0"), window=False)
    finally:
        del gym.registry["Windowed-v0"]


@pytest.mark.needs("ale_py")
def test_a_vector_with_observations_of_its_own_is_refused():
    for kwargs in ({}, {"stack_num": 2}):
        config = EnvironmentConfig(id="ALE/Pong-v5", vectorization="native", kwargs=kwargs)
        with pytest.raises(UserError, match=r"vectorization=native.*evaluate` works; to play it"):
            make_shown(config, window=False)
    same = EnvironmentConfig(id="CartPole-v1", vectorization="native")
    assert make_shown(same, window=False).render_mode == "rgb_array"


def test_a_screen_is_what_the_variables_say(monkeypatch):
    assert not has_screen()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert has_screen()
    monkeypatch.delenv("WAYLAND_DISPLAY")
    monkeypatch.setattr("sys.platform", "darwin")
    assert has_screen()
