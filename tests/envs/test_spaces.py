"""Every space as the lab sees it: names, layouts, indices, and the same rows from every vector."""

from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_lab.collect.collector import RolloutCollector
from rl_lab.core.batch import ACTION, ACTION_MASK, Action
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.spec import Box, Dict, Discrete, MultiDiscrete
from rl_lab.core.tree import named_leaves
from rl_lab.envs.action_replay import Replayed, ResetOnResume
from rl_lab.envs.check import check_env
from rl_lab.envs.make import make_vector
from rl_lab.envs.process import ProcessVector
from rl_lab.envs.spaces import Frames, action_converter, action_space, describe
from rl_lab.envs.vector import GymnasiumVector, SyncVector
from rl_lab.envs.wrappers import FrameSkip, FrameStack
from space_envs import Gates, Rooms, Switches


def one(space: spaces.Space[Any], frame: Any) -> Any:
    """A single frame as a row of the lab."""
    frames = Frames(space)
    rows = frames.empty(1)
    frames.put(rows, 0, frame)
    return frames.space, frames.converted(rows)


def test_nested_parts_get_one_name_and_keep_their_values() -> None:
    env = Rooms()
    frame, _ = env.reset(seed=0)
    space, rows = one(env.observation_space, frame)
    assert isinstance(space, Dict)
    assert list(space.parts) == ["camera", "inner/flags", "inner/speed", "room"]
    assert space.parts["room"] == Discrete(3)
    assert rows["room"].tolist() == [frame["room"] - 1]  # from 1 … 3 to 0 … 2
    assert space.parts["camera"].shape == (3, 18, 20)  # rows first became channels first
    assert rows["camera"].flags.c_contiguous and rows["camera"].dtype == np.uint8
    assert np.array_equal(rows["camera"][0, 2], frame["camera"][:, :, 2])
    assert np.array_equal(rows["inner/speed"][0], frame["inner"]["speed"])
    flags = space.parts["inner/flags"]
    assert isinstance(flags, Box) and flags.dtype == np.int8
    assert (flags.low.tolist(), flags.high.tolist()) == ([0, 0, 0], [1, 1, 1])


def test_a_tuple_is_a_dict_of_numbers() -> None:
    env = Rooms("tuple")
    frame, _ = env.reset(seed=0)
    space, rows = one(env.observation_space, frame)
    assert list(space.parts) == ["0", "1/flags", "1/speed", "2"]
    assert rows["2"].tolist() == [frame[2] - 1]


@pytest.mark.parametrize(
    ("shape", "dtype", "shown"),
    [
        ((64, 48, 3), np.uint8, (3, 64, 48)),
        ((4, 84, 84), np.uint8, (4, 84, 84)),  # channels first already
        ((10, 10, 6), np.float32, (6, 10, 10)),
        ((84, 84), np.uint8, (1, 84, 84)),  # grey
        ((4, 128), np.uint8, (4, 128)),  # a stack of bytes is no image
        ((4, 84), np.float32, (4, 84)),  # a stack of vectors is none
    ],
)
def test_images_are_recognised_and_stored_channels_first(shape, dtype, shown) -> None:
    box = spaces.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)
    picture = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)
    space, rows = one(box, picture)
    assert space.shape == rows.shape[1:] == shown and space.dtype == rows.dtype == dtype
    assert space.low.shape == shown
    assert sorted(rows.reshape(-1).tolist()) == sorted(picture.reshape(-1).tolist())


def test_switches_are_choices_between_two() -> None:
    space = spaces.MultiBinary(4)
    assert action_space(space, "x") == MultiDiscrete((2, 2, 2, 2))
    converted = action_converter(space)(np.array([[0, 1, 1, 0]]))
    assert converted.dtype == np.int8 and space.contains(converted[0])
    square = spaces.MultiBinary([2, 3])
    assert action_space(square, "x") == MultiDiscrete((2,) * 6)
    assert action_converter(square)(np.zeros((5, 6), np.int64)).shape == (5, 2, 3)


