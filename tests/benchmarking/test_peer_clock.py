"""What counts of a timed training: the steady state, evaluations in a row, and learning."""

import pytest
from benchmarks.peers import settings
from benchmarks.peers.settings import Clock, Job, Timed


def clock(monkeypatch, rollouts, seconds):
    """A clock that was looked at after each of the rollouts, at these times."""
    times = iter(seconds)
    monkeypatch.setattr(settings.time, "perf_counter", lambda: next(times))
    made = Clock(Job(env="CartPole-v1", settings="matched", rollouts=rollouts))
    for number in range(rollouts):
        made.rollout_done([10.0 + number, 14.0 + number])
    return made


def test_the_first_rollouts_do_not_count(monkeypatch):
    # 5 rollouts of 1,024 steps; 3 are warm-up: the last two take from 9 s to 13 s.
    timed = clock(monkeypatch, 5, [6.0, 8.0, 9.0, 10.0, 13.0]).result([100.0, 102.0])
    assert timed.steps_per_second == 2 * 1024 / 4.0
    assert (timed.first_return, timed.first_spread, timed.last_return) == (12.0, 2.0, 101.0)


def test_a_short_training_has_one_rollout_that_counts(monkeypatch):
    timed = clock(monkeypatch, 2, [6.0, 8.0]).result([])
    assert timed.steps_per_second == 1024 / 2.0


@pytest.mark.parametrize(
    ("scores", "evaluated", "steps", "arrived"),
    [
        # 256 steps a rollout, an evaluation where 600 is crossed: after rollouts 3, 5 and 8.
        ([480, 470, 475, 475], [3, 5, 8, 10], 2560, True),  # 475 counts, and only in a row
        ([475, 500], [3, 5], 1280, True),
        ([100, 480, 474, 480], [3, 5, 8, 10], 2560, False),  # the rollouts are used up
    ],
)
def test_a_return_must_be_reached_twice_in_a_row(scores, evaluated, steps, arrived):
    own = Clock(Job(env="CartPole-v1", settings="zoo", rollouts=10, until=475.0, every=600))
    left, seen = iter(scores), []

    def evaluate():
        seen.append(len(own.times))
        return next(left)

    for _ in range(10):
        own.rollout_done([20.0])
        if own.reached(evaluate):
            break
    timed = own.result([20.0])
    assert (seen, timed.steps, timed.reached) == (evaluated, steps, arrived)


def test_nothing_is_evaluated_unless_it_is_asked_for():
    own = Clock(Job(env="CartPole-v1", settings="zoo", rollouts=2))
    own.rollout_done([20.0])
    assert own.reached(lambda: pytest.fail("evaluated")) is False


def test_a_training_that_ends_too_early_is_a_mistake():
    own = Clock(Job(env="CartPole-v1", settings="zoo", rollouts=3, until=475.0, every=1))
    for _ in range(2):
        own.rollout_done([20.0])
        own.reached(lambda: 400.0)
    with pytest.raises(AssertionError):
        own.result([20.0])


@pytest.mark.parametrize(("last", "learned"), [(22.0, False), (22.1, True), (float("nan"), False)])
def test_learning_is_more_than_luck(last, learned):
    timed = Timed(steps_per_second=1, first_return=20, first_spread=2, last_return=last)
    assert timed.learned is learned
