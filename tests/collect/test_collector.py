import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_lab.collect.collector import RolloutCollector
from rl_lab.collect.evaluate import evaluate, quotas
from rl_lab.core.batch import (
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    STATE,
    TERMINATED,
    TRUNCATED,
    Action,
)
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.state import fingerprint
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.vector import GymnasiumVector, SyncVector

LENGTHS = (3, 5)


def counters(ends="truncated", lengths=LENGTHS):
    return [CounterEnv(lengths=[length], ends=ends) for length in lengths]


def sync(ends="truncated", lengths=LENGTHS):
    return SyncVector(counters(ends, lengths), list(range(len(lengths))), "counter")


def gymnasium_vector(mode):
    envs = [lambda env=env: env for env in counters()]
    inner = gym.vector.SyncVectorEnv(envs, autoreset_mode=mode)
    return GymnasiumVector(inner, [0, 1], "counter")


def idle(obs, state, *, deterministic):
    return Action(np.zeros(len(obs), dtype=np.int64), state)


def summing(obs, state, *, deterministic):
    """A memory that adds up what it sees: h after an end must be the new episode's first frame."""
    total = state["sum"] + obs.float()
    return Action(np.zeros(len(obs), dtype=np.int64), {"sum": total}, {"seen": total})


@pytest.mark.parametrize("mode", ["own", *gym.vector.AutoresetMode])
def test_every_row_is_a_real_transition_in_every_mode(mode):
    env = sync() if mode == "own" else gymnasium_vector(mode)
    collector = RolloutCollector(env)
    reference = RolloutCollector(sync()).collect(idle, steps=17).trajectory
    rows = collector.collect(idle, steps=17).trajectory
    # obs = (episode, t): never across an episode, always one step further
    assert torch.equal(rows[OBS][..., 0], rows[NEXT_OBS][..., 0])
    assert torch.equal(rows[OBS][..., 1] + 1, rows[NEXT_OBS][..., 1])
    for name in (OBS, NEXT_OBS, REWARD, TERMINATED, TRUNCATED, RESET):
        assert torch.equal(rows[name], reference[name]), name


def test_the_last_frame_is_kept_and_the_next_input_is_the_reset_frame():
    collector = RolloutCollector(sync(lengths=(3,)))
    rows = collector.collect(idle, steps=3).trajectory
    assert rows[NEXT_OBS][-1, 0].tolist() == [0.0, 3.0]
    assert rows[TRUNCATED].squeeze().tolist() == [False, False, True]
    assert collector.obs[0].tolist() == [1.0, 0.0]
    assert collector.is_first.tolist() == [True]


def test_memory_is_cleared_where_an_episode_begins():
    collector = RolloutCollector(sync(lengths=(3,)))
    start = {"sum": torch.zeros(1, 2)}
    rows = collector.collect(summing, steps=5, state=start).trajectory
    # t: 0, 1, 2 | 0, 1 -> sums 0, 1, 3 | 0, 1
    assert rows["seen"][:, 0, 1].tolist() == [0, 1, 3, 0, 1]
    assert rows[RESET].squeeze().tolist() == [True, False, False, True, False]
    assert rows[STATE]["sum"].tolist() == [[0.0, 0.0]]
    after = collector.collect(summing, steps=1, state=start).trajectory
    assert after[STATE]["sum"].tolist() == [[2.0, 1.0]]  # two frames of episode 1, t = 0 + 1


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
def test_memory_does_not_depend_on_the_autoreset_mode(mode):
    state = {"sum": torch.zeros(2, 2)}
    expected = RolloutCollector(sync()).collect(summing, steps=12, state=state).trajectory
    rows = RolloutCollector(gymnasium_vector(mode)).collect(summing, steps=12, state=state)
    assert torch.equal(rows.trajectory["seen"], expected["seen"])


