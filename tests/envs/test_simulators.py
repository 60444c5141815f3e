"""Simulators held in C: their state goes through disk into another object and goes on exactly."""

import json
from typing import Any

import numpy as np
import pytest

from extras import installed_case
from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.spec import Discrete
from rl_lab.core.state import join, split
from rl_lab.envs import snapshot
from rl_lab.envs.make import make_vector

MUJOCO = [
    *("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5"),
    *("InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5"),
    *("Swimmer-v5", "Walker2d-v5"),
]
SUITE = [  # contacts, a target in the model, a gain in the model, constraints, no time limit
    *("walker-walk", "reacher-hard", "point_mass-hard", "ball_in_cup-catch", "lqr-lqr_2_1"),
    *("cartpole-swingup", "finger-turn_easy"),
]
BOX2D = ["LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3"]
LIMIT = 23
STEPS = 60


def through_disk(tree: Any) -> Any:
    tensors, skeleton = split(tree)
    return join(tensors, json.loads(json.dumps(skeleton, sort_keys=True)))


def make(id: str, seed: int, **settings: Any) -> Any:
    return make_vector(EnvironmentConfig(id=id, max_episode_steps=LIMIT, **settings), [seed])


def random_actions(vector: Any, steps: int) -> Any:
    generator, space = np.random.default_rng(1), vector.spec.action
    if isinstance(space, Discrete):
        return generator.integers(0, space.n, (steps, 1))
    return generator.normal(size=(steps, 1, *space.shape)).astype(np.float32)


def rows(vector: Any, actions: Any) -> list[tuple[bytes, ...]]:
    names = ("obs", "reward", "terminated", "truncated", "next_obs")
    steps = [vector.step(action) for action in actions]
    return [tuple(getattr(step, name).tobytes() for name in names) for step in steps]


@pytest.mark.parametrize(
    ("id", "level"),
    [
        *(installed_case(id, "E0") for id in MUJOCO),
        *(installed_case(f"dm_control/{name}", "E0") for name in SUITE),
        *(installed_case(id, "E1") for id in BOX2D),
    ],
)
def test_a_saved_simulator_goes_on_byte_for_byte(id: str, level: str) -> None:
    vector = make(id, 3)
    vector.reset()
    assert snapshot.level(vector.envs[0]) == level
    actions = random_actions(vector, STEPS)
    # right after the reset, in mid-episode, one step before the end, after it
    moments = (0, 9, LIMIT - 1, LIMIT)
    trees, seen = {}, []
    for count, action in enumerate(actions):
        if count in moments:
            trees[count] = through_disk(vector.state_dict())
        seen += rows(vector, [action])
    used = make(id, 8)
    used.reset()
    rows(used, actions[5:12])  # neither a fresh nor a used one may shine through
    for moment in moments:
        for other in (make(id, 4), used):
            other.load_state_dict(trees[moment])
            assert rows(other, actions[moment:]) == seen[moment:], moment


@pytest.mark.needs("Box2D")
def test_wrappers_outside_of_a_replay_are_captured() -> None:
    blocks = [{"id": "StickyActions", "probability": 0.5}, {"id": "FrameStack", "frames": 3}]
    vector = make("LunarLander-v3", 1, wrappers=blocks)
    vector.reset()
    actions = random_actions(vector, STEPS)
    rows(vector, actions[:15])
    other = make("LunarLander-v3", 2, wrappers=blocks)
    other.load_state_dict(through_disk(vector.state_dict()))
    assert rows(other, actions[15:]) == rows(vector, actions[15:])


@pytest.mark.needs("mujoco")
def test_a_changed_model_is_part_of_the_state() -> None:
    vector, other = make("Hopper-v5", 0), make("Hopper-v5", 1)
    vector.reset(), other.reset()
    model = vector.envs[0].unwrapped.model
    model.opt.gravity[2], model.opt.timestep = -3.0, 0.001
    model.geom_friction[:] *= 0.5
    model.stat.meaninertia *= 2.0
    other.load_state_dict(through_disk(vector.state_dict()))
    changed = other.envs[0].unwrapped.model
    assert changed.opt.gravity[2] == -3.0 and changed.stat.meaninertia == model.stat.meaninertia
    assert changed.geom_friction.tobytes() == model.geom_friction.tobytes()
    actions = random_actions(vector, STEPS)
    assert rows(other, actions) == rows(vector, actions)


