"""Our classic control is Gymnasium's, and its vector keeps the contract of every vector.

Tasks are written once for numpy and for torch: whatever is compared here is compared for both.

On the machine this was written on, all observations below were Gymnasium's bit for bit. Other
machines have other sines, so the bounds leave room for the last bits and for no more.
"""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from rl_lab.core.compiled import Compiled, compiler
from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.state import fingerprint, join, split
from rl_lab.envs.classic import BLOCK, TASKS, ClassicVector, advance
from rl_lab.envs.make import make_vector

PI = math.pi
TILT = 12 * 2 * PI / 360
ROUNDED = "MountainCarContinuous-v0"  # Gymnasium keeps the state of this one in float32

# Wide states, and the corners where something is clipped, wrapped or ended.
WIDE = {
    "CartPole": ([-2.6, -3, -0.23, -3], [2.6, 3, 0.23, 3]),
    "Pendulum": ([-20, -8], [20, 8]),
    "MountainCar": ([-1.2, -0.07], [0.6, 0.07]),
    "Acrobot": ([-PI, -PI, -4 * PI, -9 * PI], [PI, PI, 4 * PI, 9 * PI]),
}
CORNERS: dict[str, list[list[float]]] = {
    "CartPole": [[2.4, 0, 0, 0], [-2.4, -1e-9, 0, 0], [0, 0, TILT, 0], [0, 0, -TILT, -1e-9]],
    "Pendulum": [[PI, 8], [-PI, -8], [3 * PI, 0], [0, 0]],
    "MountainCar": [
        [-1.2, -0.07],
        [-1.25, 0.01],  # on the wall, and on its way from it
        [-1.2, 0],
        [0.6, 0.07],
        [0.5, 0],
        [0.45, 0.001],
        [0.44, 0.07],
    ],
    "Acrobot": [[PI, PI, 12, 28], [-PI, 0, -12, -28], [2, 0, 12, 0], [0, 0, 0, 0]],
}
STARTS = {
    "CartPole": ([-0.05] * 4, [0.05] * 4),
    "Pendulum": ([-PI, -1], [PI, 1]),
    "MountainCar": ([-0.6, 0], [-0.4, 0]),
    "Acrobot": ([-0.1] * 4, [0.1] * 4),
}
every_task = pytest.mark.parametrize("name", TASKS)


def of(table: dict[str, Any], name: str) -> Any:
    return next(value for key, value in table.items() if name.startswith(key))


