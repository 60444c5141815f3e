"""Workers that are killed, stopped, hang, raise or lose their trainer."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from fault_envs import Heavy, NeverMade, Unwell
from rl_lab.core.errors import UserError
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.process import EnvironmentFailedError, ProcessVector

FOUR = np.zeros(4, np.int64)
ENDLESS = partial(CounterEnv, lengths=(10_000,))


def make(env: Any, count: int = 4, **settings: Any) -> ProcessVector:
    return ProcessVector(env, range(count), "x", **{"workers": 2, "restarts": 1000, **settings})


def pids(vector: ProcessVector) -> list[int]:
    return [worker.process.pid for worker in vector._workers]


def test_fifty_killed_workers_are_noticed_at_once_and_replaced(caplog: Any) -> None:
    vector = make(ENDLESS)
    shown = vector.reset()
    delays = []
    for round in range(50):
        victim = round % 2
        killed = time.time()
        os.kill(pids(vector)[victim], signal.SIGKILL)
        step = vector.step(FOUR)
        delays.append(caplog.records[-1].created - killed)
        lost = [True, True, False, False] if victim == 0 else [False, False, True, True]
        assert step.truncated.tolist() == lost and not step.terminated.any()
        assert step.reward[lost].tolist() == [0, 0]
        assert np.array_equal(step.next_obs[lost], shown[lost])  # where it was last seen
        assert step.obs[lost].tolist() == [[0, 0], [0, 0]]
        alive = np.logical_not(lost)
        assert np.array_equal(step.next_obs[alive], shown[alive] + [0, 1])  # the others play on
        shown = vector.step(FOUR).obs
    assert vector.faults == 50 and len(caplog.records) == 50
    assert "environments 2 to 3" in caplog.text and "killed by SIGKILL" in caplog.text
    assert median(delays) < 0.1, delays
    vector.close()


def test_an_episode_lost_at_its_first_frame_ends_there() -> None:
    vector = make(partial(CounterEnv, lengths=(2,)), count=1)
    vector.reset()
    assert [vector.step(FOUR[:1]).obs.tolist() for _ in range(2)] == [[[0, 1]], [[1, 0]]]
    os.kill(pids(vector)[0], signal.SIGKILL)
    step = vector.step(FOUR[:1])
    assert step.next_obs.tolist() == [[1, 0]] and step.obs.tolist() == [[0, 0]]
    assert step.truncated.tolist() == [True]
    vector.close()


def test_new_episodes_have_new_seeds() -> None:
    import gymnasium as gym

    vector = make(partial(gym.make, "CartPole-v1"))
    seen = [vector.reset()[0]]
    for _ in range(3):
        os.kill(pids(vector)[0], signal.SIGKILL)
        seen += list(vector.step(FOUR).obs[:2])
    assert len(np.unique(seen, axis=0)) == 7
    vector.close()


def test_a_worker_killed_within_a_long_step_is_noticed() -> None:
    vector = make(partial(Unwell, "hang", at=1), count=2)
    vector.reset()
    timers = [threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)) for pid in pids(vector)]
    began = time.monotonic()
    for timer in timers:
        timer.start()
    assert vector.step(FOUR[:2]).truncated.all()
    assert time.monotonic() - began < 5  # of 60 that the step would have taken
    vector.close()


def test_stopped_and_hanging_workers_are_replaced_after_the_timeout(caplog: Any) -> None:
    vector = make(ENDLESS, step_timeout=0.3)
    vector.reset()
    for round in range(3):
        stopped = pids(vector)[round % 2]
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        assert vector.step(FOUR).truncated.sum() == 2
        assert 0.3 <= time.monotonic() - began < 5
        assert not Path(f"/proc/{stopped}").exists()
        assert not vector.step(FOUR).truncated.any()
    assert "no answer for 0.3 s" in caplog.text
    vector.close()
    hanging = make(partial(Unwell, "hang", at=2), count=1, step_timeout=0.3)
    hanging.reset()
    flags = [bool(hanging.step(FOUR[:1]).truncated[0]) for _ in range(4)]
    assert flags == [False, True, False, True]
    hanging.close()


def test_a_worker_stopped_while_its_state_travels_does_not_block(caplog: Any) -> None:
    vector = make(Heavy, count=1, step_timeout=1.0)
    vector.reset()
    saved = vector.state_dict()
    os.kill(pids(vector)[0], signal.SIGSTOP)
    vector.load_state_dict(saved)  # more than a pipe holds
    assert "killed by SIGKILL" in caplog.text
    assert vector.faults == 1 and not vector.step(FOUR[:1]).truncated.any()
    vector.close()


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_an_env_that_fails_once_costs_one_episode(how: str, tmp_path: Path, caplog: Any) -> None:
    vector = make(partial(Unwell, how, at=3, once=str(tmp_path / "mark")), count=1)
    vector.reset()
    steps = [vector.step(FOUR[:1]) for _ in range(8)]
    assert [bool(step.truncated[0]) for step in steps] == [i == 2 for i in range(8)]
    assert steps[2].next_obs.tolist() == [[0, 2]] and steps[2].obs.tolist() == [[0, 0]]
    assert steps[-1].obs.tolist() == [[0, 5]]
    told = r"fault_envs.py:\d+ in step: ValueError" if how == "raise" else "exit code 7"
    assert re.search(told, caplog.text) and "Traceback" not in caplog.text
    assert vector.faults == 1 and vector.snapshot_level == "E0"
    vector.close()


def test_an_env_that_always_fails_ends_the_run_with_its_own_traceback() -> None:
    vector = make(partial(Unwell, "raise", at=1), count=1, restarts=2)
    vector.reset()
    vector.step(FOUR[:1])
    vector.step(FOUR[:1])
    with pytest.raises(EnvironmentFailedError) as error:
        vector.step(FOUR[:1])
    (line,) = str(error.value).splitlines()
    assert "fault 3" in line
    assert re.search(r"fault_envs.py:\d+ in step: ValueError: the lander has no fuel$", line)
    assert "in step" in error.value.remote_traceback  # whole, for run.log
    assert isinstance(error.value, UserError)
    with pytest.raises(RuntimeError, match="closed"):
        vector.step(FOUR[:1])


def test_old_faults_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr("rl_lab.envs.process.WINDOW", 5)
    vector = make(ENDLESS, count=1, restarts=1)
    vector.reset()
    for _ in range(4):
        os.kill(pids(vector)[0], signal.SIGKILL)
        for _ in range(5):
            vector.step(FOUR[:1])
    assert vector.faults == 4
    vector.close()


def test_an_env_that_cannot_be_made_in_a_worker_is_told_at_once() -> None:
    with pytest.raises(
        EnvironmentFailedError,
        match=r"did not start: .*fault_envs.py:.* in __init__: RuntimeError: no display",
    ):
        make(partial(NeverMade, os.getpid()))


def test_a_worker_lost_while_idle_is_saved_as_lost() -> None:
    vector = make(ENDLESS)
    vector.reset()
    vector.step(FOUR)
    os.kill(pids(vector)[0], signal.SIGKILL)
    saved = vector.state_dict()
    other = make(ENDLESS)
    other.load_state_dict(saved)
    for each in (vector, other):
        step = each.step(FOUR)
        assert step.truncated.tolist() == [True, True, False, False]
        assert step.next_obs.tolist() == [[0, 1], [0, 1], [0, 2], [0, 2]]
        assert step.obs.tolist() == [[0, 0], [0, 0], [0, 2], [0, 2]]
        assert each.step(FOUR).obs.tolist() == [[0, 1], [0, 1], [0, 3], [0, 3]]
        assert each.faults == 1
        each.close()


def test_a_worker_lost_before_a_reset_leaves_no_trace_in_the_flags() -> None:
    vector = make(ENDLESS)
    for _ in range(2):
        os.kill(pids(vector)[1], signal.SIGKILL)
        assert vector.reset()[2:].tolist() == [[0, 0], [0, 0]]
    assert vector.reset()[:, 0].tolist() == [2, 2, 1, 1]  # episodes; a new worker counts anew
    assert not vector.step(FOUR).truncated.any() and vector.faults == 2
    vector.close()


def test_an_interrupted_step_closes_the_vector() -> None:
    vector = make(partial(Unwell, "hang", at=1), count=2)
    vector.reset()
    main = threading.main_thread().ident
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        vector.step(FOUR[:2])
    assert time.monotonic() - began < 10
    with pytest.raises(RuntimeError, match="closed"):
        vector.step(FOUR[:2])


# No guard around it: a worker must not run the script again.
ORPHANS = """
from functools import partial
import numpy as np
from fault_envs import Unwell
from rl_lab.envs.process import ProcessVector
vector = ProcessVector(partial(Unwell, "hang", at=1, seconds=30), [0, 1], "x", workers=2)
vector.reset()
print(*(worker.process.pid for worker in vector._workers), flush=True)
vector.step(np.zeros(2, int))
"""

# An environment that exists only in the script.
SIGNALS = """
import signal, sys, time
import numpy as np
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.process import ProcessVector
class Mine(CounterEnv):
    pass
