"""An episode is its seed and its actions."""

from typing import Any

import gymnasium as gym
import numpy as np

from rl_lab.envs.action_replay import Replayed

made = []


class Walk(gym.Env[Any, Any]):
    """Adds actions and noise; remembers earlier episodes, as a badly cleaned simulator does."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self) -> None:
        made.append(self)
        self.place, self.closed = 0.0, False

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place += self.np_random.normal() + (options or {}).get("offset", 0)
        return np.array([self.place]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += action[0] + self.np_random.normal()
        return np.array([self.place]), self.place, False, False, {}

    def close(self) -> None:
        self.closed = True


def test_every_episode_has_a_fresh_object_and_a_seed_of_its_own() -> None:
    env = Replayed(Walk)
    firsts = [env.reset(seed=seed)[0][0] for seed in (3, None, None, 3, None)]
    assert len(set(firsts[:3])) == 3 and firsts[3:] == firsts[:2]
    assert firsts[0] == Walk().reset(seed=3)[0][0]  # what the environment alone would show
    assert made[0].closed and not env.unwrapped.closed  # type: ignore[attr-defined]


def test_a_record_is_a_copy_and_holds_the_options() -> None:
    env, other = Replayed(Walk), Replayed(Walk)
    env.reset(seed=1)
    env.reset(options={"offset": 100})
    action = np.zeros(1)
    for value in range(5):
        action[0] = value  # one buffer, written again and again
        last = env.step(action)[0]
    record = env.record()
    assert record["actions"].tolist() == [[0], [1], [2], [3], [4]]
    env.step(action)
    other.reset(seed=9)
    other.replay(record)
    assert other.unwrapped.place == last[0] > 50  # type: ignore[attr-defined]
    assert len(other.record()["actions"]) == 5
    assert env.reset()[0].tolist() == other.reset()[0].tolist()


def test_unseeded_environments_differ_and_a_record_before_the_reset_is_empty() -> None:
    one, other = Replayed(Walk), Replayed(Walk)
    empty = one.record()
    assert one.reset()[0][0] != other.reset()[0][0]
    one.replay(empty)
    assert one.unwrapped.place == 0 and one.record() == empty  # type: ignore[attr-defined]


def test_actions_of_any_kind_come_back_as_they_were() -> None:
    class Picky(Walk):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            kinds.append((type(action), getattr(action, "dtype", None)))
            return np.zeros(1), 0.0, False, False, {}

    kinds: list[Any] = []
    for actions in ([1, 2], [np.float32([1]), np.float32([2])], [np.float32([1]), np.zeros(1)]):
        kinds.clear()
        env = Replayed(Picky)
        env.reset(seed=0)
        for action in actions:
            env.step(action)
        env.replay(env.record())
        assert kinds[:2] == kinds[2:]
