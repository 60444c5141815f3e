"""Wrappers of actions and of time, by hand."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from picture_env import Picture
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import make_vector
from rl_lab.envs.wrappers import wrap

COUNTER = "rl_lab/Counter-v0"


class Remembers(gym.Env[Any, Any]):
    """Writes down every action that reaches it."""

    observation_space = gym.spaces.Discrete(1)

    def __init__(self, space: gym.Space[Any]) -> None:
        self.action_space = space
        self.got: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.got.append(action)
        return 0, 0.0, False, False, {}


def counter(*blocks: dict[str, Any], **settings: Any) -> Any:
    """One CounterEnv: observes [episode, t], pays t + 1 … here t after the step."""
    kwargs = {"lengths": settings.pop("lengths", [5])}
    config = EnvironmentConfig(id=COUNTER, kwargs=kwargs, wrappers=list(blocks), **settings)
    return make_vector(config, [0])


def stepped(vector: Any, count: int) -> list[Any]:
    return [vector.step(np.zeros(1, np.int64)) for _ in range(count)]


def test_stacked_frames_are_of_one_episode() -> None:
    vector = counter({"id": "FrameStack", "frames": 3}, lengths=[2, 4])
    first = vector.reset()[0]
    assert first.tolist() == [[0, 0]] * 3
    steps = stepped(vector, 3)
    assert steps[0].next_obs[0].tolist() == [[0, 0], [0, 0], [0, 1]]
    assert steps[1].next_obs[0].tolist() == [[0, 0], [0, 1], [0, 2]]  # the true last frame
    assert steps[1].obs[0].tolist() == [[1, 0]] * 3  # and nothing of it in the next episode
    assert steps[2].next_obs[0].tolist() == [[1, 0], [1, 0], [1, 1]]
    assert first.tolist() == [[0, 0]] * 3


def test_a_stack_keeps_frames_that_the_environment_overwrites() -> None:
    stack, plain = wrap(Picture(), [{"id": "FrameStack", "frames": 2}]), Picture()
    stack.reset(seed=3)
    old = plain.reset(seed=3)[0].copy()
    for action in (0, 1, 2):
        both, new = stack.step(action)[0], plain.step(action)[0].copy()
        assert both.shape == (6, 8, 6)
        assert np.array_equal(both[..., :3], old) and np.array_equal(both[..., 3:], new)
        old = new


@pytest.mark.parametrize(
    ("space", "stacked"),
    [
        (gym.spaces.Discrete(5), (2,)),
        (gym.spaces.MultiDiscrete([2, 3]), (2, 2)),
        (gym.spaces.Box(0, 1, (3,)), (2, 3)),
        (gym.spaces.Box(0, 255, (84, 84), np.uint8), (2, 84, 84)),
        (gym.spaces.Box(0, 255, (84, 84, 1), np.uint8), (84, 84, 2)),
        (gym.spaces.Box(0, 255, (3, 64, 64), np.uint8), (6, 64, 64)),
    ],
)
def test_the_shape_of_a_stack(space: gym.Space[Any], stacked: tuple[int, ...]) -> None:
    env = Remembers(gym.spaces.Discrete(2))
    env.observation_space = space  # type: ignore[assignment]
    env.reset = lambda **_: (space.sample(), {})  # type: ignore[method-assign]
    wrapped = wrap(env, [{"id": "FrameStack", "frames": 2}])
    obs, _ = wrapped.reset()
    assert obs.shape == stacked and wrapped.observation_space.contains(obs)


def test_a_skip_sums_rewards_and_stops_at_the_end() -> None:
    for block in ({"id": "FrameSkip", "skip": 3}, {"id": "ActionRepeat", "times": 3}):
        vector = counter(block, lengths=[5])
        vector.reset()
        first, second, third = stepped(vector, 3)
        assert first.next_obs.tolist() == [[0, 3]] and first.reward.tolist() == [1 + 2 + 3]
        assert second.next_obs.tolist() == [[0, 5]] and second.reward.tolist() == [4 + 5]
        assert first.terminated.tolist() == [False] and second.terminated.tolist() == [True]
        assert second.obs.tolist() == [[1, 0]] and third.next_obs.tolist() == [[1, 3]]


def test_pooling_takes_the_larger_of_the_last_two_frames_of_the_decision() -> None:
    pooled, plain = wrap(Picture(), [{"id": "FrameSkip", "max_pool": True}]), Picture()
    pooled.reset(seed=1)
    plain.reset(seed=1)
    lengths = set()
    for _ in range(60):
        frames, ended = [], False
        while len(frames) < 4 and not ended:
            obs, _, ended, _, _ = plain.step(1)
            frames.append(obs.copy())
        shown, reward, terminated, _, _ = pooled.step(1)
        assert np.array_equal(shown, np.maximum.reduce(frames[-2:]))
        assert reward == len(frames) and terminated == ended
        lengths.add(len(frames))
        if ended:
            pooled.reset()
            plain.reset()
    assert lengths == {1, 2, 3, 4}  # also an end after the first frame, which then stands alone


@pytest.mark.parametrize("outside", [True, False])
def test_time_is_the_share_of_the_limit_whatever_is_skipped(outside: bool) -> None:
    blocks = [{"id": "FrameSkip", "skip": 2}, {"id": "TimeAware"}][:: 1 if outside else -1]
    vector = counter(*blocks, lengths=[100], max_episode_steps=8)
    assert vector.reset().tolist() == [[0, 0, 0]]
    steps = stepped(vector, 5)
    assert [step.next_obs[0, 2] for step in steps] == [0.25, 0.5, 0.75, 1, 0.25]
    assert steps[3].truncated.tolist() == [True] and steps[3].obs[0, 2] == 0
    assert vector.spec.observation.high[2] == 1 and vector.spec.observation.shape == (3,)


def test_sticky_actions_repeat_what_was_executed() -> None:
    env = Remembers(gym.spaces.Discrete(100))
    always = wrap(env, [{"id": "StickyActions", "probability": 1}])
    for first in (7, 3):
        always.reset(seed=0)
        for action in (first, 8, 9):
            always.step(action)
        assert env.got == [first] * 3  # the first one is the policy's own, in every episode
        env.got.clear()
    sticky = wrap(env, [{"id": "StickyActions", "probability": 0.25}])
    sticky.reset(seed=1)
    for action in range(4000):
        sticky.step(action % 100)
    pairs = enumerate(zip(env.got, env.got[1:], strict=False), start=1)
    repeated = [t for t, (before, now) in pairs if before == now]
    assert 900 < len(repeated) < 1100
    assert all(env.got[t] in (t % 100, env.got[t - 1]) for t in range(1, 4000))


def test_sticky_actions_follow_the_seed_and_leave_the_environments_own_stream_alone() -> None:
    def played(seed: int) -> tuple[list[Any], float]:
        env = Remembers(gym.spaces.Discrete(50))
        sticky = wrap(env, [{"id": "StickyActions", "probability": 0.5}])
        sticky.reset(seed=seed)
        for action in range(50):
            sticky.step(action)
        return env.got, env.np_random.random()

    assert played(1) == played(1) and played(1)[0] != played(2)[0]
    assert played(1)[1] == gym.utils.seeding.np_random(1)[0].random()


def test_actions_from_minus_one_to_one_become_the_environments_own() -> None:
    env = Remembers(gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 10])))
    wrapped = wrap(env, [{"id": "RescaleAction"}])
    assert wrapped.action_space == gym.spaces.Box(-1, 1, (2,))
    for action in ([-1, -1], [0, 0], [1, 0.5]):
        wrapped.step(np.float32(action))
    assert np.allclose(env.got, [[-2, 0], [0, 5], [2, 7.5]])


def test_rounding_never_leaves_the_range() -> None:
    generator = np.random.default_rng(0)
    low, high = np.sort(generator.normal(size=(2, 500)), axis=0).astype(np.float32)
    env = Remembers(gym.spaces.Box(low, high))
    wrapped = wrap(env, [{"id": "RescaleAction"}])
    for corner in (-1, 1):
        wrapped.step(np.full(500, corner, np.float32))
    assert all(env.action_space.contains(action) for action in env.got)
    assert np.allclose(env.got, [low, high], atol=1e-5)


def test_remapped_actions() -> None:
    env = Remembers(gym.spaces.Discrete(6))
    wrapped = wrap(env, [{"id": "ActionRemap", "actions": [0, 5, 3]}])
    assert wrapped.action_space == gym.spaces.Discrete(3)
    for action in (0, 1, np.int64(2)):
        wrapped.step(action)
    assert env.got == [0, 5, 3]


def test_a_list_of_vectors_makes_a_continuous_action_discrete() -> None:
    env = Remembers(gym.spaces.Box(-1, 1, (2,)))
    wrapped = wrap(env, [{"id": "ActionRemap", "actions": [[0, 0], [-1, 0.5]]}])
    wrapped.step(1)
    env.got[0][:] = 9  # the environment may do what it likes with its action
    wrapped.step(1)
    assert env.got[1].tolist() == [-1, 0.5] and env.got[1].dtype == np.float32
