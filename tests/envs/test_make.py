"""From configuration to vectors, and what a user is told when it cannot be done."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.spec import Box, Discrete
from rl_lab.envs.classic import ClassicVector
from rl_lab.envs.make import FEW, list_environments, make_vector, resolve_vectorization
from rl_lab.envs.vector import NativeCartPole, SyncVector


def message(**settings: Any) -> str:
    with pytest.raises(UserError) as error:
        make_vector(EnvironmentConfig(**settings), [0])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unknown_ids_say_what_is_near() -> None:
    assert "CartPole-v1" in message(id="CartPol-v1")
    assert message(id="LunarLander-v2") == (
        "unknown environment 'LunarLander-v2': LunarLander-v3 exists"
    )
    assert "CartPole-v0, CartPole-v1 exist" in message(id="CartPole")
    retired = message(id="HalfCheetah-v2")  # Gymnasium lists it, but it cannot be made
    assert retired == "unknown environment 'HalfCheetah-v2': HalfCheetah-v4, HalfCheetah-v5 exist"
    assert "HalfCheetah-v2" not in list_environments("halfcheetah")
    assert "dm_control/cheetah-run exists" in message(id="dm_control/cheetah-run-v0")
    assert "pip install vizdoom" in message(id="Vizdoom-v0")
    assert "module:Id" in message(id="no such thing!")
    assert "no_such_module" in message(id="no_such_module:Thing-v0")


def test_a_missing_package_is_named() -> None:
    assert "jax" in message(id="phys2d/CartPole-v1")


def test_unsupported_spaces_and_wrong_arguments_are_named() -> None:
    assert "gravitas" in message(id="Pendulum-v1", kwargs={"gravitas": 1})
    assert "no native vector" in message(id="Pendulum-v1", vectorization="native")
    assert "vectorization=sync" in message(
        id="CartPole-v1",
        vectorization="native",
        wrappers=[{"id": "MaskObservation", "indices": [1]}],
    )


def test_bad_values_are_refused_by_the_config() -> None:
    for settings in ({}, {"id": "x", "num_envs": 0}, {"id": "x", "max_episode_steps": 0}):
        with pytest.raises(ValueError, match=r"environment|must be at least 1"):
            EnvironmentConfig(**settings)  # type: ignore[arg-type]


def test_auto_leaves_the_loop_only_when_nothing_is_in_the_way() -> None:
    def chosen(**settings: Any) -> str:
        return resolve_vectorization(EnvironmentConfig(**settings))

    assert chosen(id="CartPole-v1") == "torch"
    few = EnvironmentConfig(id="CartPole-v1", num_envs=FEW - 1)
    assert resolve_vectorization(few) == "sync"  # arrays of three are slower than a loop
    assert resolve_vectorization(few, compiled=True) == "torch"
    assert chosen(id="CartPole-v1", max_episode_steps=10) == "torch"
    assert chosen(id="Taxi-v4") == "sync"
    assert chosen(id="CartPole-v1", kwargs={"sutton_barto_reward": True}) == "sync"
    mask = [{"id": "MaskObservation", "indices": [0]}]
    assert chosen(id="CartPole-v1", wrappers=mask) == "sync"
    assert chosen(id="CartPole-v1", vectorization="sync") == "sync"
    assert isinstance(make_vector(EnvironmentConfig(id="CartPole-v1"), [0]), ClassicVector)
    native = EnvironmentConfig(id="CartPole-v1", vectorization="native")
    assert isinstance(make_vector(native, [0]), NativeCartPole)
    assert isinstance(make_vector(EnvironmentConfig(id="Taxi-v4"), [0]), SyncVector)


def test_the_spec_describes_the_env() -> None:
    cartpole = make_vector(EnvironmentConfig(id="CartPole-v1"), [0, 1]).spec
    assert cartpole.action == Discrete(2) and cartpole.observation.shape == (4,)
    assert cartpole.max_episode_steps == 500 and cartpole.reward_threshold == 475
    pendulum = make_vector(EnvironmentConfig(id="Pendulum-v1"), [0]).spec
    assert isinstance(pendulum.action, Box) and pendulum.action.bounded
    taxi = make_vector(EnvironmentConfig(id="Taxi-v4"), [0])
    assert taxi.spec.observation == Discrete(500) and taxi.reset().dtype == np.int64


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_max_episode_steps_truncates(vectorization: Any) -> None:
    config = EnvironmentConfig(id="CartPole-v1", vectorization=vectorization, max_episode_steps=3)
    vector = make_vector(config, range(4))
    assert vector.spec.max_episode_steps == 3
    vector.reset()
    steps = [vector.step(np.zeros(4, np.int64)) for _ in range(6)]
    assert [bool(step.truncated.all()) for step in steps] == [False, False, True] * 2
    assert not any(step.terminated.any() for step in steps)


def test_module_ids_import_their_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_counter_module.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('MyCounter-v0', entry_point='rl_lab.envs.counter:CounterEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    vector = make_vector(EnvironmentConfig(id="my_counter_module:MyCounter-v0"), [0])
    assert vector.reset().tolist() == [[0, 0]]


def test_listing_finds_by_any_part() -> None:
    assert "CartPole-v1" in list_environments("cartp")
    assert list_environments("rl_lab/") == ["rl_lab/Counter-v0"]
    assert list_environments("zzz") == []


def test_a_task_of_ones_own_under_a_classic_name_is_not_replaced(monkeypatch):
    own = gym.envs.registration.EnvSpec("CartPole-v1", entry_point="somewhere:Cart")
    monkeypatch.setitem(gym.registry, "CartPole-v1", own)
    assert resolve_vectorization(EnvironmentConfig(id="CartPole-v1")) == "sync"
    with pytest.raises(UserError, match="'CartPole-v1' is not Gymnasium's"):
        make_vector(EnvironmentConfig(id="CartPole-v1", vectorization="torch"), [0])
