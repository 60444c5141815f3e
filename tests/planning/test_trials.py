"""Trials of candidates: who plays what, what counts, common seeds, and resuming in mid-trial."""

import numpy as np
import pytest

from rl_lab.core.state import fingerprint, join, split
from rl_lab.planning.trials import Trials


def trials(population=4, episodes=2, envs=4, seed=0) -> Trials:
    return Trials(population, episodes, envs, np.random.default_rng(seed))


def ends(*rows):
    return np.array(rows, np.bool_)


def test_every_candidate_plays_every_seed_once():
    account = trials(population=6, episodes=2, envs=4)
    played, seeds = [], account.seeds.tolist()
    assert len(set(seeds)) == 2
    while not account.complete:
        given = account.begin_round()
        played += list(zip(account.candidates.tolist(), given, strict=True))
        account.count(np.ones((1, 4)), ends([1, 1, 1, 1]), 1.0)
    assert sorted(played) == sorted((c, s) for c in range(6) for s in seeds)


def test_rewards_count_up_to_the_first_end_by_hand():
    account = trials(population=2, episodes=1, envs=2)
    account.begin_round()
    reward = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    account.count(reward, ends([0, 0], [1, 0], [0, 0]), 1.0)
    assert account.totals.tolist() == [3.0, 70.0]
    assert account.in_round and account.playing.tolist() == [False, True]
    account.count(reward, ends([0, 1], [0, 0], [1, 0]), 1.0)  # the first one plays for nobody
    assert account.complete and account.returns().tolist() == [3.0, 80.0]


def test_discounts_go_on_from_call_to_call():
    # 1 + 0.5 · 2 + 0.25 · 4 = 3, however it is cut.
    reward = np.array([[1.0], [2.0], [4.0]])
    last = ends([0], [0], [1])
    whole, cut = (trials(population=1, episodes=1, envs=1) for _ in range(2))
    whole.begin_round()
    whole.count(reward, last, 0.5)
    cut.begin_round()
    cut.count(reward[:2], last[:2], 0.5)
    cut.count(reward[2:], last[2:], 0.5)
    assert whole.returns().tolist() == cut.returns().tolist() == [3.0]


def test_returns_are_means_over_episodes():
    account = trials(population=2, episodes=2, envs=2)
    for rewards in ([1.0, 5.0], [3.0, 6.0]):
        account.begin_round()
        account.count(np.array([rewards]), ends([1, 1]), 1.0)
    assert account.returns().tolist() == [2.0, 5.5]


def test_a_new_generation_has_new_seeds_and_no_scores():
    account = trials()
    seeds = account.seeds.tolist()
    account.begin_round()
    account.count(np.ones((1, 4)), ends([1, 1, 1, 1]), 1.0)
    account.begin_generation()
    assert not set(account.seeds.tolist()) & set(seeds)
    assert account.over == 0 and not account.scores.any() and not account.in_round


def test_a_round_that_was_disturbed_begins_again():
    account = trials(envs=2)
    first = account.begin_round()
    account.count(np.ones((3, 2)), np.zeros((3, 2), np.bool_), 1.0)
    assert account.begin_round() == first
    assert account.totals.tolist() == [0, 0] and account.elapsed == 0


def test_it_is_saved_in_mid_trial():
    account = trials()
    account.begin_round()
    account.count(np.ones((3, 4)), ends([0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]), 0.9)
    other = trials(seed=5)
    other.load_state_dict(join(*split(account.state_dict())))
    assert fingerprint(other.state_dict()) == fingerprint(account.state_dict())
    for each in (account, other):
        each.count(np.ones((1, 4)), ends([0, 1, 1, 1]), 0.9)
    assert other.scores.tolist() == account.scores.tolist() and account.over == 4
    with pytest.raises(AssertionError, match="other sizes"):
        trials(population=8).load_state_dict(account.state_dict())
