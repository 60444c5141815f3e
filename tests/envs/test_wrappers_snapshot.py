"""Every wrapper of the catalog: its state is in the snapshot, and episodes do not meet."""

import json
from typing import Any

import numpy as np
import pytest

from extras import installed_case
from rl_lab.config.catalog import BUILT_INS
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.spec import Discrete
from rl_lab.core.state import join, split
from rl_lab.core.tree import named_leaves
from rl_lab.envs import snapshot
from rl_lab.envs.check import check_env
from rl_lab.envs.make import make_vector

PICTURE, MEMORY = "picture_env:Picture-v0", "MiniGrid-MemoryS7-v0"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ActionMask": ("Taxi-v4", {}),
    "ActionRemap": ("Pendulum-v1", {"actions": [[-2], [0], [2]]}),
    "ActionRepeat": ("CartPole-v1", {"times": 3}),
    "CountBonus": ("MountainCar-v0", {"bins": 20}),
    "Crop": (PICTURE, {"bottom": 2}),
    "DiscreteEncoder": ("FrozenLake-v1", {}),
    "DiscretizeObservation": ("MountainCar-v0", {"bins": 20}),
    "FlatGrid": (MEMORY, {}),
    "FrameSkip": (PICTURE, {"max_pool": True}),
    "FrameStack": (PICTURE, {}),
    "Grayscale": (PICTURE, {}),
    "ImgObs": (MEMORY, {}),
    "MaskObservation": ("CartPole-v1", {"indices": [1, 3]}),
    "NoisyObservation": ("CartPole-v1", {"std": 0.1}),
    "OneHotObservation": ("FrozenLake-v1", {}),
    "PositionOnly": ("Acrobot-v1", {}),
    "RGBImgPartialObs": (MEMORY, {"tile_size": 4}),
    "RescaleAction": ("Pendulum-v1", {}),
    "Resize": (PICTURE, {"size": 5}),
    "RewardShape": ("CartPole-v1", {"scale": 0.5}),
    "ScaleObservation": ("CartPole-v1", {"divide": 2}),
    "SkipStart": ("CartPole-v1", {"steps": 3}),
    "StickyActions": ("CartPole-v1", {"probability": 0.5}),
    "TimeAware": ("CartPole-v1", {}),
    "VelocityOnly": ("Pendulum-v1", {}),
}
NEEDED = {name: installed_case(id).marks for name, (id, _) in CASES.items()}
ALL = pytest.mark.parametrize(
    "name", [pytest.param(each, marks=NEEDED[each]) for each in sorted(BUILT_INS["wrapper"])]
)


def make(name: str, seed: int) -> Any:
    id, arguments = CASES[name]
    block = {"id": name, **arguments}
    config = EnvironmentConfig(id=id, wrappers=[block], max_episode_steps=17)
    return make_vector(config, [seed])


def random_actions(vector: Any, steps: int, seed: int) -> Any:
    generator, space = np.random.default_rng(seed), vector.spec.action
    if isinstance(space, Discrete):
        return generator.integers(0, space.n, (steps, 1))
    return generator.uniform(-1, 1, (steps, 1, *space.shape)).astype(np.float32)


def through_disk(tree: Any) -> Any:
    tensors, skeleton = split(tree)
    return join(tensors, json.loads(json.dumps(skeleton, sort_keys=True)))


def rows(vector: Any, actions: Any) -> list[tuple[bytes, ...]]:
    names = ("obs", "reward", "terminated", "truncated", "next_obs")
    steps = [vector.step(action) for action in actions]
    return [tuple(content(getattr(step, name)) for name in names) for step in steps]


def content(obs: Any) -> bytes:
    return b"".join(leaf.tobytes() for _, leaf in named_leaves(obs))


@ALL
def test_a_state_taken_in_mid_episode_goes_on_byte_for_byte(name: str) -> None:
    vector = make(name, 3)
    vector.reset()
    actions = random_actions(vector, 120, seed=1)
    rows(vector, actions[:23])
    assert vector.snapshot_level == "E0"
    tree = through_disk(snapshot.capture(vector.envs[0]))
    future = rows(vector, actions[23:])
    for used in (False, True):  # neither a fresh nor a used one may shine through
        other = make(name, 8)
        other.reset()
        if used:
            rows(other, actions[5:40])
        snapshot.restore(other.envs[0], tree)
        assert rows(other, actions[23:]) == future


@ALL
def test_no_episode_changes_another_one(name: str) -> None:
    vector = make(name, 0)
    told = []
    for earlier in (1, 2):  # two different pasts …
        vector.reset([earlier])
        past = [vector.step(action) for action in random_actions(vector, 11, seed=earlier)]
        copies = [(content(step.obs), content(step.next_obs)) for step in past]
        first = content(vector.reset([7]))  # … and one future
        told.append((first, rows(vector, random_actions(vector, 15, seed=7))))
        assert [(content(step.obs), content(step.next_obs)) for step in past] == copies
    if name == "CountBonus":  # what it pays depends on the whole past: that is its purpose
        told = [(first, [(*row[:1], *row[2:]) for row in future]) for first, future in told]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("id", "blocks"),
    [
        ("CartPole-v1", [{"id": "StickyActions"}, {"id": "FrameStack"}]),
        ("MountainCar-v0", [{"id": "CountBonus"}, {"id": "TimeAware"}]),
    ],
)
def test_stateful_wrappers_are_proven_in_a_second_process(
    id: str, blocks: list[dict[str, Any]]
) -> None:
    report = check_env(id, steps=60, settings={"wrappers": blocks, "max_episode_steps": 90})
    assert report.level == "E0" and report.reason is None, report