if __name__ == "__main__":
    got = []
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, frame: got.append(number))
    vector = ProcessVector(Mine, [0, 1], "mine", workers=2)
    vector.reset()
    print("ready", flush=True)
    while len(set(got)) < 2:
        vector.step(np.zeros(2, int))
    for _ in range(50):
        vector.step(np.zeros(2, int))
        time.sleep(0.01)
    print(vector.faults, flush=True)
    vector._workers[0].process.kill()  # the fork server died of SIGTERM: another one must serve
    vector.step(np.zeros(2, int))
    print(vector.faults, flush=True)
    sys.exit()  # without close
"""


def script(text: str, folder: Path) -> subprocess.Popen[str]:
    file = folder / "script.py"
    file.write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, str(file)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(own) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def all_gone(session: int) -> bool:
    """Within seconds: the machine may be busy. A step that hangs would take half a minute."""
    deadline = time.monotonic() + 5
    while members(session) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not members(session)


def test_nothing_outlives_a_killed_trainer_in_the_middle_of_a_step(tmp_path: Path) -> None:
    child = script(ORPHANS, tmp_path)
    assert child.stdout is not None
    workers = [int(word) for word in child.stdout.readline().split()]
    assert len(workers) == 2 and set(workers) < set(members(child.pid))
    time.sleep(0.2)  # now they sleep in their step
    child.kill()
    deadline = time.monotonic() + 2  # for the workers themselves; the fork server may take longer
    while set(workers) & set(members(child.pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(workers) & set(members(child.pid))
    with child:  # closes its pipes; an orphan would hold their other ends
        pass
    assert all_gone(child.pid)


def test_ctrl_c_and_sigterm_to_the_whole_group_leave_the_workers_alone(tmp_path: Path) -> None:
    child = script(SIGNALS, tmp_path)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(child.pid, number)
    out, err = child.communicate(timeout=60)
    assert (out, child.returncode) == ("0\n1\n", 0), err
    assert "Traceback" not in err
    assert all_gone(child.pid)
