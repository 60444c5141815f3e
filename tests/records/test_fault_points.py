import signal

import pytest

from rl_lab.core.errors import UserError
from rl_lab.records import faults
from rl_lab.records.faults import fault


@pytest.fixture(autouse=True)
def fresh_faults(monkeypatch):
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    faults.reset()
    yield
    faults.reset()


def test_without_a_plan_nothing_happens_and_nothing_is_counted():
    fault("hook.before")
    assert not faults._reached


def test_an_error_strikes_at_its_count_and_only_then(monkeypatch):
    monkeypatch.setenv(faults.VARIABLE, "hook.before:error@3, other:kill")
    for attempt in range(1, 6):
        if attempt == 3:
            with pytest.raises(OSError, match="No space left") as caught:
                fault("hook.before")
            assert caught.value.errno == 28
        else:
            fault("hook.before")


def test_kill_and_term_are_sent_to_this_process(monkeypatch):
    sent = []
    monkeypatch.setattr(faults.os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setenv(faults.VARIABLE, "a:kill@2,b:term")
    for point in ("a", "b", "a", "b"):
        fault(point)
    me = faults.os.getpid()
    assert sent == [(me, signal.SIGTERM), (me, signal.SIGKILL)]


@pytest.mark.parametrize("plan", ["a", "a:explode", "a:kill@0", "a:kill@", "", "a:kill@x"])
def test_a_misspelt_plan_does_not_pass_for_success(monkeypatch, plan):
    monkeypatch.setenv(faults.VARIABLE, plan)
    with pytest.raises(UserError, match="RL_LAB_FAULT"):
        fault("a")
