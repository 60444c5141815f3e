"""Observation wrappers, by hand."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from picture_env import Picture
from rl_lab.core.errors import UserError
from rl_lab.envs.wrappers import wrap


class Shows(gym.Env[Any, Any]):
    """Always the same observation."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: gym.Space[Any], observation: Any) -> None:
        self.observation_space, self.observation = space, observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation, {}


def seen(env: gym.Env[Any, Any], *blocks: dict[str, Any]) -> Any:
    """The first observation through the wrappers; it must lie in the space they declare."""
    wrapped = wrap(env, blocks)
    obs, _ = wrapped.reset(seed=0)
    assert wrapped.observation_space.contains(obs), wrapped.observation_space
    return obs


def image(pixels: Any) -> Shows:
    array = np.array(pixels, np.uint8)
    return Shows(gym.spaces.Box(0, 255, array.shape, np.uint8), array)


def vector(low: Any, high: Any, values: Any, dtype: Any = np.float32) -> Shows:
    space = gym.spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
    return Shows(space, np.array(values, dtype))


COLOURS = [[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], [[43, 43, 43]] * 4]
GREYS = [[76, 150, 29, 255], [43, 43, 43, 43]]  # 0.299·255=76.2, 0.587·255=149.7, 0.114·255=29.1


def test_grey_is_brightness() -> None:
    assert seen(image(COLOURS), {"id": "Grayscale"}).tolist() == GREYS
    kept = seen(image(COLOURS), {"id": "Grayscale", "keep_channel": True})
    assert kept.shape == (2, 4, 1) and kept[..., 0].tolist() == GREYS
    first = np.moveaxis(np.array(COLOURS), -1, 0)  # [3, 2, 4]
    assert seen(image(first), {"id": "Grayscale"}).tolist() == GREYS
    assert seen(image(first), {"id": "Grayscale", "keep_channel": True}).shape == (1, 2, 4)


def test_every_grey_stays_itself() -> None:
    ramp = np.repeat(np.arange(256)[None, :, None], 3, axis=2)
    assert seen(image(ramp), {"id": "Grayscale"})[0].tolist() == list(range(256))


def test_a_resized_pixel_is_the_mean_of_what_it_covers() -> None:
    halves = image([[0, 10, 100, 200], [20, 30, 0, 100]])
    assert seen(halves, {"id": "Resize", "size": [1, 2]}).tolist() == [[15, 100]]
    # Three columns into two: a new one covers 1.5 old ones, (30 + 0.5·60) / 1.5 = 40.
    thirds = image([[30, 60, 90]])
    assert seen(thirds, {"id": "Resize", "size": [1, 2]}).tolist() == [[40, 80]]
    assert seen(image([[7, 9]]), {"id": "Resize", "size": [2, 4]}).tolist() == [[7, 7, 9, 9]] * 2
    white = image(np.full((210, 160), 255))
    assert (seen(white, {"id": "Resize"}) == 255).all()


def test_resize_finds_the_channels_and_keeps_the_type() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3))
    last = seen(image(pixels), {"id": "Resize", "size": [3, 4]})
    first = seen(image(np.moveaxis(pixels, -1, 0)), {"id": "Resize", "size": [3, 4]})
    assert last.shape == (3, 4, 3) and first.shape == (3, 3, 4)
    assert np.array_equal(np.moveaxis(last, -1, 0), first)
    means = pixels.reshape(3, 2, 4, 2, 3).mean((1, 3))
    assert np.abs(last - means).max() <= 0.5
    shallow = vector(np.zeros((2, 2)), np.ones((2, 2)), [[0, 0.5], [0.5, 0.5]])
    assert seen(shallow, {"id": "Resize", "size": 1}).tolist() == [[0.375]]


def test_the_usual_picture_chain() -> None:
    chain = [{"id": "Grayscale"}, {"id": "Resize", "size": 4}, {"id": "FrameStack", "frames": 3}]
    assert seen(Picture(), *chain).shape == (3, 4, 4)
    assert seen(Picture(), *chain[1:]).shape == (4, 4, 9)


def test_scaling_subtracts_and_divides() -> None:
    env = vector([0, -np.inf], [10, 4], [6, 2])
    block = {"id": "ScaleObservation", "subtract": [5, "1e0"], "divide": [5, -2]}
    wrapped = wrap(env, [block])
    assert seen(env, block).tolist() == [np.float32(0.2), -0.5]
    assert wrapped.observation_space.low.tolist() == [-1, -1.5]
    assert wrapped.observation_space.high.tolist() == [1, np.inf]
    shades = seen(image([[0, 51, 255]]), {"id": "ScaleObservation", "divide": 255})
    assert shades.dtype == np.float32 and shades.tolist() == [[0, np.float32(0.2), 1]]
    assert seen(vector([0], [1], [1], np.float64), {"id": "ScaleObservation"}).dtype == np.float64


def test_one_hot() -> None:
    index = Shows(gym.spaces.Discrete(3, start=5), np.int64(6))
    assert seen(index, {"id": "OneHotObservation"}).tolist() == [0, 1, 0]
    several = Shows(gym.spaces.MultiDiscrete([2, 3]), np.array([1, 0]))
    assert seen(several, {"id": "OneHotObservation"}).tolist() == [0, 1, 1, 0, 0]
    assert seen(index, {"id": "OneHotObservation"}).dtype == np.float32


