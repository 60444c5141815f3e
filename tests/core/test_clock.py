import pytest

from rl_lab.core.clock import Counters, Every, UpdateBudget


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


def online(step):
    return {"type": "online", "step": step, "env_steps": step, "phase_steps": step}


def take(budget, count, step, ratio):
    return list(budget.take(count, online(step), ratio))


@pytest.mark.parametrize("num_envs", [1, 4, 7])
def test_the_replay_ratio_is_kept_exactly_at_every_point(num_envs):
    budget = UpdateBudget(learning_starts=20)
    for step in range(num_envs, 20 + 1000, num_envs):
        if step % 3 == 0:  # a restart here and there changes nothing
            state, budget = budget.state_dict(), UpdateBudget()
            budget.load_state_dict(state)
        due = budget.due(online(step), 0.3, ready=True)
        assert take(budget, due, step, 0.3) == list(range(due))
        assert budget.steps == 3 * max(step - 20, 0) // 10


def test_what_was_not_taken_stays_due_and_a_ratio_may_change():
    budget = UpdateBudget()
    assert budget.due(online(10), 0.25, ready=True) == 2
    assert budget.due(online(10), 0.25, ready=True) == 2  # the same steps count once
    take(budget, 1, 10, 0.25)
    assert budget.due(online(12), 1.0, ready=True) == 3  # 1.5 left, and two more


def test_steps_without_enough_data_and_of_other_phases_allow_nothing():
    budget = UpdateBudget()
    assert budget.due(online(50), 1.0, ready=False) == 0
    assert budget.due(online(60), 1.0, ready=True) == 10
    take(budget, 10, 60, 1.0)
    later = {**online(100), "phase_steps": 5}  # 35 of the 40 steps were of a phase that collects
    assert budget.due(later, 1.0, ready=True) == 5


def test_offline_phases_and_a_ratio_of_zero_take_one_step():
    budget = UpdateBudget()
    offline = {**online(10), "type": "offline"}
    for phase, ratio in ((offline, 1.0), (online(10), 0.0)):
        assert budget.due(phase, ratio, ready=True) == 1
        list(budget.take(1, phase, ratio))
    assert budget.steps == 2 and budget.parts == 0
