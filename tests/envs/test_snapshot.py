"""A captured environment goes on exactly, in a fresh object, through JSON and tensors."""

import json
import random
from collections import Counter, OrderedDict, deque, namedtuple
from enum import Enum
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.spec import Discrete
from rl_lab.core.state import join, split
from rl_lab.envs import snapshot
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.make import make_vector
from rl_lab.envs.vector import SyncVector

IDS = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "CliffWalking-v1",
]


def through_disk(tree: Any) -> Any:
    """What a checkpoint does to a tree: sorted JSON and tensors."""
    tensors, skeleton = split(tree)
    return join(tensors, json.loads(json.dumps(skeleton, sort_keys=True)))


def random_actions(vector: Any, steps: int) -> Any:
    generator, space = np.random.default_rng(1), vector.spec.action
    if isinstance(space, Discrete):
        return generator.integers(0, space.n, (steps, vector.num_envs))
    return generator.normal(size=(steps, vector.num_envs, *space.shape))


def assert_equal_futures(left: Any, right: Any, actions: Any) -> None:
    for t, action in enumerate(actions):
        one, other = left.step(action), right.step(action)
        for name in ("obs", "reward", "terminated", "truncated", "next_obs"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), (name, t)


@pytest.mark.parametrize(
    ("id", "vectorization"), [*((id, "sync") for id in IDS), ("CartPole-v1", "native")]
)
def test_a_restored_vector_has_the_same_future(id: str, vectorization: Any) -> None:
    config = EnvironmentConfig(id=id, vectorization=vectorization, max_episode_steps=7)
    vector = make_vector(config, [3, 4])
    assert vector.snapshot_level == "E0"
    vector.reset()
    actions = random_actions(vector, 300)
    for action in actions[:50]:
        vector.step(action)
    state = through_disk(vector.state_dict())
    for action in actions[:7]:  # the state is a copy: what the vector does now is not in it
        vector.step(action)
    one, other = make_vector(config, [8, 9]), make_vector(config, [6, 7])
    other.reset()  # neither a fresh nor a used vector may shine through
    one.load_state_dict(state)
    other.load_state_dict(state)
    assert_equal_futures(one, other, actions[50:])
    again = make_vector(config, [3, 4])
    again.reset()
    for action in actions[:50]:
        again.step(action)
    one.load_state_dict(state)
    assert_equal_futures(one, again, actions[50:])


def test_a_vector_saved_before_its_reset_starts_with_its_seeds() -> None:
    for vectorization in ("sync", "native"):
        config = EnvironmentConfig(id="CartPole-v1", vectorization=vectorization)  # type: ignore[arg-type]
        state = through_disk(make_vector(config, [1, 2]).state_dict())
        other = make_vector(config, [5, 6])
        other.reset()
        other.load_state_dict(state)
        assert np.array_equal(other.reset(), make_vector(config, [1, 2]).reset())


def test_constant_tables_are_a_digest_and_random_ones_are_saved() -> None:
    fixed = make_vector(EnvironmentConfig(id="FrozenLake-v1"), [0, 1])
    fixed.reset()
    assert "table" in fixed.state_dict()["envs"][0]["object"]["env"]["object"]["env"]["object"]["P"]
    config = EnvironmentConfig(id="FrozenLake-v1", kwargs={"map_name": None})  # a random map each
    for seeds in ([0, 1], [0]):
        vector = make_vector(config, seeds)
        vector.reset()
        other = make_vector(config, seeds)
        other.load_state_dict(through_disk(vector.state_dict()))
        assert_equal_futures(vector, other, random_actions(vector, 300))


class Compass(Enum):
    NORTH = 1
    EAST = 2


Place = namedtuple("Place", "x y")


class Robot:
    def __init__(self) -> None:
        self.place = Place(0, 1)
        self.world: Any = None
        self.path = [(0, 1)]


