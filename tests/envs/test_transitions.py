"""Every vector tells the same list of real transitions, whatever Gymnasium's autoreset mode."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.spec import Discrete, MultiDiscrete
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.make import make_vector
from rl_lab.envs.vector import GymnasiumVector, SyncVector

LENGTHS, ROWS = (3, 5), 40
Row = tuple[list[float], float, bool, bool, list[float]]


def counters(ends: str) -> list[Any]:
    return [lambda length=length: CounterEnv([length], ends) for length in LENGTHS]


def make(kind: str, ends: str) -> SyncVector | GymnasiumVector:
    if kind == "own":
        return SyncVector([build() for build in counters(ends)], [0, 1], "counter")
    # copy=False: it hands out the buffer that it writes again, which must not reach anyone.
    vector = SyncVectorEnv(counters(ends), copy=False, autoreset_mode=AutoresetMode[kind])
    return GymnasiumVector(vector, [0, 1], "counter")


def transitions(vector: Any, rows: int) -> list[list[Row]]:
    """The first real transitions of each env, as a collector would store them."""
    found: list[list[Row]] = [[] for _ in range(vector.num_envs)]
    obs = vector.reset()
    while min(len(each) for each in found) < rows:
        step = vector.step(np.zeros(vector.num_envs, np.int64))
        for i, each in enumerate(found):
            if step.valid is None or step.valid[i]:
                each.append(
                    (
                        obs[i].tolist(),
                        float(step.reward[i]),
                        bool(step.terminated[i]),
                        bool(step.truncated[i]),
                        step.next_obs[i].tolist(),
                    )
                )
        obs = step.obs
    return [each[:rows] for each in found]


def by_definition(length: int, ends: str, rows: int) -> list[Row]:
    """Step t of episode e goes from [e, t] to [e, t + 1] and pays t + 1; both flags: terminated."""
    expected = []
    for row in range(rows):
        episode, t = divmod(row, length)
        over = t == length - 1
        expected.append(
            (
                [float(episode), float(t)],
                t + 1.0,
                over and ends != "truncated",
                over and ends == "truncated",
                [float(episode), t + 1.0],
            )
        )
    return expected


@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("kind", ["own", "SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_every_mode_tells_the_same_transitions(kind: str, ends: str) -> None:
    found = transitions(make(kind, ends), ROWS)
    assert found == [by_definition(length, ends, ROWS) for length in LENGTHS]


@pytest.mark.parametrize("kind", ["own", "SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_only_next_step_rows_are_marked_and_they_are_the_resets(kind: str) -> None:
    vector = make(kind, "terminated")
    vector.reset()
    steps = [vector.step(np.zeros(2, np.int64)) for _ in range(40)]
    if kind != "NEXT_STEP":
        assert all(step.valid is None for step in steps)
        return
    # A cycle is 3 real rows and a reset (or 5 and one): 40 = 10 * 4, and 40 = 6 * 6 + 4.
    assert np.sum([step.valid for step in steps], axis=0).tolist() == [30, 34]


@pytest.mark.parametrize("kind", ["own", "SAME_STEP", "DISABLED"])
def test_at_an_end_next_obs_is_the_final_frame_and_obs_the_reset_frame(kind: str) -> None:
    vector = make(kind, "truncated")
    vector.reset()
    for _ in range(3):
        step = vector.step(np.zeros(2, np.int64))
    assert step.next_obs.tolist() == [[0, 3], [0, 3]]
    assert step.obs.tolist() == [[1, 0], [0, 3]]


@pytest.mark.parametrize("kind", ["own", "SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_later_steps_do_not_write_into_earlier_ones(kind: str) -> None:
    vector = make(kind, "terminated")
    first = vector.reset()
    steps = [vector.step(np.zeros(2, np.int64)) for _ in range(4)]
    copies = [np.copy(step.next_obs) for step in steps]
    for _ in range(20):
        vector.step(np.zeros(2, np.int64))
    assert first.tolist() == [[0, 0], [0, 0]]
    assert all(np.array_equal(s.next_obs, c) for s, c in zip(steps, copies, strict=True))


def test_sync_vector_equals_gymnasiums_on_cartpole() -> None:
    seeds, actions = [5, 0, 7], np.random.default_rng(0).integers(0, 2, (400, 3))
    builders = [lambda: gym.make("CartPole-v1") for _ in seeds]
    theirs = GymnasiumVector(
        SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP), seeds, "CartPole-v1"
    )
    ours = make_vector(EnvironmentConfig(id="CartPole-v1", vectorization="sync"), seeds)
    assert np.array_equal(ours.reset(), theirs.reset())
    for action in actions:
        left, right = ours.step(action), theirs.step(action)
        for name in ("obs", "reward", "terminated", "truncated", "next_obs"):
            mine, other = getattr(left, name), getattr(right, name)
            assert mine.dtype == other.dtype and mine.tobytes() == other.tobytes(), name


class Recorder(gym.Env[Any, Any]):
    """Remembers the action it was given; observes it too when the spaces are equal."""

    def __init__(self, observation: gym.Space[Any], action: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action
        self.received: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.low if self.is_box() else self.observation_space.start, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.received = action
        return action, 0.0, False, False, {}

    def is_box(self) -> bool:
        return isinstance(self.observation_space, gym.spaces.Box)


def test_the_env_receives_clipped_actions_of_its_dtype() -> None:
    box = gym.spaces.Box(-0.1, 0.1, (2,), np.float32)
    env = Recorder(box, box)
    vector = SyncVector([env], [0], "recorder")
    vector.reset()
    sampled = np.array([[3.0, -0.05]])
    vector.step(sampled)
    assert env.received.dtype == np.float32
    assert env.received.tolist() == [np.float32(0.1), np.float32(-0.05)]
    assert sampled.tolist() == [[3.0, -0.05]]  # what the buffer stores is untouched


def test_discrete_spaces_start_at_zero_for_us() -> None:
    space = gym.spaces.Discrete(3, start=4)
    env = Recorder(space, space)
    vector = SyncVector([env], [0], "recorder")
    assert isinstance(vector.spec.action, Discrete) and vector.spec.action.n == 3
    first = vector.reset()
    assert first.tolist() == [0] and first.dtype == np.int64 and first.shape == (1,)
    step = vector.step(np.array([2]))
    assert env.received == 6
    assert step.obs.tolist() == [2] and step.obs.dtype == np.int64


def test_multidiscrete_spaces_are_flat_and_start_at_zero_for_us() -> None:
    space = gym.spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, 7]])
    env = Recorder(space, space)
    vector = SyncVector([env], [0], "recorder")
    assert isinstance(vector.spec.action, MultiDiscrete)
    assert vector.spec.action.nvec == (2, 3, 4, 5)
    assert vector.reset().tolist() == [[0, 0, 0, 0]]
    step = vector.step(np.array([[1, 2, 3, 4]]))
    assert env.received.tolist() == [[2, 2], [3, 11]]
    assert step.next_obs.tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_environments_are_distinct_and_runs_are_equal(vectorization: Any) -> None:
    config = EnvironmentConfig(id="CartPole-v1", vectorization=vectorization)
    first = make_vector(config, range(8)).reset()
    assert len(np.unique(first, axis=0)) == 8
    assert np.array_equal(first, make_vector(config, range(8)).reset())
    assert not np.array_equal(first, make_vector(config, range(1, 9)).reset())


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_seeds_hold_for_the_first_reset_and_zero_is_a_seed(vectorization: Any) -> None:
    config = EnvironmentConfig(id="CartPole-v1", vectorization=vectorization)
    vector, again = make_vector(config, [0, 0]), make_vector(config, [0, 0])
    first = vector.reset()
    assert np.array_equal(first, again.reset())  # unseeded, these would differ
    second = vector.reset()
    assert not np.array_equal(first, second)  # the generators went on
    assert np.array_equal(first, vector.reset([0, 0]))
    assert np.array_equal(second, vector.reset())


def test_a_vector_must_be_reset_before_it_is_stepped() -> None:
    with pytest.raises(RuntimeError, match="reset"):
        make("own", "terminated").step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="as many seeds"):
        SyncVector([CounterEnv()], [0, 1], "counter")