def test_what_is_not_supported_is_named() -> None:
    with pytest.raises(UserError, match=r"the sky has a Text, which is not supported"):
        Frames(spaces.Dict({"a": spaces.Text(5)}), "the sky")
    with pytest.raises(UserError, match=r"has a Dict.*Box, Discrete, MultiDiscrete or MultiBi"):
        action_space(spaces.Dict({"a": spaces.Discrete(2)}), "the action space")


def flat(obs: Any) -> list[tuple[str, bytes]]:
    return [(name, leaf.tobytes()) for name, leaf in named_leaves(obs, "obs")]


def transitions(vector: Any, steps: int) -> list[list[Any]]:
    """Real transitions of each env, as bytes."""
    found: list[list[Any]] = [[] for _ in range(vector.num_envs)]
    obs, generator = vector.reset(), np.random.default_rng(0)
    actions = generator.integers(0, 3, (vector.num_envs, 400))
    while min(len(each) for each in found) < steps:
        action = np.array([row[len(each)] for row, each in zip(actions, found, strict=True)])
        step = vector.step(action)
        for i, each in enumerate(found):
            if step.valid is None or step.valid[i]:
                ends = bool(step.terminated[i]), bool(step.truncated[i])
                frames = [{k: v[i] for k, v in o.items()} for o in (obs, step.next_obs)]
                each.append((*map(flat, frames), float(step.reward[i]), ends))
        obs = step.obs
    return [each[:steps] for each in found]


def modes() -> list[str]:
    return ["process", "SAME_STEP", "NEXT_STEP", "DISABLED"]


@pytest.mark.parametrize("shape", ["dict", "tuple"])
@pytest.mark.parametrize("kind", modes())
def test_every_vector_shows_the_same_dicts(kind: str, shape: str) -> None:
    make = partial(Rooms, shape)
    seeds = [3, 4, 5]
    other: Any
    if kind == "process":
        other = ProcessVector(make, seeds, "rooms", workers=2)
    else:
        vector = SyncVectorEnv([make] * 3, copy=False, autoreset_mode=AutoresetMode[kind])
        other = GymnasiumVector(vector, seeds, "rooms")
    own = SyncVector([make() for _ in seeds], seeds, "rooms")
    expected = transitions(own, 60)
    assert sum(row[3][0] for column in expected for row in column) > 5  # episodes do end
    assert transitions(other, 60) == expected
    other.close()


def test_a_dict_vector_is_put_back_in_mid_episode() -> None:
    for make in (
        lambda: SyncVector([Rooms(), Rooms()], [1, 2], "rooms"),
        lambda: ProcessVector(Rooms, [1, 2], "rooms", workers=2),
    ):
        first, second = make(), make()
        first.reset()
        for _ in range(5):
            first.step(np.zeros(2, np.int64))
        second.load_state_dict(first.state_dict())
        for _ in range(30):
            left, right = first.step(np.ones(2, np.int64)), second.step(np.ones(2, np.int64))
            assert flat(left.obs) == flat(right.obs)
            assert flat(left.next_obs) == flat(right.next_obs)
        first.close()
        second.close()


# ------------------------------------------------------------------------ masks


def masked(**kwargs: Any) -> Any:
    config = EnvironmentConfig(
        id="space_envs:Gates-v0", wrappers=[{"id": "ActionMask"}], kwargs=kwargs
    )
    return make_vector(config, [0, 1])


@pytest.mark.parametrize("several", [False, True])
def test_the_mask_is_a_part_of_the_observation(several: bool) -> None:
    vector = masked(several=several)
    obs = vector.reset()
    assert list(obs) == [ACTION_MASK, "observation"]
    assert obs[ACTION_MASK].dtype == np.int8
    for index, env in enumerate(vector.envs):
        own = np.concatenate(env.unwrapped.masks)
        assert obs[ACTION_MASK][index].tolist() == own.tolist()
    vector.close()


