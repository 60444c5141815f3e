"""Phases in which another policy plays: nobody is handed a memory that is not its own."""

import numpy as np
import pytest
import torch

from rl_lab.collect.collector import RolloutCollector
from rl_lab.core.batch import STATE, Action
from rl_lab.core.state import differences, join, split
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.vector import SyncVector

WORLD = {"deter": 8, "hidden": 8, "stoch": 3, "units": 8, "layers": 1, "channels": 2}
WORLD |= {"batch_length": 4, "batch_size": 2, "learning_starts": 0, "train_every": 8}
PLANNER = {"planner.horizon": 2, "planner.candidates": 4, "planner.elites": 2}
OPTIONS = {
    "dreamer_v3": {**WORLD, "horizon": 2, "replay_ratio": 0.05},
    "planet": {**WORLD, **PLANNER, "planner.iterations": 1},
}
WANDER = "{name: wander, policy: brownian, duration_steps: 64, hooks: [collect]}"
LEARN = "duration_steps: 64, hooks: [collect, update_world_model]"


def keeps(**start):
    """A policy that remembers how often it was asked, in a memory of its own shape."""

    def act(obs, state, *, deterministic):
        assert {name: each.shape for name, each in state.items()} == {
            name: each.shape for name, each in start.items()
        }
        after = {name: each + 1 for name, each in state.items()}
        return Action(np.zeros(len(obs), np.int64), after)

    return act, start


@pytest.mark.parametrize(
    "other",
    [
        {"walk": torch.zeros(1)},
        {"sum": torch.zeros(1, 3)},
        {"sum": torch.zeros(1), "b": torch.zeros(1)},
    ],
)
def test_a_memory_of_another_shape_is_not_taken_over(other):
    collector = RolloutCollector(SyncVector([CounterEnv(lengths=[90])], [0], "counter"))
    (first, start), (second, empty) = keeps(sum=torch.zeros(1)), keeps(**other)
    collector.collect(first, steps=3, state=start)
    assert collector.collect(first, steps=3, state=start).trajectory[STATE]["sum"].item() == 3
    found = collector.collect(second, steps=2, state=empty).trajectory[STATE]
    assert differences(found, empty) == []
    assert collector.collect(first, steps=1, state=start).trajectory[STATE]["sum"].item() == 0
    blind = lambda obs, state, *, deterministic: Action(np.zeros(1, np.int64))  # noqa: E731
    assert collector.collect(blind, steps=1).trajectory[STATE] is None


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_wandering_phase_before_and_between_those_of_a_world_model(tiny, name):
    words = [f"algorithm.{key}={value}" for key, value in OPTIONS[name].items()]
    phases = f"[{WANDER}, {{name: a, {LEARN}}}, {WANDER}, {{name: b, {LEARN}}}]"

    def made():
        return tiny(
            "Pendulum-v1:random", f"algorithm.name={name}", *words, f"training.phases={phases}"
        )

    straight, saved = made(), []
    while hook := straight.scheduler.next_action():
        saved.append(join(*split(straight.state())))
        straight.execute(hook)
    assert straight.counters.env_steps == 4 * 64
    expected = straight.state()
    resumed = made()
    resumed.load(saved[len(saved) // 2])
    while hook := resumed.scheduler.next_action():
        resumed.execute(hook)
    ended = resumed.state()
    assert expected.pop("metrics_offset") >= 0 and ended.pop("metrics_offset") >= 0
    assert differences(ended, expected) == []