def test_episodes_are_counted_on_raw_rewards():
    collector = RolloutCollector(sync())
    result = collector.collect(idle, steps=15)
    # rewards are t + 1: 6 for an episode of 3 (five of them), 15 for one of 5 (three)
    assert (result.steps, result.episodes) == (30, 8)
    assert result.metrics["collect/return_mean"] == pytest.approx((5 * 6 + 3 * 15) / 8)
    assert result.metrics["collect/return_best"] == 15.0
    assert result.metrics["collect/length_mean"] == pytest.approx((5 * 3 + 3 * 5) / 8)


def test_a_collector_continues_in_mid_episode():
    state = {"sum": torch.zeros(2, 2)}
    straight = RolloutCollector(sync())
    straight.collect(summing, steps=4, state=state)
    saved_env, saved = straight.env.state_dict(), straight.state_dict()
    expected = straight.collect(summing, steps=9, state=state)
    resumed = RolloutCollector(sync())
    resumed.env.load_state_dict(saved_env)
    resumed.load_state_dict(saved)
    result = resumed.collect(summing, steps=9, state=state)
    assert fingerprint(result.trajectory) == fingerprint(expected.trajectory)
    assert result.metrics == expected.metrics


class Poisoned(CounterEnv):
    """Gives a bad number at step 2 of every episode."""

    field = "reward"

    def step(self, action):
        obs, reward, *rest = super().step(action)
        if obs[1] == 2:
            if self.field == "reward":
                reward = float("nan")
            else:
                obs = np.array([np.inf, obs[1]], dtype=np.float32)
        return obs, reward, *rest


@pytest.mark.parametrize("field", ["reward", "obs"])
def test_a_bad_number_from_an_environment_stops_the_run(field):
    bad = type("Bad", (Poisoned,), {"field": field})(lengths=[5], ends="truncated")
    good = CounterEnv(lengths=[5], ends="truncated")
    collector = RolloutCollector(SyncVector([good, bad], [0, 1], "counter"))
    with pytest.raises(NonFiniteError, match="environment 1 gave") as caught:
        collector.collect(idle, steps=8)
    assert caught.value.details["environment"] == 1
    assert len(caught.value.details["last_actions"]) > 0


def test_quotas_are_equal_but_for_the_rest():
    assert quotas(20, 8) == [3, 3, 3, 3, 2, 2, 2, 2]
    assert quotas(4, 2) == [2, 2]


def test_short_episodes_gain_no_weight():
    # lengths 1 and 100, four episodes: two of each, mean 50.5, not three short ones
    env = sync(lengths=(1, 100))
    result = evaluate(idle, env, seeds=[0, 1], episodes=4, deterministic=True)
    assert result.lengths == [1, 1, 100, 100]
    assert result.summary()["length_mean"] == 50.5
    assert result.summary()["episodes"] == 4


@pytest.mark.parametrize("mode", ["own", *gym.vector.AutoresetMode])
def test_evaluation_clears_the_memory_where_an_episode_begins(mode):
    env = sync() if mode == "own" else gymnasium_vector(mode)
    seen = []

    def watched(obs, state, *, deterministic):
        decision = summing(obs, state, deterministic=deterministic)
        seen.append((obs[0].tolist(), decision.state["sum"][0, 1].item()))
        return decision

    start = {"sum": torch.zeros(2, 2)}
    evaluate(watched, env, seeds=[0, 1], episodes=4, deterministic=True, initial_state=start)
    # env 0 plays t = 0, 1, 2 and begins again: whatever the episode, the sums are 0, 1, 3
    sums = [total for (_, t), total in seen if t < 3]
    assert sums[:6] == [0, 1, 3, 0, 1, 3]


@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluation_asks_for_what_it_was_told(deterministic):
    asked = set()

    def watched(obs, state, *, deterministic):
        asked.add(deterministic)
        return idle(obs, state, deterministic=deterministic)

    evaluate(watched, sync(), seeds=[0, 1], episodes=2, deterministic=deterministic)
    assert asked == {deterministic}


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
def test_evaluation_does_not_depend_on_the_autoreset_mode(mode):
    expected = evaluate(idle, sync(), seeds=[0, 1], episodes=6, deterministic=True)
    result = evaluate(idle, gymnasium_vector(mode), seeds=[0, 1], episodes=6, deterministic=True)
    assert result == expected