@pytest.mark.parametrize(
    ("n", "start", "value", "encoding", "expected"),
    [
        (6, 0, 5, "binary", [1, 0, 1]),
        (8, 0, 1, "binary", [0, 0, 1]),
        (9, 0, 8, "binary", [1, 0, 0, 0]),
        (1, 0, 0, "binary", [0]),
        (4, 10, 13, "binary", [1, 1]),
        (4, 10, 11, "onehot", [0, 1, 0, 0]),
        (500, 0, 7, "array", [7]),
    ],
)
def test_encoded_indices(
    n: int, start: int, value: int, encoding: str, expected: list[int]
) -> None:
    env = Shows(gym.spaces.Discrete(n, start=start), np.int64(value))
    obs = seen(env, {"id": "DiscreteEncoder", "encoding": encoding})
    assert obs.dtype == np.float32 and obs.tolist() == expected


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        ([-1.2, -0.07], [0, 0]),
        ([0.6, 0.07], [2, 1]),  # the upper bound belongs to the last bin
        ([-0.3, -0.001], [1, 0]),  # thirds of [-1.2, 0.6] end at -0.6 and 0
        ([0.01, 0.0], [2, 1]),
        ([9.0, -9.0], [2, 0]),  # outside: the nearest
        ([np.inf, -np.inf], [2, 0]),
    ],
)
def test_bins(values: list[float], bins: list[int]) -> None:
    env = vector([-1.2, -0.07], [0.6, 0.07], values)
    block = {"id": "DiscretizeObservation", "bins": [3, 2]}
    assert seen(env, block) == bins[0] * 2 + bins[1]
    assert wrap(env, [block]).observation_space == gym.spaces.Discrete(6)
    assert seen(env, {**block, "joint": False}).tolist() == bins


def test_bins_between_given_bounds() -> None:
    env = vector([-np.inf], [np.inf], [0.9])
    assert seen(env, {"id": "DiscretizeObservation", "bins": 4, "low": -1, "high": 1}) == 3


@pytest.mark.parametrize(
    ("id", "velocities", "size"),
    [
        ("CartPole-v1", [1, 3], 4),
        ("Acrobot-v1", [4, 5], 6),
        ("Pendulum-v1", [2], 3),
        ("MountainCar-v0", [1], 2),
        ("MountainCarContinuous-v0", [1], 2),
        pytest.param("LunarLander-v3", [2, 3, 5], 8, marks=pytest.mark.needs("Box2D")),
    ],
)
def test_positions_and_velocities_are_the_two_halves(
    id: str, velocities: list[int], size: int
) -> None:
    halves = {}
    for name in ("PositionOnly", "VelocityOnly"):
        env = wrap(gym.make(id, disable_env_checker=True), [{"id": name}])
        env.reset(seed=0)
        env.action_space.seed(0)
        obs = env.step(env.action_space.sample())[0]
        assert env.observation_space.contains(obs)
        halves[name] = obs
    plain = gym.make(id, disable_env_checker=True)
    plain.reset(seed=0)
    plain.action_space.seed(0)
    seen = plain.step(plain.action_space.sample())[0]
    hidden = [i in velocities for i in range(size)]
    assert halves["PositionOnly"].tolist() == np.where(hidden, 0, seen).tolist()
    assert halves["VelocityOnly"].tolist() == np.where(hidden, seen, 0).tolist()


def test_positions_of_an_unknown_task_are_not_guessed() -> None:
    with pytest.raises(UserError, match="use MaskObservation with indices"):
        wrap(vector([0, 0], [1, 1], [0, 1]), [{"id": "PositionOnly"}])


def test_noise_is_normal_seeded_and_not_that_of_the_environment() -> None:
    def frames(seed: int, **block: Any) -> Any:
        env = gym.make("CartPole-v1", disable_env_checker=True)
        env = wrap(env, [{"id": "NoisyObservation", **block}] if block else [])
        first = env.reset(seed=seed)[0]
        return np.array([first, *(env.step(i % 2)[0] for i in range(7)), env.reset()[0]])

    clean, noisy = frames(1), frames(1, std=[0.0, 0.5, 0.0, 0.1])
    error = noisy - clean  # the same dynamics, and the same start of the second episode
    assert (error[:, [0, 2]] == 0).all() and (error[:, [1, 3]] != 0).all()
    assert np.array_equal(noisy, frames(1, std=[0.0, 0.5, 0.0, 0.1]))
    assert noisy.dtype == np.float32
    still = wrap(vector([0] * 2, [1] * 2, [0.5, 0.5]), [{"id": "NoisyObservation", "std": [1, 2]}])
    many = np.array([still.reset(seed=seed)[0] for seed in range(500)])
    assert many.mean(0) == pytest.approx([0.5, 0.5], abs=0.3)
    assert many.std(0) == pytest.approx([1, 2], rel=0.12)
    with pytest.raises(UserError, match="std must not be negative"):
        frames(0, std=-1.0)
    with pytest.raises(UserError, match="a list of 4, got 3"):
        frames(0, std=[1, 1, 1])
