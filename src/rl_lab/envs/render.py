"""One environment to show: in a window, or picture by picture."""

import os
import sys
import warnings
from dataclasses import replace
from typing import Any

import gymnasium as gym

from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import OWN_RESET_IDS, defined_in, find, maker, single_spaces
from rl_lab.envs.opengl import choose_backend
from rl_lab.envs.spaces import Frames, action_space

WINDOW, PICTURES = "human", "rgb_array"  # Gymnasium's names
FOLLOWING = "track"  # a camera of most MuJoCo models; where there is none, the usual one is used


def make_shown(config: EnvironmentConfig, *, window: bool) -> gym.Env[Any, Any]:
    """A single environment with its wrappers, for evaluation, that draws while it is stepped.

    In a `window` it draws by itself; otherwise `render` gives the picture of the moment.
    """
    single = replace(config, vectorization="sync", snapshot="reset")
    modes = _modes(config, single)
    mode = WINDOW if window else PICTURES
    if mode not in modes and PICTURES not in modes:  # pictures can be put into a window
        if not modes:
            raise _not_drawn(config, "it draws nothing (metadata['render_modes'] is empty)")
        only = "can be shown in a window only" if WINDOW in modes else "cannot be shown"
        raise UserError(
            f"'{config.id}' {only}: it offers {', '.join(modes)}, and not {PICTURES} "
            "(its render_modes)"
        )
    kwargs: dict[str, Any] = {**config.kwargs, "render_mode": mode}
    is_mujoco = defined_in(find(config.id)).startswith("gymnasium.envs.mujoco")
    if is_mujoco and kwargs.get("camera_id") is None:
        kwargs.setdefault("camera_name", FOLLOWING)  # the usual one stays behind
    if not has_screen():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame complains
        if is_mujoco:
            choose_backend(config.id)  # its own first choice needs a screen
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*You are trying to use 'human' rendering")
        try:
            env = maker(replace(single, kwargs=kwargs), training=False)()
        except UserError as error:
            if "render_mode" in str(error):
                raise _not_drawn(config, "its constructor takes no render_mode") from error
            raise
    if type(env.unwrapped).render is gym.Env.render:
        env.close()
        raise _not_drawn(config, "it has no render()")
    return env


def make_unseen(config: EnvironmentConfig) -> gym.Env[Any, Any]:
    """The same without pictures, for an environment that draws nothing."""
    single = replace(config, vectorization="sync", snapshot="reset")
    _modes(config, single)
    return maker(single, training=False)()


def has_screen() -> bool:
    """Whether a window could be opened, as far as the environment variables tell."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _modes(config: EnvironmentConfig, single: EnvironmentConfig) -> list[str]:
    """How an environment can be shown; refused if it is another task than the vector's."""
    vector = config.vectorization in ("native", "envpool") and config.id not in OWN_RESET_IDS
    try:
        env = maker(single, training=False)()
    except UserError as error:
        raise (_other_task(config) if vector else error) from error
    env.close()
    if vector and _seen(*single_spaces(config)) != _seen(env.observation_space, env.action_space):
        raise _other_task(config)
    return list(env.metadata.get("render_modes") or [])


def _not_drawn(config: EnvironmentConfig, why: str) -> UserError:
    return UserError(
        f"'{config.id}' cannot be shown: {why}; `rl-lab evaluate` plays it without pictures"
    )


def _other_task(config: EnvironmentConfig) -> UserError:
    return UserError(
        f"'{config.id}' as environment.vectorization={config.vectorization} shows it cannot be "
        "played: a single environment has other observations. `rl-lab evaluate` works; to play "
        "it, train with environment.vectorization=sync"
    )


def _seen(observation: gym.Space[Any], action: gym.Space[Any]) -> tuple[Any, ...]:
    """What a policy must agree with: shapes and kinds of numbers, not bounds."""
    parts = Frames(observation).parts
    acts = action_space(action, "the action space")
    shapes = {name: (part.shape, part.dtype.kind) for name, part in parts.items()}
    return shapes, type(acts), getattr(acts, "n", None), getattr(acts, "shape", None)
