"""Vectors that reset a step late: no transition is lost, whatever the sizes of the calls."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.algorithms.reinforce import whole_episodes
from rl_lab.collect.collector import RolloutCollector
from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    STATE,
    TERMINATED,
    TRUNCATED,
    Action,
    Step,
)
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.state import differences, join, split
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.make import EnvironmentConfig, make_vector
from rl_lab.envs.vector import GymnasiumVector, SyncVector

NEXT_STEP = gym.vector.AutoresetMode.NEXT_STEP
LENGTHS = ([1], [3, 2], [9], [4, 1, 1, 6])  # of the episodes of each environment
ROW = (OBS, ACTION, REWARD, TERMINATED, TRUNCATED, NEXT_OBS)
SIZES = [1, 2, 3, 7, 32, 128]
SHORT_GAMES = {"max_num_frames_per_episode": 200, "noop_max": 10, "episodic_life": True}


def counters() -> list[CounterEnv]:
    ends: Any = ("terminated", "truncated", "both", "truncated")
    return [CounterEnv(lengths, end) for lengths, end in zip(LENGTHS, ends, strict=True)]


def plain() -> SyncVector:
    return SyncVector(counters(), range(4), "counter")


def late(envs: Any = None) -> GymnasiumVector:
    envs = counters() if envs is None else envs
    makers = [lambda env=env: env for env in envs]
    inner = gym.vector.SyncVectorEnv(makers, autoreset_mode=NEXT_STEP)
    return GymnasiumVector(inner, list(range(len(envs))), "counter")


def native_cartpole() -> GymnasiumVector:
    inner = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    return GymnasiumVector(inner, [1, 2, 3, 4], "CartPole-v1")


def envpool() -> Any:
    pytest.importorskip("envpool")
    return make_vector(EnvironmentConfig(id="CartPole-v1", vectorization="envpool"), [1, 2, 3, 4])


def atari(**kwargs: Any) -> Any:
    pytest.importorskip("ale_py")
    config = EnvironmentConfig(
        id="ALE/Breakout-v5", num_envs=2, vectorization="native", kwargs={**SHORT_GAMES, **kwargs}
    )
    return make_vector(config, [1, 2])


VECTORS = {
    "own": plain,
    "gymnasium": late,
    "native": native_cartpole,
    "envpool": envpool,
    "atari": atari,
    "atari-late": lambda: atari(autoreset_mode="NextStep"),
}


class Recorded:
    """A vector that notes every transition it makes, environment by environment."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.made: list[list[tuple[Any, ...]]] = [[] for _ in range(env.num_envs)]
        self.begins = np.ones(env.num_envs, np.bool_)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seeds: Any = None) -> Any:
        self.obs = self.env.reset(seeds)
        self.begins[:] = True
        return self.obs

    def step(self, action: Any) -> Step:
        step: Step = self.env.step(action)
        ended = step.terminated | step.truncated
        for i in range(self.env.num_envs):
            if step.valid is None or step.valid[i]:
                values = (self.obs, action, step.reward, step.terminated, step.truncated)
                row = tuple(np.array(each[i]) for each in (*values, step.next_obs, self.begins))
                self.made[i].append(row)
        self.begins = ended if step.valid is None else ~step.valid
        self.obs = step.obs
        return step


class Dice:
    """A random policy without a memory."""

    def __init__(self, actions: int) -> None:
        self.rng = np.random.default_rng(0)
        self.actions = actions

    def __call__(self, obs: Any, state: Any, *, deterministic: bool) -> Action:
        action = self.rng.integers(self.actions, size=len(obs))
        return Action(action, state, {"twice": 2.0 * action})


def summing(obs: Any, state: Any, *, deterministic: bool) -> Action:
    """A memory that adds up what it sees."""
    total = state["sum"] + obs.float()
    return Action(np.zeros(len(obs), np.int64), {"sum": total}, {"seen": total})


def start() -> dict[str, torch.Tensor]:
    return {"sum": torch.zeros(4, 2)}


def joined(calls: list[Any]) -> dict[str, Any]:
    """All rows that were brought home, in order."""
    return {name: torch.cat([rows[name] for rows in calls]) for name in calls[0] if name != STATE}


