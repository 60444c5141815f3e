"""What keys do to a show, without a window."""

import pytest

from rl_lab.analysis.controls import FASTEST, SLOWEST, Controls, linger


def after(keys):
    controls = Controls()
    for key in keys:
        controls.press(key)
    return controls


def test_each_key():
    assert after(" ").paused and not after("  ").paused
    assert after("n").paused and after("n").single
    assert (after("+").speed, after("=").speed, after("-").speed) == (2, 2, 0.5)
    assert after("+" * 99).speed == FASTEST and after("-" * 99).speed == SLOWEST
    assert after("r").again and after("q").leave
    assert (after("cc").move, after("C").move, after("cC").move) == (2, -1, 0)
    assert after("x§") == Controls()


class Clock:
    def __init__(self):
        self.time = 0.0

    def sleep(self, seconds):
        self.time += seconds


def shown(controls, presses, *, seconds=0.1):
    """How long a frame was shown; `presses` are (time, key)."""
    clock, waiting = Clock(), list(presses)

    def keys():
        due = [key for at, key in waiting if at <= clock.time]
        waiting[:] = [each for each in waiting if each[0] > clock.time]
        return due

    linger(
        controls,
        keys,
        seconds=seconds,
        interrupted=lambda: clock.time > 50,
        redraw=lambda: None,
        now=lambda: clock.time,
        sleep=clock.sleep,
    )
    return clock.time


def test_a_frame_is_shown_for_its_time_at_the_speed():
    assert shown(Controls(), []) == pytest.approx(0.1, abs=0.021)
    assert shown(Controls(speed=2.0), []) == pytest.approx(0.05, abs=0.021)
    assert shown(Controls(speed=0.5), []) == pytest.approx(0.2, abs=0.021)


def test_a_pause_lasts_until_a_key_goes_on():
    assert shown(Controls(), [(0.0, " "), (7.0, " ")]) == pytest.approx(7.0, abs=0.05)
    controls = Controls(paused=True)
    assert shown(controls, [(3.0, "n")]) == pytest.approx(3.0, abs=0.05)
    assert controls.paused and not controls.single  # one frame, and paused again
    assert shown(Controls(paused=True), [(2.0, "r")]) == pytest.approx(2.0, abs=0.05)
    assert shown(Controls(paused=True), []) > 50  # a signal ends it, too
