"""A world model as an environment: whatever it shows, the environment's own space contains it."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import space_envs  # noqa: F401  (registers Rooms-v0)
from rl_lab.core.errors import UserError
from rl_lab.core.tree import picked
from rl_lab.envs.dream import DreamEnv

SIZES = {"deter": 8, "hidden": 8, "stoch": 3, "units": 8, "layers": 1, "channels": 2}
SIZES |= {"batch_length": 4, "batch_size": 2, "learning_starts": 0, "train_every": 8}
STARTS = {"reset": torch.zeros(1, 1, dtype=torch.bool)}


class Shows:
    """Shows the same rows [1, …] for ever, and pays 0."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def imagination(self):
        return self

    def start(self, seen, generator):
        return torch.zeros(1, 1)

    def step(self, state, action, generator):
        assert generator.device == state.device
        return state, torch.zeros(1), torch.ones(1)

    def decode(self, state):
        return self.looks


def shown(space, looks):
    env = DreamEnv(Shows(looks), STARTS, space, spaces.Discrete(2))
    frame = env.reset(seed=0)[0]
    assert space.contains(frame), frame
    assert space.contains(env.step(1)[0]) and space.contains(env.render())
    return frame


def test_vectors_are_in_their_own_units_and_in_bounds():
    looks = torch.tensor([[0.25, -7.0, 1e9]])
    space = spaces.Box(np.float32([-1, -2, -np.inf]), np.float32([1, 2, np.inf]))
    assert shown(space, looks).tolist() == [0.25, -2.0, 1e9]
    whole = spaces.Box(0, 255, (3,), np.uint8)
    assert shown(whole, torch.tensor([[3.6, -1.0, 300.0]])).tolist() == [4, 0, 255]


def test_images_have_their_channels_where_the_environment_has_them():
    looks = torch.zeros(1, 3, 6, 8)
    looks[0, 2, 4, 5], looks[0, 0, 0, 1] = 1.0, 0.2
    frame = shown(spaces.Box(0, 255, (6, 8, 3), np.uint8), looks)
    assert frame[4, 5].tolist() == [0, 0, 255] and frame[0, 1].tolist() == [51, 0, 0]
    frame = shown(spaces.Box(0, 255, (3, 6, 8), np.uint8), looks)
    assert frame[:, 4, 5].tolist() == [0, 0, 255]
    assert shown(spaces.Box(0, 1, (6, 8, 3), np.float32), looks)[0, 1, 0] == np.float32(0.2)
    grey = shown(spaces.Box(0, 255, (16, 20), np.uint8), torch.full((1, 1, 16, 20), 0.4))
    assert grey.shape == (16, 20) and (grey == 102).all()


def test_small_pictures_are_vectors_to_a_model():
    looks = torch.full((1, 3, 4, 4), 17.2)
    assert (shown(spaces.Box(0, 255, (4, 4, 3), np.uint8), looks) == 17).all()


def test_indices_begin_where_the_environment_begins():
    assert shown(spaces.Discrete(3, start=1), torch.tensor([2])) == 3
    space = spaces.MultiDiscrete([[2, 3]], start=[[5, 6]])
    assert shown(space, torch.tensor([[1, 2]])).tolist() == [[6, 8]]
    assert shown(spaces.MultiBinary(3), torch.tensor([[0.9, -0.3, 0.2]])).tolist() == [1, 0, 0]


def test_parts_that_the_model_does_not_show():
    space = spaces.Dict({"a": spaces.Discrete(2), "action_mask": spaces.MultiBinary(2)})
    with pytest.raises(UserError, match="the model shows no 'action_mask'"):
        shown(space, {"a": torch.tensor([0])})


@pytest.mark.parametrize("words", [["CartPole-v1"], ["Rooms-v0"], ["Rooms-v0", "tuple"]])
def test_dreamer_dreams_in_any_space(tiny, words):
    own = [f"algorithm.{key}={value}" for key, value in SIZES.items()]
    own += [f"environment.kwargs.shape={word}" for word in words[1:]]
    run = tiny(f"{words[0]}:random", "algorithm.name=dreamer_v3", *own)
    for _ in range(3):
        run.execute("collect")
        run.scheduler.hook = 0
    real = gym.make(words[0], **({"shape": words[1]} if words[1:] else {}))
    starts = picked(run.buffers["replay"].sequences(3, 4), 0)
    env = DreamEnv(run.workflow, starts, real.observation_space, real.action_space, 5)

    def episode(seed):
        frames = [env.reset(seed=seed)[0]]
        for _ in range(5):
            frame, reward, terminated, truncated, _ = env.step(env.action_space.sample() * 0)
            frames.append(frame)
            assert np.isfinite(reward)
            if terminated or truncated:
                break
        return frames

    told = [episode(seed) for seed in (3, 3)]
    assert all(real.observation_space.contains(frame) for frame in told[0])
    np.testing.assert_equal(told[0], told[1])  # the same seed, the same dream
