"""Gymnasium's vectorised CartPole under our resets: the same physics, only real rows."""

import numpy as np

from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.make import make_vector


def test_rows_are_cartpole_transitions_and_ends_are_reset_at_once() -> None:
    native = make_vector(EnvironmentConfig(id="CartPole-v1", vectorization="native"), range(6))
    single = make_vector(EnvironmentConfig(id="CartPole-v1", vectorization="sync"), [0])
    single.reset()
    base = single.envs[0].unwrapped  # type: ignore[attr-defined]
    obs, ends = native.reset(), 0
    for action in np.random.default_rng(0).integers(0, 2, (150, 6)):
        states = native.env.state.T.copy()  # type: ignore[attr-defined]
        step = native.step(action)
        assert step.valid is None and step.obs.flags.c_contiguous
        assert (step.obs.dtype, step.reward.dtype) == (np.float32, np.float64)
        for i in range(6):
            base.state, base.steps_beyond_terminated = states[i], None
            frame, reward, terminated, _, _ = base.step(int(action[i]))
            assert np.allclose(step.next_obs[i], frame, atol=1e-6)
            assert step.reward[i] == reward == 1.0
            assert step.terminated[i] == terminated
        ended = step.terminated | step.truncated
        ends += int(ended.sum())
        assert np.array_equal(step.obs[~ended], step.next_obs[~ended])
        assert (np.abs(step.obs[ended]) <= 0.05).all()
        assert (np.abs(step.next_obs[ended]).max(axis=1) > 0.05).all()
        obs = step.obs
    assert ends > 20 and obs.shape == (6, 4)


def test_both_flags_are_a_termination() -> None:
    # Pushed to one side only, every pole falls at step 8, 9 or 10; the clock is set to that step.
    probe = make_vector(EnvironmentConfig(id="CartPole-v1", vectorization="native"), [3])
    probe.reset()
    length = 1
    while not probe.step(np.ones(1, np.int64)).terminated[0]:
        length += 1
    for vectorization in ("native", "sync"):
        config = EnvironmentConfig(
            id="CartPole-v1",
            max_episode_steps=length,
            vectorization=vectorization,  # type: ignore[arg-type]
        )
        vector = make_vector(config, [3])
        vector.reset()
        if vectorization == "sync":  # the same start as the native vector had
            twin = make_vector(EnvironmentConfig(id="CartPole-v1", vectorization="native"), [3])
            twin.reset()
            vector.envs[0].unwrapped.state = twin.env.state[:, 0]  # type: ignore[attr-defined]
        for _ in range(length):
            step = vector.step(np.ones(1, np.int64))
        assert step.terminated.tolist() == [True] and step.truncated.tolist() == [False]
