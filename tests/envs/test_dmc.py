"""The control suite behind Gymnasium's interface."""

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.dmc import STEPS, TASKS, SuiteEnv
from rl_lab.envs.make import list_environments, make_vector


def make(id: str, seed: int = 0) -> Any:
    return make_vector(EnvironmentConfig(id=id), [seed])


@pytest.mark.needs("dm_control")
def test_all_tasks_of_the_suite_are_listed() -> None:
    SuiteEnv("pendulum", "swingup")  # imports it
    from dm_control import suite

    assert {d: tuple(tasks) for d, tasks in suite.TASKS_BY_DOMAIN.items()} == TASKS
    listed = list_environments("dm_control/")
    assert len(listed) == len(suite.ALL_TASKS) and "dm_control/ball_in_cup-catch" in listed
    assert gym.registry["dm_control/lqr-lqr_2_1"].max_episode_steps is None


@pytest.mark.needs("dm_control")
def test_states_and_actions_are_the_suites_own() -> None:
    vector = make("dm_control/walker-walk", 5)
    first = vector.reset()
    assert first.shape == (1, 24) and first.dtype == np.float32
    env = vector.envs[0].unwrapped
    physics, task = env.suite.physics, env.suite.task
    action = np.full((1, 6), 0.25, np.float32)
    step = vector.step(action)
    features = task.get_observation(physics)
    expected = [*features["orientations"], features["height"], *features["velocity"]]
    assert step.next_obs[0].tolist() == np.array(expected, np.float32).tolist()
    assert step.reward[0] == task.get_reward(physics)
    assert physics.data.ctrl.tolist() == [0.25] * 6
    assert (env.action_space.low == -1).all() and (env.action_space.high == 1).all()


@pytest.mark.needs("dm_control")
def test_seeds_decide_everything() -> None:
    def frames(vector: Any, seed: int | None) -> list[Any]:
        actions = np.full((5, 1, 2), 0.5, np.float32)
        first = vector.reset(None if seed is None else [seed])
        return [first.tolist(), *(vector.step(action).obs.tolist() for action in actions)]

    one, other = make("dm_control/reacher-easy", 1), make("dm_control/reacher-easy", 1)
    start = frames(one, None)
    assert start == frames(other, None)
    later = frames(one, None)
    assert later == frames(other, None) and later != start  # the next episode is another one
    assert frames(one, 1) == start and frames(one, 2**40) != start


@pytest.mark.needs("dm_control")
def test_the_time_limit_truncates_and_a_discount_of_zero_terminates() -> None:
    vector = make("dm_control/pendulum-swingup")
    vector.reset()
    action = np.zeros((1, 1), np.float32)
    flags = [vector.step(action) for _ in range(STEPS)]
    assert [bool(step.truncated[0]) for step in flags] == [False] * (STEPS - 1) + [True]
    assert not any(step.terminated[0] for step in flags)
    vector = make("dm_control/lqr-lqr_2_1")  # ends where it has come to rest
    vector.reset()
    with vector.envs[0].unwrapped.suite.physics.reset_context():
        pass
    step = vector.step(action)
    assert step.terminated[0] and not step.truncated[0]


@pytest.mark.needs("dm_control")
def test_arguments_reach_the_suite() -> None:
    arguments = {"task_kwargs": {"time_limit": 0.5}}
    config = EnvironmentConfig(id="dm_control/cartpole-balance", kwargs=arguments)
    vector = make_vector(config, [0])
    vector.reset()
    action = np.zeros((1, 1), np.float32)
    # half a second at 0.01 seconds a step
    assert [vector.step(action).truncated[0] for _ in range(50)] == [False] * 49 + [True]


MISSING = """
import sys
sys.modules |= dict.fromkeys(["dm_control", "mujoco", "Box2D"])  # None: cannot be imported
from rl_lab.core.errors import UserError
from rl_lab.envs.make import make_vector
from rl_lab.core.schema import EnvironmentConfig
for id in sys.argv[1:]:
    try:
        make_vector(EnvironmentConfig(id=id), [0])
    except UserError as error:
        print(error)
"""


def test_a_missing_extra_is_one_line_with_the_command() -> None:
    extras = {"dm_control/cheetah-run": "dmc", "Ant-v5": "mujoco", "LunarLander-v3": "box2d"}
    command = [sys.executable, "-c", MISSING, *extras]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"environment '{id}' needs a package: run `pip install 'rl-lab[{extra}]'`"
        for id, extra in extras.items()
    ]


@pytest.mark.needs("dm_control")
def test_a_task_that_must_draw_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    env = SuiteEnv("quadruped", "escape")

    def no_context(self: Any) -> None:
        raise RuntimeError("No OpenGL rendering backend is available.")

    monkeypatch.setattr(type(env.suite.physics), "_make_rendering_contexts", no_context)
    with pytest.raises(UserError, match=r"dm_control/quadruped-escape.*MUJOCO_GL=egl"):
        env.reset(seed=0)
