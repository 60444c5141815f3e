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
    LATENT,
    LOG_PROB,
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
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.state import differences, join, split
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.make import make_vector
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


def late_cartpole() -> GymnasiumVector:
    return late([gym.make("CartPole-v1") for _ in range(4)])


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


def check_nothing_is_lost(kind: str, sizes: list[int]) -> int:
    """Compare the rows of calls of these sizes with what the vector made; return the episodes."""
    env = Recorded(VECTORS[kind]())
    collector = RolloutCollector(env)
    act = Dice(env.spec.action.n)
    calls, taken, episodes = [], 0, 0
    for size in sizes:
        result = collector.collect(act, steps=size)
        calls.append(result.trajectory)
        taken, episodes = taken + result.steps, episodes + result.episodes
        collector = reopened(collector, env)
    rows = joined(calls)
    made = sum(len(column) for column in env.made)
    assert taken == made  # every one is counted, when it is played
    assert episodes == sum(bool(row[3] | row[4]) for column in env.made for row in column)
    assert len(rows[REWARD]) == sum(sizes)
    assert torch.equal(rows["twice"], 2.0 * rows[ACTION])
    for i, column in enumerate(env.made):
        assert len(column) >= len(rows[REWARD])
        for t, expected in enumerate(column[: len(rows[REWARD])]):
            brought = [np.asarray(rows[name][t, i]) for name in (*ROW, RESET)]
            for name, left, right in zip((*ROW, RESET), brought, expected, strict=True):
                assert np.array_equal(left, right.astype(left.dtype)), (name, t, i)
    env.close()
    return episodes


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", VECTORS)
def test_no_transition_is_lost(kind: str, size: int) -> None:
    steps = 140 if kind.startswith("atari") else 400
    assert check_nothing_is_lost(kind, [size] * -(-steps // size)) > 4


@pytest.mark.parametrize("kind", VECTORS)  # envpool is skipped where the package is missing
@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(st.integers(1, 128) | st.integers(1, 6), min_size=1, max_size=5))
def test_no_transition_is_lost_by_calls_of_mixed_sizes(kind: str, sizes: list[int]) -> None:
    check_nothing_is_lost(kind, sizes)


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


def constant(**extras: Any) -> Any:
    """A policy that always does the same and gives these extras with it."""

    def act(obs: Any, state: Any, *, deterministic: bool) -> Action:
        rows = {name: np.full((len(obs), 1), value, np.float32) for name, value in extras.items()}
        return Action(np.zeros(len(obs), np.int64), state, rows)

    return act


def test_rows_without_log_probs_are_dropped_when_a_policy_has_them() -> None:
    """Zeros would pass for the policy's own log-probs. Dropped rows still count as played."""
    env = Recorded(late())
    collector = RolloutCollector(env)
    first = collector.collect(constant(), steps=9)
    assert collector.carried["count"].max() > 3
    played = [len(column) for column in env.made]
    second = collector.collect(constant(**{LOG_PROB: -1.0}), steps=9)
    assert (second.trajectory[LOG_PROB] == -1).all()
    assert first.steps + second.steps == sum(len(column) for column in env.made)
    for i, column in enumerate(env.made):  # the rollout begins with the first decision of its own
        expected = np.stack([row[0] for row in column[played[i] : played[i] + 9]])
        assert np.array_equal(second.trajectory[OBS][:, i], expected)


def test_rows_without_a_stored_state_are_kept_with_zeros() -> None:
    """Zeros mean there that the state is not known, and replay may learn from any policy's rows."""
    collector = RolloutCollector(late())
    first = collector.collect(constant(), steps=5).trajectory
    waiting = collector.carried["count"].copy()
    second = collector.collect(constant(**{LATENT: 1.0}), steps=9).trajectory
    own = np.arange(9)[:, None] >= waiting
    assert np.array_equal(second[LATENT][..., 0], own)
    assert torch.equal(second[OBS][0, 2], first[NEXT_OBS][-1, 2])  # no gap


def test_ppo_after_a_random_phase_learns_from_its_own_actions_only(tiny: Any) -> None:
    workflow = tiny("CartPole-v1:ppo_defaults").workflow
    empty = workflow.initial_state(4)
    collector = RolloutCollector(late_cartpole())
    collector.collect(Dice(2), steps=64)
    assert collector.carried["count"].max() > 1
    rows = collector.collect(workflow.act, steps=16, state=empty).trajectory
    metrics = workflow.update(rows, phase={"name": "train", "type": "online", "step": 0})
    assert metrics["policy_drift"] < 1e-4


def test_ppo_learns_from_rows_that_waited_for_an_update_and_shows_their_age(tiny: Any) -> None:
    """No row is left out; `policy_drift` is large where some are of the policy before."""
    workflow = tiny("CartPole-v1:ppo_defaults", "algorithm.learning_rate=0.01").workflow
    empty = workflow.initial_state(4)
    collector = RolloutCollector(late_cartpole())
    phase = {"name": "train", "type": "online", "step": 0}
    first = collector.collect(workflow.act, steps=64, state=empty).trajectory
    assert workflow.update(first, phase=phase)["policy_drift"] < 1e-4
    waiting = int(collector.carried["count"].max())
    assert waiting > 1
    second = collector.collect(workflow.act, steps=64, state=empty).trajectory
    metrics = workflow.update(second, phase=phase)
    assert metrics["policy_drift"] > 1e-3
    rows, _ = workflow._credit(second, workflow.config)
    assert rows["advantage"].numel() == 64 * 4


def test_a_bad_number_in_a_row_that_waits_is_found_at_once() -> None:
    class Poisoned(CounterEnv):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, float("nan") if obs[1] == 6 else reward, *rest

    collector = RolloutCollector(late([CounterEnv([1]), Poisoned([50])]))
    with pytest.raises(NonFiniteError, match="environment 1 gave reward") as caught:
        collector.collect(Dice(2), steps=4)
    assert caught.value.details["row"] == 5
