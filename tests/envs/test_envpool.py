"""EnvPool's environments tell real transitions; what it cannot do is said in one line."""

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs.check import check_env
from rl_lab.envs.make import make_vector, single_spaces
from tiny_runs import tiny_run


def refusal(**settings: Any) -> str:
    with pytest.raises(UserError) as error:
        make_vector(EnvironmentConfig(vectorization="envpool", **settings), [0, 1])
    assert "\n" not in str(error.value)
    return str(error.value)


def pool(id: str = "CartPole-v1", seeds: Any = range(3), **settings: Any) -> Any:
    pytest.importorskip("envpool")
    return make_vector(EnvironmentConfig(id=id, vectorization="envpool", **settings), list(seeds))


def played(vector: Any, steps: int = 60, reset: bool = True) -> list[Any]:
    """Everything that was seen while the same actions were played."""
    rng = np.random.default_rng(0)
    seen = [vector.reset()] if reset else []
    for _ in range(steps):
        step = vector.step(rng.integers(0, 2, vector.num_envs))
        seen += [step.obs, step.reward, step.terminated, step.truncated, step.next_obs, step.valid]
    return seen


def same(left: list[Any], right: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert "pip install 'rl-lab[envpool]'" in refusal(id="CartPole-v1")


def test_what_single_environments_have_is_refused() -> None:
    mask = [{"id": "MaskObservation", "indices": [1]}]
    assert "environment.wrappers need" in refusal(id="CartPole-v1", wrappers=mask)
    assert "environment.kwargs need" in refusal(id="CartPole-v1", kwargs={"gravity": 1})
    assert "environment.snapshot needs" in refusal(id="CartPole-v1", snapshot="replay")


def test_no_other_version_is_taken() -> None:
    pytest.importorskip("envpool")
    assert "EnvPool has no 'LunarLander-v1', only LunarLander-v2 and" in refusal(
        id="LunarLander-v1"
    )
    assert "only Breakout-v5: use" in refusal(id="ALE/Breakout-v5")
    assert "EnvPool has no 'CartPol-v1' (did you mean 'CartPole-v1'?)" in refusal(id="CartPol-v1")
    assert "it shows an array instead of a tuple" in refusal(id="Blackjack-v1")


@pytest.mark.parametrize("id", ["CartPole-v1", "MountainCar-v0"])
def test_rows_are_gymnasiums_transitions_and_resets_are_marked(id: str) -> None:
    """From where a row begins, Gymnasium's own task must end where the row ends."""
    vector, single = pool(id, max_episode_steps=15), gym.make(id).unwrapped
    single.reset(seed=0)
    obs, ended, rows, marked = vector.reset(), np.zeros(3, np.bool_), 0, 0
    rng = np.random.default_rng(0)
    for _ in range(80):
        action = rng.integers(0, single.action_space.n, 3)  # type: ignore[attr-defined]
        step = vector.step(action)
        assert np.array_equal(step.valid, ~ended)  # exactly the rows after an end are resets
        for i in np.flatnonzero(step.valid):
            single.state, single.steps_beyond_terminated = tuple(obs[i]), None  # type: ignore[attr-defined]
            frame, reward, terminated, _, _ = single.step(int(action[i]))
            assert np.allclose(frame, step.next_obs[i], atol=1e-4)
            assert reward == step.reward[i]
            # An end in the very step of the time limit is told as a truncation only.
            assert terminated == step.terminated[i] or step.truncated[i]
            rows += 1
        fresh = step.obs[~step.valid]
        assert (abs(fresh if id == "CartPole-v1" else fresh[:, 1:]) <= 0.05).all()
        obs, ended = step.obs, step.terminated | step.truncated
        marked += int((~step.valid).sum())
    assert marked > 10 and rows + marked == 240


def test_the_clock_truncates() -> None:
    vector = pool("Pendulum-v1", max_episode_steps=5)
    assert vector.spec.max_episode_steps == 5 and vector.spec.action.shape == (1,)
    vector.reset()
    steps = [vector.step(np.zeros((3, 1), np.float32)) for _ in range(12)]
    assert [bool(step.truncated.all()) for step in steps] == ([False] * 4 + [True, False]) * 2
    assert not any(step.terminated.any() for step in steps)


def test_seeds_decide_and_threads_do_not() -> None:
    once = played(pool(workers=1))
    assert same(once, played(pool(workers=2)))
    assert not same(once, played(pool(seeds=[7, 8, 9])))
    vector = pool()
    played(vector, 7)
    vector.reset(list(range(3)))  # new seeds at any time, also the first ones
    assert same(once[1:], played(vector, reset=False))


def test_it_cannot_be_saved_and_starts_new_episodes() -> None:
    vector = pool()
    first = vector.reset()
    assert vector.snapshot_level == "E3"
    state = vector.state_dict()
    vector.load_state_dict(state)
    assert not np.array_equal(first, vector.reset())
    assert check_env("CartPole-v1", settings={"vectorization": "envpool"}).level == "E3"


def test_ids_of_its_own_and_their_spaces() -> None:
    config = EnvironmentConfig(id="CartPole-v0", vectorization="envpool")
    pytest.importorskip("envpool")
    observation, action = single_spaces(config)
    assert observation.shape == (4,) and action == gym.spaces.Discrete(2)
    assert pool("AcrobotSwingup-v1").spec.max_episode_steps == 1000  # Gymnasium has no such id


def test_a_run_learns_from_it(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    outcome = tiny_run(tmp_path, "Pendulum-v1:ppo_defaults", "environment.vectorization=envpool")
    assert outcome.summary["status"] == "finished" and outcome.summary["snapshot_level"] == "E3"
    assert outcome.summary["env_steps"] >= 1024
