"""Hindsight: goals are achieved ones of the same episode, rewards are what they are worth."""

import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.buffers.hindsight import HindsightConfig, HindsightReplay
from rl_lab.core.errors import UserError
from transition_stream import GOALS, OWN, SPEC, GoalStream, pay, setup


def hindsight(capacity=60, num_envs=2, **options):
    config = HindsightConfig(capacity=capacity, **options)
    return HindsightReplay(config, setup(GOALS, num_envs, goal_reward=pay))


def sampled(buffer, batch_size=300):
    """Rows of one minibatch in numpy: frames before and after, goals, rewards, flags."""
    batch = buffer.sample(batch_size)
    row = lambda leaf: leaf[0].numpy()  # noqa: E731
    assert torch.equal(batch["obs"]["desired_goal"], batch["next_obs"]["desired_goal"])
    return {
        "frame": row(batch["obs"]["observation"]),
        "reached": row(batch["next_obs"]["achieved_goal"]),
        "goal": row(batch["obs"]["desired_goal"]),
        **{key: row(batch[key]) for key in ("reward", "terminated", "truncated")},
    }


def filled(strategy, seed=3, **options):
    stream, buffer = GoalStream(2, seed, ends=0.1), hindsight(strategy=strategy, **options)
    for _ in range(9):  # 1.5 times its size
        buffer.add(stream.trajectory(5))
    lengths = {}  # (environment, fragment) -> frames that were reached in it, oldest that is there
    for env, history in enumerate(stream.rows):
        for each in history[-30:]:
            lengths.setdefault((env, each["fragment"]), []).append(each["next_obs"][2])
    return buffer, lengths


@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
def test_goals_come_from_where_the_strategy_says(strategy):
    buffer, reached = filled(strategy)
    rows = sampled(buffer, 2000)
    new = rows["goal"][:, 0] != OWN
    assert new.sum() == 1600  # four of five
    seen = set()
    for frame, goal in zip(rows["frame"][new], rows["goal"][new], strict=True):
        env, fragment, t = (int(each) for each in frame)
        own = reached[env, fragment]
        if strategy == "random":
            assert goal[2] in reached[int(goal[0]), int(goal[1])]
            seen.add(tuple(goal[:2]) != (env, fragment))
            continue
        assert tuple(goal[:2]) == (env, fragment)
        possible = {"future": [each for each in own if each > t], "final": own[-1:], "episode": own}
        assert goal[2] in possible[strategy]
        seen.add((env, fragment, t, goal[2]))
    if strategy == "random":
        assert seen == {True, False}
    else:
        sizes = {
            "future": lambda n: n * (n + 1) // 2,
            "final": lambda n: n,
            "episode": lambda n: n * n,
        }
        possible = sum(sizes[strategy](len(each)) for each in reached.values())
        assert 0.6 * possible < len(seen) <= possible  # all of them are drawn in time


def test_rewards_are_those_of_the_new_goal():
    buffer, _ = filled("future")
    rows = sampled(buffer, 1000)
    new = rows["goal"][:, 0] != OWN
    assert (rows["reward"][new] == pay(rows["reached"], rows["goal"])[new]).all()
    assert 0 < (rows["reward"][new] == 0).sum() < new.sum()
    assert rows["reward"].dtype == np.float32
    # the others keep the reward that was paid: it says which environment it was, in eighths
    assert (rows["reward"][~new] % 1 * 8 == rows["frame"][~new, 0]).all()


@pytest.mark.parametrize("success_reward", [None, 0.0])
def test_termination_follows_the_goal_only_where_the_task_does_so(success_reward):
    buffer, _ = filled("future", success_reward=success_reward)
    rows = sampled(buffer, 2000)
    new = rows["goal"][:, 0] != OWN
    reached = (rows["reached"] == rows["goal"]).all(-1)
    follows = (rows["terminated"] == reached)[new].all()
    assert follows == (success_reward is not None)
    assert not (rows["terminated"] & rows["truncated"]).any()
    assert rows["truncated"][~new].any() and rows["terminated"][~new].any()


@settings(max_examples=100, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    rows=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.1, 0.5]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
)
def test_the_borders_of_every_episode_are_known(num_envs, rows, seed, ends, lengths):
    stream, buffer = GoalStream(num_envs, seed, ends=ends), hindsight(rows * num_envs, num_envs)
    for length in lengths:
        buffer.add(stream.trajectory(length))
        if length == 5:
            stream.restart()
        ring = buffer.ring
        number = np.arange(ring.oldest * num_envs, ring.total * num_envs)
        first, last = buffer.episodes.first(number), buffer.episodes.last(number)
        for each, begin, end in zip(number, first, last, strict=True):
            env, step = each % num_envs, each // num_envs
            history = stream.rows[env]
            same = [
                index
                for index in range(ring.oldest, ring.total)
                if history[index]["fragment"] == history[step]["fragment"]
            ]
            assert (begin, end) == (same[0] * num_envs + env, same[-1] * num_envs + env)


@pytest.mark.parametrize(("ratio", "new"), [(0.0, 0), (1.0, 50), (4.0, 80)])
def test_the_share_of_new_goals(ratio, new):
    buffer, _ = filled("final", ratio=ratio)
    batch = buffer.sample(100, 3)
    other = (batch["obs"]["desired_goal"][..., 0] != OWN).sum(1)
    assert other.tolist() == [new] * 3


def test_what_is_stored_stays_as_it_was():
    buffer, _ = filled("final")
    buffer.sample(500)
    assert (buffer.last(60)["obs"]["desired_goal"] == OWN).all()
    assert (buffer.last(60)["next_obs"]["desired_goal"] == OWN).all()


def test_only_some_fields():
    buffer, _ = filled("final")
    assert set(buffer.sample(4, only=["obs", "reward"])) == {"obs", "reward"}


def test_what_it_cannot_do_is_refused():
    with pytest.raises(UserError, match="achieved_goal and desired_goal, Made-Up has none"):
        HindsightReplay(HindsightConfig(), setup(SPEC, goal_reward=pay))
    with pytest.raises(
        UserError, match="compute_reward, and no wrapper that changes rewards: Goals"
    ):
        HindsightReplay(HindsightConfig(), setup(GOALS))
    with pytest.raises(UserError, match="n_step 1, got 3"):
        filled("final")[0].sample(4, n_step=3)
    with pytest.raises(ValueError, match=r"strategy must be 'future', .* got 'past'"):
        HindsightConfig(strategy="past")
    with pytest.raises(ValueError, match="ratio must be at least 0, got -1"):
        HindsightConfig(ratio=-1)
