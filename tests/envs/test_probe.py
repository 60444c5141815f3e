"""Trying one environment: what it costs is found out, and nothing of the run is touched."""

import random
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs import probe


class Slow(gym.Env[Any, Any]):
    """Takes a known time, and counts what is made and left open."""

    made = 0
    open = 0
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.0, draws: str = "", raises: bool = False) -> None:
        self.seconds, self.draws, self.raises = seconds, draws, raises
        self.steps = 0
        Slow.made += 1
        Slow.open += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        self.steps += 1
        if self.raises and self.steps == 3:
            raise RuntimeError("not with these actions")
        if self.draws == "python":
            random.random()
        elif self.draws == "numpy":
            np.random.random()
        elif self.draws == "torch":
            torch.rand(1)
        return np.zeros(2, np.float32), 0.0, False, self.steps % 5 == 0, {}

    def close(self) -> None:
        Slow.open -= 1


@pytest.fixture(autouse=True)
def slow_id() -> Any:
    gym.register("tests/Slow-v0", entry_point=f"{__name__}:Slow")
    Slow.made = Slow.open = 0
    yield
    del gym.registry["tests/Slow-v0"]


def slow(**kwargs: Any) -> EnvironmentConfig:
    return EnvironmentConfig(id="tests/Slow-v0", kwargs=kwargs)


def test_the_cost_of_a_step_is_measured_within_its_time() -> None:
    began = time.perf_counter()
    found = probe.measure(slow(seconds=0.004))
    assert found.step_seconds is not None and 0.004 <= found.step_seconds < 0.03
    assert time.perf_counter() - began < 1.5
    assert found.obstacle is None and found.spec.observation.shape == (2,)
    assert (Slow.made, Slow.open) == (1, 0)
    if found.free_cores is not None:
        assert 1 <= found.free_cores < 1000
    assert probe.measure(EnvironmentConfig(id="Pendulum-v1")).step_seconds < 0.004  # type: ignore[operator]


def test_looking_makes_one_and_steps_none() -> None:
    found = probe.look(slow(seconds=60))
    assert (found.step_seconds, found.obstacle) == (None, None)
    assert found.spec.observation.shape == (2,) and (Slow.made, Slow.open) == (1, 0)
    assert probe.look(EnvironmentConfig(id="CartPole-v1")).spec.observation.shape == (4,)


@pytest.mark.parametrize("draws", ["python", "numpy", "torch"])
def test_global_generators_are_left_alone_and_their_use_is_seen(draws: str) -> None:
    before = probe._global_generators()
    assert "global random generators" in str(probe.measure(slow(draws=draws)).obstacle)
    assert probe._global_generators() == before


def test_an_environment_that_raises_is_no_failure() -> None:
    found = probe.measure(slow(raises=True))
    assert found.step_seconds is None and found.obstacle == "a random action raised RuntimeError"
    assert Slow.open == 0


def test_what_another_process_cannot_make_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    gym.register("tests/Local-v0", entry_point=lambda: Slow())
    try:
        found = probe.measure(EnvironmentConfig(id="tests/Local-v0"))
    finally:
        del gym.registry["tests/Local-v0"]
    assert found.step_seconds and found.obstacle == "it cannot be sent to another process"
    gym.register("tests/Script-v0", entry_point="__main__:Slow")
    monkeypatch.setattr("__main__.Slow", Slow, raising=False)
    try:
        found = probe.measure(EnvironmentConfig(id="tests/Script-v0"))
    finally:
        del gym.registry["tests/Script-v0"]
    assert found.obstacle == "it is defined in the script that is running"
