"""The DeepMind Control suite (Tassa et al. 2018, arXiv:1801.00690) as Gymnasium environments.

`dm_control/cheetah-run` is the task `run` of the domain `cheetah`. Observations are the suite's
state features, one after the other, as float32; or what a camera sees, with `from_pixels`. The
package is imported when one is made.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.envs.mujoco import invalid_state, route_messages
from rl_lab.envs.opengl import BACKENDS, choose_backend

NAMESPACE = "dm_control"
_CAMERAS = {"quadruped": 2}  # the one behind it; elsewhere the first one is good
HEIGHT, WIDTH = 240, 320  # of a picture for people
STEPS = 1000  # the time limit of every task but lqr, which has none
TASKS = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": (
        *("balance", "balance_sparse", "swingup", "swingup_sparse"),
        *("two_poles", "three_poles"),
    ),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}


def register() -> None:
    """Tell Gymnasium the ids; nothing of the suite is imported yet."""
    for domain, tasks in TASKS.items():
        for task in tasks:
            gym.register(
                f"{NAMESPACE}/{domain}-{task}",
                entry_point="rl_lab.envs.dmc:SuiteEnv",
                max_episode_steps=None if domain == "lqr" else STEPS,
                kwargs={"domain": domain, "task": task},
            )


class SuiteEnv(gym.Env[Array, Array]):
    """One task of the suite. A time limit truncates; the suite's discount of 0 terminates."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium's way)

    def __init__(
        self,
        domain: str,
        task: str,
        task_kwargs: dict[str, Any] | None = None,
        environment_kwargs: dict[str, Any] | None = None,
        from_pixels: bool = False,
        size: int = 64,
        camera: int | None = None,
        plain: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """With `from_pixels`, what `camera` sees (the usual one if not given), `size` x `size`.

        `plain` pictures have no shadows and no smoothed edges: much faster without a GPU.
        """
        self.id = f"{NAMESPACE}/{domain}-{task}"
        self.from_pixels, self.size = from_pixels, size
        self.camera = _CAMERAS.get(domain, 0) if camera is None else camera
        if from_pixels or render_mode is not None:
            choose_renderer(self.id)
        # The task draws from this object for ever. Its seed here fixes what is random about a
        # model's construction; every seeded reset seeds it again.
        self.random = np.random.RandomState(0)
        self.seeded = False
        arguments = {**(task_kwargs or {}), "random": self.random}
        self.suite = _load(domain, task, arguments, environment_kwargs)
        if plain:
            quality = self.suite.physics.model.vis.quality
            quality.shadowsize = quality.offsamples = 0
        actions = self.suite.action_spec()
        self.action_space = gym.spaces.Box(
            actions.minimum.astype(np.float32), actions.maximum.astype(np.float32)
        )
        if from_pixels:
            self.observation_space = gym.spaces.Box(0, 255, (size, size, 3), np.uint8)
        else:
            shapes = [spec.shape for spec in self.suite.observation_spec().values()]
            width = int(sum(np.prod(shape) for shape in shapes))
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.steps = 0
        if render_mode is not None:  # else nothing is added to what a snapshot holds
            self.render_mode = render_mode
            frames = round(1 / self.suite.control_timestep())
            self.metadata = {**self.metadata, "render_fps": frames}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """A new episode; with a seed, the task's generator starts again."""
        super().reset(seed=seed)
        if seed is not None or not self.seeded:
            self.random.seed(self.np_random.integers(0, 2**32, 8, dtype=np.uint32))
            self.seeded = True
        self.steps = 0
        return self._seen(self._advance(None)), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One control step."""
        moment = self._advance(np.asarray(action, np.float64))
        self.steps += 1
        terminated = bool(moment.last() and moment.discount == 0)
        truncated = bool(moment.last() and not terminated)
        return self._seen(moment), float(moment.reward), terminated, truncated, {}

    def render(self) -> Any:
        """What the camera sees [240, 320, 3]; None if no `render_mode` was asked for."""
        if self.render_mode is None:
            return None
        return self.suite.physics.render(HEIGHT, WIDTH, camera_id=self.camera)

    def close(self) -> None:
        """Free the simulation."""
        self.suite.close()

    def _seen(self, moment: Any) -> Array:
        if not self.from_pixels:
            return _flat(moment.observation)
        pixels: Array = self.suite.physics.render(self.size, self.size, camera_id=self.camera)
        return pixels

    def _advance(self, action: Array | None) -> Any:
        from dm_control.rl.control import PhysicsError

        try:
            return self.suite.reset() if action is None else self.suite.step(action)
        except PhysicsError as error:
            raise invalid_state(self.id, self.steps, str(error), action) from error
        except RuntimeError as error:
            if "OpenGL" not in str(error):
                raise
            raise UserError(f"'{self.id}' needs OpenGL: set MUJOCO_GL=egl or osmesa") from error


def choose_renderer(id: str) -> None:
    """Make the suite draw without a display: by EGL, or by OSMesa. A choice of the user stays.

    The suite chooses when it is imported, so this comes first, or its choice is made again.
    """
    chosen = choose_backend(id)
    try:
        render = importlib.import_module("dm_control._render")
        if chosen != render.BACKEND:
            importlib.reload(render)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"pictures of '{id}': MUJOCO_GL={chosen} does not work here ({error}); try another of "
            f"{', '.join(BACKENDS)}, or install its library"
        ) from error


def _load(domain: str, task: str, arguments: object, settings: object) -> Any:
    """The suite's own environment; without a display it is imported without a renderer.

    Otherwise the import tries to open a window, fails and warns. A choice of the user stays.
    """
    blind = sys.platform == "linux" and "DISPLAY" not in os.environ
    blind = blind and "MUJOCO_GL" not in os.environ
    if blind:
        os.environ["MUJOCO_GL"] = "disable"
    try:
        from dm_control import suite
    finally:
        if blind:
            del os.environ["MUJOCO_GL"]
    route_messages()
    return suite.load(domain, task, task_kwargs=arguments, environment_kwargs=settings)


def _flat(observation: Mapping[str, Array]) -> Array:
    parts = [np.ravel(part) for part in observation.values()]
    return np.concatenate(parts, dtype=np.float32, casting="same_kind")