def actions(name: str, *shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    random, bound = np.random.default_rng(seed), TASKS[name].action_bound
    if bound is None:
        return random.integers(0, 2 if name.startswith("Cart") else 3, shape)
    return random.uniform(-bound * scale, bound * scale, (*shape, 1)).astype(np.float32)


def plain(name: str) -> Any:
    return gym.make(gym.registry[name], disable_env_checker=True).unwrapped


def check_dynamics(name: str, env: Any, states: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Each row of `states` by one step in Gymnasium, numpy and torch; which rows terminated."""
    rows = []
    for state, action in zip(states, given, strict=True):
        env.state, env.steps_beyond_terminated = state.copy(), None
        rows.append((*env.step(action)[:3], env.state))
    frames, rewards, ends, after = zip(*rows, strict=True)
    for kind in (np.array, torch.from_numpy):
        moved, reward, terminated = TASKS[name].dynamics(kind(states), kind(given))
        obs = TASKS[name].observe(moved)
        assert (str(reward.dtype)[-7:], str(obs.dtype)[-7:]) == ("float64", "float32")
        assert type(moved) is type(reward) is type(terminated) is type(obs) is type(kind(states))
        np.testing.assert_allclose(moved, after, rtol=0, atol=1e-7 if name == ROUNDED else 1e-11)
        np.testing.assert_allclose(obs, frames, rtol=0, atol=1e-6)
        # A square in float32 may differ in its last bit.
        error = 1e-9 if name == "Pendulum-v1" else 0
        np.testing.assert_allclose(reward, rewards, rtol=0, atol=error)
        assert np.array_equal(terminated, ends)
    return np.array(ends)


def rows_of(name: str, rows: Any) -> np.ndarray:
    return np.array(rows, np.float32 if name == ROUNDED else np.float64)


def played(vector: ClassicVector, given: np.ndarray) -> list[Any]:
    return [vector.step(action) for action in given]


def assert_same_steps(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right)
    for one, two in zip(left, right, strict=True):
        for field in ("obs", "reward", "terminated", "truncated", "next_obs"):
            a, b = getattr(one, field), getattr(two, field)
            assert a.dtype == b.dtype and np.array_equal(a, b), field


# ------------------------------------------------------------------- the physics


@every_task
def test_a_step_is_gymnasiums_from_anywhere(name: str) -> None:
    low, high = of(WIDE, name)
    random = np.random.default_rng(1)
    states = rows_of(name, random.uniform(low, high, (600, len(low))))
    terminated = check_dynamics(name, plain(name), states, actions(name, 600))
    assert name == "Pendulum-v1" or 20 < terminated.sum() < 500


@every_task
def test_a_step_is_gymnasiums_from_every_corner_with_every_action(name: str) -> None:
    task, corners = TASKS[name], of(CORNERS, name)
    if task.action_bound is None:
        choices: Any = np.arange(plain(name).action_space.n)
    else:  # far outside too: Gymnasium clips the force, and not what the action costs
        choices = np.array([[-5], [-1], [0], [0.3], [1], [5]], np.float32) * task.action_bound
    states = rows_of(name, np.repeat(corners, len(choices), axis=0))
    check_dynamics(name, plain(name), states, np.tile(choices.T, len(corners)).T)


@every_task
def test_every_step_of_a_long_walk_is_gymnasiums(name: str) -> None:
    vector, env = ClassicVector(name, range(4)), plain(name)
    vector.reset()
    for action in actions(name, 250, 4):
        check_dynamics(name, env, vector.state, action)
        vector.step(action)


@every_task
def test_an_episode_stays_on_gymnasiums_path(name: str) -> None:
    # Two copies that are told the same actions and nothing of each other.
    env = gym.make(gym.registry[name], disable_env_checker=True)
    vector = ClassicVector(name, [0])
    vector.reset()
    for episode in range(5):
        first, _ = env.reset(seed=episode)
        state = np.array([env.unwrapped.state], vector.state.dtype)  # type: ignore[attr-defined]
        vector.move_to(state, np.zeros(1, np.int64))
        np.testing.assert_allclose(vector.task.observe(state)[0], first, rtol=0, atol=1e-6)
        for action in actions(name, 250, 1, seed=episode):
            frame, reward, terminated, truncated, _ = env.step(action[0])
            step = vector.step(action)
            np.testing.assert_allclose(step.next_obs[0], frame, rtol=0, atol=1e-6)
            assert step.reward[0] == pytest.approx(reward, abs=1e-9)
            assert (step.terminated[0], step.truncated[0]) == (terminated, truncated)
            if terminated or truncated:
                break


@every_task
def test_starts_are_gymnasiums(name: str) -> None:
    low, high = (np.array(each) for each in of(STARTS, name))
    env, slack = plain(name), 1e-8
    vector = ClassicVector(name, range(1000))
    vector.reset()
    theirs = []
    for seed in range(1000):
        env.reset(seed=seed)
        theirs.append(env.state)
    uniform = np.random.default_rng(0).random((1000, vector.task.state_size))
    mine = [vector.task.start(each) for each in (uniform, torch.from_numpy(uniform))]
    assert str(mine[0].dtype) in str(mine[1].dtype) and np.array_equal(*mine)
    assert np.array_equal(*(vector.task.observe(each) for each in mine))
    for starts in (vector.state, mine[0], np.array(theirs)):
        assert (starts >= low - slack).all() and (starts <= high + slack).all()
        assert (np.ptp(starts, axis=0) >= 0.97 * (high - low)).all()
        assert np.allclose(starts.mean(axis=0), (low + high) / 2, atol=0.06 * (high - low).max())


@every_task
def test_sizes_and_limits_are_gymnasiums(name: str) -> None:
    sync = make_vector(EnvironmentConfig(id=name, vectorization="sync"), [0])
    vector = ClassicVector(name, [0, 1])
    assert vector.max_steps == TASKS[name].max_steps == gym.registry[name].max_episode_steps
    assert vector.spec.max_episode_steps == sync.spec.max_episode_steps
    assert vector.spec.reward_threshold == sync.spec.reward_threshold
    assert vector.spec.id == sync.spec.id == name
    assert vector.reset().shape[1:] == sync.spec.observation.shape  # type: ignore[union-attr]
    assert vector.spec.action.shape == sync.spec.action.shape
    assert vector.snapshot_level == "E0" and vector.num_envs == 2


@pytest.mark.parametrize("name", ["Pendulum-v1", ROUNDED])
def test_the_vector_clips_actions_as_other_vectors_do(name: str) -> None:
    sync: Any = make_vector(EnvironmentConfig(id=name, vectorization="sync"), [0])
    vector = ClassicVector(name, [0])
    sync.reset()
    vector.reset()
    sync.envs[0].unwrapped.state = vector.state[0].copy()
    for action in actions(name, 50, 1, scale=4):
        ours, theirs = vector.step(action), sync.step(action)
        np.testing.assert_allclose(ours.next_obs, theirs.next_obs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(ours.reward, theirs.reward, rtol=0, atol=1e-7)


# ---------------------------------------------------------------------- episodes


@every_task
def test_ends_are_told_as_they_were_and_followed_by_a_start(name: str) -> None:
    limit, count = 30, 8
    low, high = (np.array(each) for each in of(STARTS, name))
    vector = ClassicVector(name, range(count), max_steps=limit)
    assert vector.spec.max_episode_steps == limit
    vector.reset()
    lengths, ends = np.zeros(count, int), 0
    for action in actions(name, 200, count):
        task, before = vector.task, vector.state
        step = vector.step(action)
        lengths += 1
        moved, _, terminated = task.dynamics(before, action)
        assert np.array_equal(step.next_obs, task.observe(moved))
        assert np.array_equal(step.terminated, terminated)
        assert np.array_equal(step.truncated, (lengths == limit) & ~step.terminated)
        assert np.array_equal(step.obs, task.observe(vector.state))
        ended = step.terminated | step.truncated
        assert np.array_equal(step.obs[~ended], step.next_obs[~ended])
        fresh = vector.state[ended]
        assert (fresh >= low - 1e-8).all() and (fresh <= high + 1e-8).all()
        assert len(np.unique(fresh[:, 0])) == ended.sum()  # each its own
        lengths[ended] = 0
        assert np.array_equal(vector.elapsed, lengths)
        ends += int(ended.sum())
    assert ends >= count * 6


def test_both_flags_are_a_termination() -> None:
    probe = ClassicVector("CartPole-v1", [3])
    probe.reset()
    length = 1
    while not probe.step(np.ones(1, np.int64)).terminated[0]:
        length += 1
    vector = ClassicVector("CartPole-v1", [3], max_steps=length)
    vector.reset()
    last = played(vector, np.ones((length, 1), np.int64))[-1]
    assert last.terminated.tolist() == [True] and last.truncated.tolist() == [False]
    # One step less on the clock, and the same fall is cut before it happens.
    shorter = ClassicVector("CartPole-v1", [3], max_steps=length - 1)
    shorter.reset()
    last = played(shorter, np.ones((length - 1, 1), np.int64))[-1]
    assert last.terminated.tolist() == [False] and last.truncated.tolist() == [True]


@every_task
def test_what_was_given_and_returned_is_not_written_again(name: str) -> None:
    given = actions(name, 60, 3)
    careful, careless = (ClassicVector(name, range(3), max_steps=20) for _ in range(2))
    careful.reset()
    careless.reset()[:] = 7
    for action in given:
        own = action.copy()
        own.flags.writeable = False
        kept = careful.step(own)
        copies = [np.copy(each) for each in (kept.obs, kept.next_obs, kept.reward)]
        step = careless.step(action.copy())
        for each, copy in zip((step.obs, step.next_obs, step.reward), copies, strict=True):
            assert np.array_equal(each, copy)
        step.obs[:], step.next_obs[:], step.reward[:] = 7, 7, 7
        careful.step(own)
        careless.step(own)
        for each, copy in zip((kept.obs, kept.next_obs, kept.reward), copies, strict=True):
            assert np.array_equal(each, copy)


# -------------------------------------------------------- randomness, saved state


def test_seeds_decide_the_episodes() -> None:
    given = actions("CartPole-v1", 200, 3)
    one, two = (ClassicVector("CartPole-v1", [1, 2, 3]) for _ in range(2))
    other = ClassicVector("CartPole-v1", [1, 2, 4])
    first = one.reset()
    assert np.array_equal(first, two.reset()) and not np.array_equal(first, other.reset())
    steps = played(one, given)
    assert_same_steps(steps, played(two, given))
    assert not np.array_equal(one.reset(), first)  # later resets go on
    assert np.array_equal(one.reset([1, 2, 3]), first)
    assert_same_steps(steps, played(one, given))


@every_task
@pytest.mark.parametrize("before", [0, 45, BLOCK - 1, BLOCK + 9])
def test_a_restored_vector_continues_bit_for_bit(name: str, before: int) -> None:
    given = actions(name, before + 150, 3)
    straight = ClassicVector(name, [5, 6, 7], max_steps=40)
    straight.reset()
    played(straight, given[:before])
    tensors, skeleton = split(straight.state_dict())
    saved = join(tensors, json.loads(json.dumps(skeleton)))
    rest = played(straight, given[before:])
    resumed = ClassicVector(name, [0, 0, 0], max_steps=40)
    resumed.reset()
    played(resumed, given[:11])
    resumed.load_state_dict(saved)
    assert fingerprint(resumed.state_dict()) == fingerprint(saved)
    assert_same_steps(played(resumed, given[before:]), rest)
    assert fingerprint(resumed.state_dict()) == fingerprint(straight.state_dict())
    assert np.array_equal(resumed.reset(), straight.reset())


def test_a_vector_saved_before_its_start_starts_as_it_would_have() -> None:
    fresh, restored = ClassicVector("Acrobot-v1", [1, 2]), ClassicVector("Acrobot-v1", [8, 9])
    restored.load_state_dict(fresh.state_dict())
    with pytest.raises(RuntimeError, match="reset"):
        restored.uniforms(1)
    assert np.array_equal(restored.reset(), fresh.reset())


@every_task
@pytest.mark.parametrize("chunk", [1, BLOCK + 30])
def test_a_loop_of_advance_is_the_same_as_stepping(name: str, chunk: int) -> None:
    total, limit = 2 * BLOCK + 60, 25
    given = actions(name, total, 5)
    stepped, looped = (ClassicVector(name, range(5), max_steps=limit) for _ in range(2))
    assert np.array_equal(stepped.reset(), looped.reset())
    steps, rows = played(stepped, given), []
    for begin in range(0, total, chunk):
        part = given[begin : begin + chunk]
        state, elapsed = (torch.from_numpy(each) for each in (looped.state, looped.elapsed))
        inputs = [(state, state.clone()), (elapsed, elapsed.clone())]
        uniforms = torch.from_numpy(looped.uniforms(len(part)))
        for action, uniform in zip(torch.from_numpy(part), uniforms, strict=True):
            result = looped.advance(state, elapsed, action, uniform)
            state, elapsed = result.state, result.elapsed
            rows.append(result)
        assert all(torch.equal(now, then) for now, then in inputs)
        looped.move_to(state.numpy(), elapsed.numpy())
    for step, row in zip(steps, rows, strict=True):
        for field in ("obs", "reward", "terminated", "truncated", "next_obs"):
            one, two = getattr(step, field), getattr(row, field).numpy()
            assert one.dtype == two.dtype
            # torch and numpy may disagree on the last bit of a sine.
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-6 if "obs" in field else 1e-9)
    np.testing.assert_allclose(looped.state, stepped.state, rtol=0, atol=1e-9)
    assert np.array_equal(looped.elapsed, stepped.elapsed)
    assert np.array_equal(looped.uniforms(1), stepped.uniforms(1))
    assert sum(bool(row.truncated.any()) for row in rows) > 5


# ----------------------------------------------------------------------- compiled


def several_steps(name: str, state: Any, elapsed: Any, given: Any, uniforms: Any) -> Any:
    """As a rollout does it, with episodes of three steps."""
    rows = []
    for action, uniform in zip(given, uniforms, strict=True):
        rows.append(advance(TASKS[name], state, elapsed, action, uniform, 3))
        state, elapsed = rows[-1].state, rows[-1].elapsed
    return tuple(rows)


def check_program(name: str, program: Any = None) -> None:
    """A graph of the first steps is right for later ones too, where other episodes end."""
    vector, steps = ClassicVector(name, range(8), max_steps=3), 4
    vector.reset()
    for seed in range(3):
        arrays = vector.state, vector.elapsed, actions(name, steps, 8, seed=seed)
        inputs = [torch.from_numpy(each) for each in (*arrays, vector.uniforms(steps))]
        eager = several_steps(name, *inputs)
        program = program or make_fx(partial(several_steps, name))(*inputs)
        for one, two in zip(eager, program(*inputs), strict=True):
            for a, b in zip(one, two, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
        vector.move_to(eager[-1].state.numpy(), eager[-1].elapsed.numpy())
    assert any(bool(row.truncated.any()) for row in eager)


@every_task
def test_several_steps_are_one_graph(name: str) -> None:
    check_program(name)


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="compiling needs a C++ compiler")
@every_task
def test_compiled_steps_agree_with_eager_ones(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path))
    check_program(name, Compiled(partial(several_steps, name), "several steps"))


# ---------------------------------------------------------------------- mistakes


def test_what_cannot_be_made_is_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"'CartPol-v1' is not .*CartPole-v1, .* are"):
        ClassicVector("CartPol-v1", [0])
    with pytest.raises(ValueError, match="seed"):
        ClassicVector("CartPole-v1", [])
    assert ClassicVector("gymnasium:CartPole-v1", [0]).max_steps == 500


def test_what_does_not_fit_is_refused() -> None:
    vector = ClassicVector("CartPole-v1", [0, 1])
    with pytest.raises(RuntimeError, match="reset"):
        vector.step(np.zeros(2, np.int64))
    vector.reset()
    before = fingerprint(vector.state_dict())
    for wrong in (np.zeros(1, np.int64), np.array([0, 2]), np.array([-1, 0])):
        with pytest.raises(ValueError):
            vector.step(wrong)
    with pytest.raises(ValueError, match="cannot move"):
        vector.move_to(np.zeros((3, 4)), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="cannot move"):
        vector.move_to(np.zeros((2, 4), np.float32), vector.elapsed)
    with pytest.raises(UserError, match="3 envs cannot fill 2"):
        vector.load_state_dict(ClassicVector("CartPole-v1", range(3)).state_dict())
    assert fingerprint(vector.state_dict()) == before
