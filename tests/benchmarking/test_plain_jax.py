"""The contestant that is one JAX program: CartPole as Gymnasium has it, GAE by hand, learning."""

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("jax")

import jax.numpy as jnp
from benchmarks.peers import plain_jax
from benchmarks.peers.settings import SETTINGS, Job


def test_its_cartpole_is_that_of_gymnasium():
    env, rng = gym.make("CartPole-v1"), np.random.default_rng(0)
    for episode in range(5):
        obs, _ = env.reset(seed=episode)
        over = False
        while not over:
            action = int(rng.integers(2))
            moved, fallen = plain_jax.physics(jnp.asarray([obs]), jnp.asarray([action]))
            obs, _, over, _, _ = env.step(action)
            assert np.asarray(moved[0]) == pytest.approx(obs, abs=1e-5)
            assert bool(fallen[0]) is over


def test_an_episode_ends_by_a_fall_or_by_the_clock_and_begins_again():
    steep = [0.0, 0.0, 0.3, 0.0]
    world = plain_jax.World(jnp.asarray([[0.0] * 4, [0.0] * 4, steep]), jnp.asarray([3, 499, 8]))
    fresh = jnp.full((3, 4), 0.01)
    after, row = plain_jax.step(world, jnp.asarray([1, 1, 1]), fresh)
    assert row.terminated.tolist() == [False, False, True]
    assert row.done.tolist() == [False, True, True]
    assert row.age.tolist() == [4, 500, 9] and after.age.tolist() == [4, 0, 0]
    assert after.carts[1:].tolist() == fresh[1:].tolist()
    assert row.next_obs[1].tolist() != fresh[1].tolist()  # where the step really ended


def test_advantages_by_hand():
    # gamma = 0.98, lambda = 0.8, together 0.784; every value is 2 (only the last bias is not 0).
    #   t2: truncated:  1 + 0.98 * 2 - 2 = 0.96      its last frame has a value
    #   t1: terminated: 1            - 2 = -1        it has no future
    #   t0: 0.96 + 0.784 * -1            = 0.176
    nets = plain_jax.networks(jnp.zeros_like(plain_jax.first_weights(rng(), 4)), 4)
    nets["critic"][-1] = (nets["critic"][-1][0], jnp.asarray([2.0]))
    flags = lambda *each: jnp.tile(jnp.asarray(each)[:, None], (1, 8))  # noqa: E731
    rows = plain_jax.Rows(
        obs=jnp.zeros((3, 8, 4)),
        action=jnp.zeros((3, 8), jnp.int32),
        next_obs=jnp.ones((3, 8, 4)),
        terminated=flags(False, True, False),
        done=flags(False, True, True),
        age=jnp.ones((3, 8)),
    )
    data = plain_jax.credited(nets, rows, SETTINGS["zoo"])
    assert np.asarray(data["advantage"][::8]) == pytest.approx([0.176, -1.0, 0.96], abs=1e-5)
    assert np.asarray(data["return"][::8]) == pytest.approx([2.176, 1.0, 2.96], abs=1e-5)
    assert np.asarray(data["log_prob"]) == pytest.approx(np.log(0.5))


def rng():
    return np.random.default_rng(0)


def test_its_weights_are_orthogonal_and_all_in_one_vector():
    flat = plain_jax.first_weights(rng(), 16)
    nets = plain_jax.networks(flat, 16)
    assert sum(w.size + b.size for net in nets.values() for w, b in net) == flat.size
    middle = np.asarray(nets["critic"][1][0])
    assert middle.T @ middle == pytest.approx(2 * np.eye(16), abs=1e-5)
    assert np.abs(np.asarray(nets["actor"][-1][0])).max() <= 0.01


def test_it_learns():
    timed = plain_jax.train(Job(env="CartPole-v1", settings="zoo", rollouts=60))
    assert timed.learned and timed.last_return > 60
    assert timed.steps == 60 * 256 and timed.steps_per_second > 0
