import pytest

from rl_lab.core.clock import Counters, Earned, Every


def fired(clock: Every, stride: int, until: int) -> list[int]:
    return [step for step in range(stride, until + 1, stride) if clock.due(step)]


def test_crossings_are_counted_whatever_the_stride():
    # 3 envs, every 10 steps, to step 102: ten triggers, the first at 12
    steps = fired(Every(10), 3, 102)
    assert len(steps) == 10
    assert steps[0] == 12


def test_zero_never_fires_and_a_big_stride_fires_once():
    assert fired(Every(0), 5, 100) == []
    assert fired(Every(10), 35, 105) == [35, 70, 105]


def test_a_restored_clock_does_not_fire_again():
    clock = Every(10)
    assert clock.due(12)
    restored = Every(10)
    restored.load_state_dict(clock.state_dict())
    assert not restored.due(15)
    assert restored.due(21)


def test_counters_round_trip():
    counters = Counters(env_steps=2**40, updates=3)
    other = Counters()
    other.load_state_dict(counters.state_dict())
    assert other == counters


@pytest.mark.parametrize("num_envs", [1, 4, 7])
def test_gradient_steps_are_earned_exactly_at_every_point(num_envs):
    account, taken = Earned(seen=20), 0
    for step in range(num_envs, 20 + 1000, num_envs):
        if step % 3 == 0:  # a restart here and there changes nothing
            state, account = account.state_dict(), Earned()
            account.load_state_dict(state)
        due = account.count(step, 0.3)
        account.spend(due)
        taken += due
        assert taken == 3 * max(step - 20, 0) // 10


def test_what_was_not_taken_stays_due_and_a_ratio_may_change():
    account = Earned()
    assert account.count(10, 0.25) == 2
    assert account.count(10, 0.25) == 2  # the same steps count once
    account.spend(1)
    assert account.count(12, 1.0) == 3  # 1.5 left, and two more
