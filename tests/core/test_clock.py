from rl_lab.core.clock import Counters, Every


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