def test_a_mask_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(UserError, match=r"gives no info\['action_mask'\]"):
        masked(silent=True).reset()
    with pytest.raises(UserError, match="needs a discrete action"):
        make_vector(EnvironmentConfig(id="Pendulum-v1", wrappers=[{"id": "ActionMask"}]), [0])

    class Wrong(Gates):
        def first(self) -> Any:
            return np.zeros(3, np.float32), {"action_mask": self.given}

    from rl_lab.envs.wrappers.action import ActionMask

    env = Wrong()
    env.given = np.ones(4)
    with pytest.raises(UserError, match="4 entries for 5 actions"):
        ActionMask(env).reset()
    env.given = np.zeros(5)
    with pytest.raises(UserError, match="forbids every action"):
        ActionMask(env).reset()


def test_switches_run_in_a_vector() -> None:
    vector = SyncVector([Switches(), Switches()], [0, 1], "switches")
    obs = vector.reset()
    step = vector.step(obs.astype(np.int64))
    assert step.reward.tolist() == [1.0, 1.0]


def test_blackjack_is_a_tuple_that_can_be_played() -> None:
    vector = make_vector(EnvironmentConfig(id="Blackjack-v1"), [0, 1])
    assert list(vector.reset()) == ["0", "1", "2"]
    assert isinstance(gym.make("Blackjack-v1").observation_space, spaces.Tuple)
    for _ in range(20):
        step = vector.step(np.array([0, 1]))
    assert step.next_obs["0"].shape == (2,)


def test_whole_numbers_in_a_box_are_rounded_for_the_environment_only() -> None:
    vector = make_vector(EnvironmentConfig(id="space_envs:Whole-v0"), [0])
    converted = action_converter(vector.envs[0].action_space)(np.array([[2.6, 11.0]]))
    assert converted.tolist() == [[3, 10]] and converted.dtype == np.int32
    collector = RolloutCollector(vector)
    sampled = np.array([[2.6, 0.4]], np.float32)
    rows = collector.collect(lambda obs, state, *, deterministic: Action(sampled), steps=3)
    assert rows.trajectory is not None
    assert rows.trajectory[ACTION].numpy()[1].tolist() == sampled.tolist()  # as it was sampled


def test_a_bad_number_in_a_worker_is_the_runs_business() -> None:
    config = EnvironmentConfig(id="space_envs:BreaksDown-v0", vectorization="process", workers=2)
    vector: Any = make_vector(config, [0, 1])
    vector.reset()
    with pytest.raises(NonFiniteError, match="the simulation broke down") as caught:
        for _ in range(30):
            vector.step(np.zeros(2, np.int64))
    assert caught.value.details == {"step": 20} and vector.faults == 0
    assert vector.reset().shape == (2, 2)  # the workers are still there
    vector.close()


@pytest.mark.parametrize("vectorization", ["sync", "process"])
def test_a_clock_outside_of_a_replayed_environment_goes_on(vectorization: str) -> None:
    config = EnvironmentConfig(
        id="LunarLander-v3",
        wrappers=[{"id": "TimeAware"}],
        vectorization=vectorization,
        max_episode_steps=10,
        workers=1,
    )
    vector: Any = make_vector(config, [0])
    vector.reset()
    for step in range(1, 26):  # into the third episode
        shown = vector.step(np.zeros(1, np.int64))
        assert shown.next_obs[0, -1] == pytest.approx((step - 1) % 10 / 10 + 0.1)
    assert vector.snapshot_level == "E1"
    vector.close()


def test_check_env_proves_worlds_of_dicts() -> None:
    report = check_env("space_envs:Rooms-v0", steps=40)
    assert (report.level, report.reason) == ("E0", None)
    assert check_env("Blackjack-v1", steps=40).level == "E0"


def test_an_observation_outside_of_its_space_is_named() -> None:
    class Wrong(Switches):
        def _shown(self) -> Any:
            return np.zeros(5, np.int8)

    shapes = r"reset\(\) of environment 0 returned an observation of shape \(5,\); expected \(4,\)"
    with pytest.raises(UserError, match=shapes):
        SyncVector([Wrong()], [0], "wrong").reset()

    class Missing(Rooms):
        def _shown(self) -> Any:
            return {"camera": np.zeros((18, 20, 3), np.uint8)}

    with pytest.raises(UserError, match="the keys camera; expected the keys camera, inner, room"):
        SyncVector([Missing()], [0], "missing").reset()