def reopened(collector: RolloutCollector, env: Any) -> RolloutCollector:
    """Another collector that goes on where this one stands, by way of a checkpoint's tree."""
    saved = join(*split(collector.state_dict()))
    other = RolloutCollector(env, first=collector.obs)
    other.load_state_dict(saved)
    return other


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", VECTORS)
def test_no_transition_is_lost(kind: str, size: int) -> None:
    env = Recorded(VECTORS[kind]())
    collector = RolloutCollector(env)
    act = Dice(env.spec.action.n)
    calls, taken, episodes = [], 0, 0
    steps = 140 if kind.startswith("atari") else 400
    for _ in range(-(-steps // size)):
        result = collector.collect(act, steps=size)
        calls.append(result.trajectory)
        taken, episodes = taken + result.steps, episodes + result.episodes
        collector = reopened(collector, env)
    rows = joined(calls)
    made = sum(len(column) for column in env.made)
    assert taken == made  # every one is counted, when it is played
    assert episodes == sum(bool(row[3] | row[4]) for column in env.made for row in column) > 4
    assert len(rows[REWARD]) == size * len(calls)
    assert torch.equal(rows["twice"], 2.0 * rows[ACTION])
    for i, column in enumerate(env.made):
        assert len(column) >= len(rows[REWARD])
        for t, expected in enumerate(column[: len(rows[REWARD])]):
            brought = [np.asarray(rows[name][t, i]) for name in (*ROW, RESET)]
            for name, left, right in zip((*ROW, RESET), brought, expected, strict=True):
                assert np.array_equal(left, right.astype(left.dtype)), (name, t, i)


@pytest.mark.parametrize("kind", VECTORS)
def test_rows_are_a_chain_and_whole_episodes_are_whole(kind: str) -> None:
    env = VECTORS[kind]()
    collector, act = RolloutCollector(env), Dice(env.spec.action.n)
    rows = joined([collector.collect(act, steps=5).trajectory for _ in range(28)])
    ended = rows[TERMINATED] | rows[TRUNCATED]
    # A frame begins an episode exactly where the row before it ended one, and else is its frame.
    assert rows[RESET][0].all() and torch.equal(rows[RESET][1:], ended[:-1])
    inside = ~ended[:-1]
    assert torch.equal(rows[OBS][1:][inside], rows[NEXT_OBS][:-1][inside])
    whole, _ = whole_episodes(rows[RESET].numpy(), ended.numpy())
    begun, finished = rows[RESET].numpy() & whole, ended.numpy() & whole
    assert begun.sum() == finished.sum() > 4


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 128) | st.integers(1, 6), min_size=1, max_size=8),
    saved=st.sets(st.integers(0, 7)),
)
def test_a_late_vector_brings_what_an_own_one_does(sizes: list[int], saved: set[int]) -> None:
    """Rows, extras, and the memory before each column's first row; also across checkpoints."""
    expected = RolloutCollector(plain())
    collector = RolloutCollector(late())
    for number, size in enumerate(sizes):
        if number in saved:
            collector = reopened(collector, collector.env)
        wanted = expected.collect(summing, steps=size, state=start()).trajectory
        found = collector.collect(summing, steps=size, state=start()).trajectory
        assert differences(found, wanted) == []
    # The slowest column waits for nothing, so a call always asks the policy.
    assert collector.carried is None or collector.carried["count"].min() == 0


def test_an_old_checkpoint_has_nothing_to_carry() -> None:
    collector = RolloutCollector(late())
    collector.collect(summing, steps=20, state=start())
    state = collector.state_dict()
    assert state.pop("carried") is not None
    collector.load_state_dict(state)
    assert collector.carried is None


def test_a_restart_cuts_off_what_waits_and_keeps_it() -> None:
    """What was played comes first; the episode that is given up counts as truncated."""
    collector = RolloutCollector(late([CounterEnv([1]), CounterEnv([50])]))
    act = Dice(2)
    first = collector.collect(act, steps=4).trajectory  # 7 vector steps: 3 rows wait
    collector.restart()
    second = collector.collect(act, steps=4).trajectory
    rows = joined([first, second])
    assert rows[OBS][:, 1].tolist() == [[0, t] for t in range(7)] + [[1, 0]]
    assert rows[TRUNCATED][:, 1].tolist() == [False] * 6 + [True, False]
    assert rows[RESET][:, 1].tolist() == [True, *[False] * 6, True]


def test_a_restart_for_a_comparison_forgets_what_waits() -> None:
    collector = RolloutCollector(late([CounterEnv([1]), CounterEnv([50])]))
    collector.collect(Dice(2), steps=4)
    collector.restart([5, 6])
    rows = collector.collect(Dice(2), steps=4).trajectory
    assert rows[OBS][:, 1].tolist() == [[0, t] for t in range(4)]


def test_rows_of_another_policy_come_without_its_memory() -> None:
    """They are kept; what only the other policy knows of them is not made up."""
    collector = RolloutCollector(late())
    collector.collect(summing, steps=9, state=start())
    waiting = collector.carried["count"].copy()
    assert waiting.max() > 3
    rows = collector.collect(Dice(2), steps=3).trajectory
    assert "seen" not in rows and rows[STATE] is None
    assert torch.equal(rows[OBS][1:, 2, 1], rows[NEXT_OBS][:-1, 2, 1])
    after = collector.collect(summing, steps=30, state=start()).trajectory
    assert after[STATE]["sum"].shape == (4, 2)


def test_a_bad_number_in_a_row_that_waits_is_found_at_once() -> None:
    class Poisoned(CounterEnv):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, float("nan") if obs[1] == 6 else reward, *rest

    collector = RolloutCollector(late([CounterEnv([1]), Poisoned([50])]))
    with pytest.raises(NonFiniteError, match="environment 1 gave reward") as caught:
        collector.collect(Dice(2), steps=4)
    assert caught.value.details["row"] == 5
