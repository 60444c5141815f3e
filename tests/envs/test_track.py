"""The pixel track: steps by hand, what a frame shows and hides, and who can drive on it."""

import numpy as np
import pytest

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import make_vector
from rl_lab.envs.track import LANE, LIMIT, SLIDE, STEERING, PixelTrackEnv


class Calm(PixelTrackEnv):
    """Without wind, on a straight road."""

    def reset(self, **options):
        super().reset(**options)
        self.heights = np.zeros(3)
        self.position = 0.0
        self.np_random = type("Still", (), {"standard_normal": lambda self: 0.0})()
        return self._frame(), {}


def steer(value: float):
    return np.array([value], np.float32)


def test_steps_by_hand():
    env = Calm()
    env.reset(seed=0)
    # speed 0.8, position 0.8: reward 1 − 0.8 / 4 = 0.8
    assert env.step(steer(1.0))[1:4] == (pytest.approx(0.8), False, False)
    # speed 1.08 · 0.8 = 0.864, position 1.664: reward 1 − 1.664 / 4
    assert env.step(steer(0.0))[1] == pytest.approx(1 - 1.664 / 4)
    assert env.speed == pytest.approx(SLIDE * STEERING)
    env.step(steer(-9.0))  # as if it were −1
    assert env.speed == pytest.approx(SLIDE**2 * STEERING - STEERING)


def test_leaving_the_track_ends_the_episode():
    env = Calm()
    env.reset(seed=0)
    env.position = LANE + 1
    assert env.step(steer(0.0))[1:3] == (0.0, False)
    env.position = LIMIT + 0.1
    assert env.step(steer(0.0))[2] is True


def test_a_frame_shows_where_the_car_is_and_not_how_fast_it_slides():
    env = Calm()
    middle, _ = env.reset(seed=0)
    assert middle.shape == (32, 32, 3) and middle.dtype == np.uint8
    assert env.observation_space.contains(middle)
    red = middle[..., 0].astype(int)
    assert red[:, 15:17].min() > red[:, :6].max() + 50  # road in the middle, grass beside it
    env.speed = 3.0
    assert np.array_equal(env._frame(), middle)
    env.position = 5.0  # to the right: the road is on the left
    shifted = env._frame()[..., 0].astype(int)
    assert shifted[-1, :16].sum() > shifted[-1, 16:].sum()


def test_the_ground_comes_nearer():
    env = Calm()
    before, _ = env.reset(seed=0)
    after = env.step(steer(0.0))[0]
    assert np.array_equal(after[4:], before[:-4])  # four rows per step, downwards
    assert not np.array_equal(after, before)


def test_other_sizes_show_the_same_world():
    small, large = PixelTrackEnv(), PixelTrackEnv(size=64)
    frames = [env.reset(seed=3)[0].astype(float) for env in (small, large)]
    halved = frames[1].reshape(32, 2, 32, 2, 3).mean((1, 3))
    assert np.abs(halved - frames[0]).mean() < 5
    with pytest.raises(ValueError, match="size must be at least 16"):
        PixelTrackEnv(size=8)


def drive(policy, episodes=40) -> float:
    total = 0.0
    for seed in range(episodes):
        env = PixelTrackEnv()
        env.reset(seed=seed)
        for _ in range(100):
            error = float(env._road(env.driven)) - env.position
            _, reward, ended, _, _ = env.step(steer(policy(error, env.speed)))
            total += reward / episodes
            if ended:
                break
    return total


def test_who_knows_the_slide_stays_and_who_does_not_leaves():
    """The gains are the best that a search found for each kind of driver."""
    rng = np.random.default_rng(0)
    chance = drive(lambda error, speed: rng.uniform(-1, 1))
    by_frame = drive(lambda error, speed: np.tanh(2.66 * error))
    by_memory = drive(lambda error, speed: np.tanh(1.75 * error - 1.17 * speed))
    assert by_memory > 90
    assert by_memory > 1.8 * by_frame
    assert by_frame > 3 * chance


def test_it_is_registered_and_its_state_is_captured():
    vectors = [
        make_vector(EnvironmentConfig(id="PixelTrack-v0", vectorization="sync"), seeds)
        for seeds in ([0, 1], [7, 8])
    ]
    first, second = vectors
    assert first.snapshot_level == "E0" and first.spec.max_episode_steps == 100
    assert first.reset().shape == (2, 3, 32, 32)
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 2, 1)).astype(np.float32)
    for action in actions[:10]:
        first.step(action)
    second.load_state_dict(first.state_dict())
    for action in actions[10:]:
        steps = [each.step(action) for each in vectors]
        assert np.array_equal(steps[0].obs, steps[1].obs)
        assert np.array_equal(steps[0].reward, steps[1].reward)
        assert np.array_equal(steps[0].terminated, steps[1].terminated)