class Warehouse(gym.Env[Any, Any]):
    """Holds state in many shapes, part of it made only in `reset`."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.python = random.Random(seed)
        self.legacy = np.random.RandomState(seed)
        self.robot = Robot()
        self.robot.world = self
        self.shared = self.robot.path
        self.facing = Compass.EAST
        self.recent: deque[int] = deque([1, 2], maxlen=3)
        self.stock = {0: 2.5, (1, 2): [np.float32(0.1)]}
        self.seen = {3, 4}
        self.counts = Counter("aab")
        self.order = OrderedDict(b=1, a=2)
        self.grid = np.asfortranarray(np.arange(6.0).reshape(2, 3))
        self.loads = np.arange(3.0)
        self.letters = np.array([b"S", b"G"])
        self.speed = np.float32(1 / 3)
        self.draw = lambda: None
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.robot.path.append((action, len(self.shared)))
        self.recent.append(int(action))
        self.speed *= np.float32(1.1)
        self.seen.add(len(self.shared))
        return self._frame(), float(self.speed), False, False, {}

    def _frame(self) -> Any:
        noise = self.np_random.normal() + self.legacy.normal() + self.python.random()
        total = sum(self.recent) + len(self.shared) + self.facing.value + self.robot.place.y
        return np.array([noise + total + self.grid.sum()])


def test_custom_python_state_survives() -> None:
    env, other = Warehouse(), Warehouse()
    env.reset(seed=3)
    for _ in range(5):
        env.step(1)
    snapshot.restore(other, through_disk(snapshot.capture(env)))
    assert other.shared is other.robot.path and other.robot.world is other
    assert other.robot.path == env.robot.path and isinstance(other.robot.path[0], tuple)
    assert other.facing is Compass.EAST and isinstance(other.robot.place, Place)
    assert other.recent == env.recent and other.recent.maxlen == 3
    assert other.stock == env.stock and type(other.stock[1, 2][0]) is np.float32
    assert (other.seen, other.counts) == (env.seen, env.counts)
    assert list(other.order) == ["b", "a"] and isinstance(other.order, OrderedDict)
    assert other.grid.flags.f_contiguous and np.array_equal(other.grid, env.grid)
    assert other.letters.tolist() == [b"S", b"G"]
    for _ in range(20):
        left, right = env.step(0), other.step(0)
        assert (left[0].tobytes(), left[1]) == (right[0].tobytes(), right[1])


def test_a_snapshot_is_a_copy_and_leaves_nothing_of_what_was_there() -> None:
    env, used = Warehouse(), Warehouse()
    fresh = snapshot.capture(used)
    env.reset(seed=3)
    tree = snapshot.capture(env)
    used.reset(seed=4)
    for changed in (env, used):
        changed.grid += 1
        changed.loads += 1
        snapshot.restore(used, tree)
        assert (used.grid.sum(), used.loads.sum()) == (15, 3)  # 0 + 1 + …, as captured
    snapshot.restore(used, fresh)
    assert vars(used).keys() == vars(Warehouse()).keys() | {"draw"}  # a function is not state


class Unsaveable(Warehouse):
    """A running Python generator has a state that nobody can read."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.stream = (number for number in range(10))
        return super().reset(**options)


def test_what_cannot_be_captured_is_named_and_starts_anew() -> None:
    vector = SyncVector([Unsaveable()], [0], "unsaveable")
    first = vector.reset()
    assert vector.snapshot_level == "E3"
    assert "env.stream" in str(snapshot.obstacle(vector.envs[0]))
    other = SyncVector([Unsaveable()], [0], "unsaveable")
    other.load_state_dict(through_disk(vector.state_dict()))
    assert other.snapshot_level == "E3"
    with pytest.raises(RuntimeError, match="reset"):
        other.step(np.zeros(1, np.int64))
    assert not np.array_equal(other.reset(), first)  # other seeds than the run began with


def test_a_state_goes_only_into_an_env_made_in_the_same_way() -> None:
    plain = EnvironmentConfig(id="CartPole-v1", vectorization="sync")
    masked = EnvironmentConfig(
        id="CartPole-v1", wrappers=[{"id": "MaskObservation", "indices": [1]}]
    )
    vector = make_vector(plain, [0])
    vector.reset()
    with pytest.raises(snapshot.SnapshotError, match="TimeLimit"):
        make_vector(masked, [0]).load_state_dict(vector.state_dict())


class Homeless(type):
    """A class of which not even the module is known, as SWIG makes them."""

    @property
    def __module__(cls) -> str:
        raise AttributeError("__module__")


def test_a_class_without_a_module_is_an_obstacle_and_no_crash() -> None:
    env = CounterEnv()
    env.world = Homeless("World", (), {"__slots__": ()})()
    assert "env.world" in str(snapshot.obstacle(env))