@pytest.mark.needs("mujoco")
def test_every_array_and_flag_of_the_data_is_put_back() -> None:
    vector, other = make("Humanoid-v5", 0), make("Humanoid-v5", 1)
    vector.reset()
    rows(vector, random_actions(vector, 5))
    other.load_state_dict(through_disk(vector.state_dict()))
    left, right = (each.envs[0].unwrapped.data for each in (vector, other))
    assert left.flg_rnepost and right.flg_rnepost and left.time == right.time > 0
    for name in ("qpos", "qacc_warmstart", "cinert", "cvel", "xipos", "cacc", "ctrl"):
        assert getattr(left, name).any()
        assert getattr(left, name).tobytes() == getattr(right, name).tobytes(), name


@pytest.mark.needs("dm_control")
def test_contacts_and_constraints_are_what_they_were() -> None:
    id = "dm_control/humanoid_CMU-stand"  # big enough for MuJoCo to use sparse matrices
    vector, other = make(id, 0), make(id, 1)
    vector.reset()
    rows(vector, np.zeros((LIMIT - 1, 1, 56), np.float32))
    other.load_state_dict(through_disk(vector.state_dict()))
    left, right = (each.envs[0].unwrapped.suite.physics.data.ptr for each in (vector, other))
    assert left.ncon == right.ncon > 0 and left.nefc == right.nefc > 0
    # the suite's next step starts from these, which live in memory without a fixed place
    for name in ("efc_J", "efc_J_colind", "efc_J_rowadr", "efc_id", "efc_aref", "dof_island"):
        assert getattr(left, name).tobytes() == getattr(right, name).tobytes(), name


@pytest.mark.needs("mujoco")
def test_a_state_does_not_fit_another_simulator() -> None:
    hopper = make("Hopper-v5", 0)
    hopper.reset()
    tree = snapshot.capture(hopper.envs[0].unwrapped.data)
    walker = make("Walker2d-v5", 0)
    with pytest.raises(UserError, match="another MuJoCo model"):
        snapshot.restore(walker.envs[0].unwrapped.data, tree)
    with pytest.raises(snapshot.SnapshotError, match="the saved one was another"):
        snapshot.restore(walker.envs[0].unwrapped, tree)


@pytest.mark.needs("mujoco")
def test_a_snapshot_is_small() -> None:
    vector = make("Humanoid-v5", 0)
    vector.reset()
    tensors, skeleton = split(vector.state_dict())
    # about 65 KB: 35 of results, 25 of the model without its textures (500 KB)
    assert sum(each.nbytes for each in tensors.values()) < 100_000
    assert len(json.dumps(skeleton)) < 20_000


def test_reset_declares_an_environment_inexact() -> None:
    vector = make("CartPole-v1", 0, snapshot="reset")
    vector.reset()
    assert vector.snapshot_level == "E3"
    assert "environment.snapshot=reset" in str(snapshot.obstacle(vector.envs[0]))


def test_replay_can_be_asked_for() -> None:
    vector, other = (make("Pendulum-v1", seed, snapshot="replay") for seed in (0, 1))
    first = vector.reset()
    assert snapshot.level(vector.envs[0]) == "E1"
    assert np.array_equal(first, make("Pendulum-v1", 0, vectorization="sync").reset())
    actions = random_actions(vector, STEPS)
    rows(vector, actions[:30])
    other.load_state_dict(through_disk(vector.state_dict()))
    assert rows(other, actions[30:]) == rows(vector, actions[30:])
    with pytest.raises(UserError, match=r"environment\.snapshot needs"):
        make("CartPole-v1", 0, snapshot="replay", vectorization="native")
    make("CartPole-v1", 0, snapshot="replay")  # auto then means sync