def test_a_mask_without_the_wrapper_that_forbids_everything_is_refused() -> None:
    class Shut(Rooms):
        def __init__(self) -> None:
            super().__init__()
            mask = spaces.MultiBinary(3)
            self.observation_space = spaces.Dict({"x": spaces.Box(0, 1, (1,)), ACTION_MASK: mask})

        def _shown(self) -> Any:
            return {"x": np.zeros(1, np.float32), ACTION_MASK: np.zeros(3, np.int8)}

    collector = RolloutCollector(SyncVector([Shut()], [0], "shut"))
    with pytest.raises(UserError, match="environment 0 forbids every action"):
        zero = Action(np.zeros(1, np.int64))
        collector.collect(lambda obs, state, *, deterministic: zero, steps=2)


def test_a_stack_of_frames_is_known_as_one() -> None:
    def stack(*wrappers: dict[str, Any]) -> int:
        config = EnvironmentConfig(id="CartPole-v1", num_envs=1, wrappers=list(wrappers))
        with closing(make_vector(config, [0])) as vector:
            return vector.spec.stack

    assert stack() == 1
    ours, scaled = {"id": "FrameStack", "frames": 3}, {"id": "ScaleObservation", "divide": 2}
    assert stack(scaled, ours) == 3
    assert stack(ours, {"id": "StickyActions"}, {"id": "RewardShape"}, {"id": "SkipStart"}) == 3
    assert stack(ours, {"id": "CountBonus", "bins": 1, "low": -1, "high": 1}) == 3
    assert stack(ours, {"id": "ActionRepeat", "times": 2}) == 1  # every other frame is not shown
    assert stack(ours, scaled) == 1
    theirs = gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 4)
    assert describe(theirs, "theirs").stack == 4


class Film(gym.Env[Any, Any]):
    """Random pictures."""

    action_space = spaces.Discrete(2)

    def __init__(self, *shape: int, kind: Any = np.uint8) -> None:
        self.observation_space = spaces.Box(0, 255, shape, kind)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


class Noise(gym.ObservationWrapper[Any, Any, Any]):
    """Another one on every frame of a stack, at every step."""

    def observation(self, observation: Any) -> Any:
        return observation ^ np.random.default_rng().integers(2, size=observation.shape, dtype="u1")


def stacked(frames: int, *shape: int, kind: Any = np.uint8) -> Any:
    return FrameStack(Film(*shape, kind=kind), frames)


@pytest.mark.parametrize(
    ("env", "stack"),
    [
        (stacked(4, 40, 40, 3), 4),
        (stacked(4, 3, 40, 40), 4),
        (stacked(4, 40, 40), 4),
        (stacked(4, 5), 4),
        (gym.wrappers.FrameStackObservation(Film(40, 40, 3), 4), 4),
        (gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(stacked(4, 40, 40, 3)), 9), 4),
        (gym.wrappers.ClipReward(gym.wrappers.NormalizeReward(stacked(4, 40, 40, 3)), 0, 1), 4),
        (gym.wrappers.RecordEpisodeStatistics(ResetOnResume(stacked(4, 40, 40, 3))), 4),
        (Replayed(partial(stacked, 4, 40, 40, 3)), 4),
        (gym.wrappers.FlattenObservation(stacked(4, 40, 40, 3)), 1),  # a quarter is ten rows
        (Noise(stacked(4, 40, 40, 3)), 1),
        (FrameSkip(stacked(4, 40, 40, 3)), 1),
        (stacked(4, 8, 8, 3), 1),  # 12 channels of 8 x 8 are taken for 8 of 8 x 12
        (stacked(2, 10, 2, kind=np.float32), 1),  # frames [2, 10, 2] for an image of 2 channels
    ],
)
def test_a_stack_counts_where_each_observation_follows_from_the_last(env: Any, stack: int) -> None:
    assert describe(env, "film").stack == stack
    if stack == 1:
        return
    frames = Frames(env.observation_space)
    seen = [env.reset()[0], *(env.step(0)[0] for _ in range(3))]
    rows = frames.converted(np.stack(seen))
    width = rows.shape[1] // stack
    assert np.array_equal(rows[1:, :-width], rows[:-1, width:])
