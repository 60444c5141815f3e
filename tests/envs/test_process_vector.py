"""Environments in worker processes tell, save and continue exactly what one process would."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fault_envs import Global, Opaque
from rl_lab.core import spec
from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.state import fingerprint
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.make import make_vector
from rl_lab.envs.process import ProcessVector
from rl_lab.run.orchestrator import Orchestrator
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_run

FIELDS = ("obs", "reward", "terminated", "truncated", "next_obs")
CASES = {
    "CartPole-v1": {},
    "Pendulum-v1": {"max_episode_steps": 7},
    "rl_lab/Counter-v0": {"kwargs": {"lengths": [3, 5], "ends": "both"}},
    "FrozenLake-v1": {"wrappers": [{"id": "OneHotObservation"}]},
}


def vector(id: str, kind: str, seeds: Any, workers: int | None = 2) -> Any:
    settings: Any = {**CASES[id], "vectorization": kind, "workers": workers}
    return make_vector(EnvironmentConfig(id=id, **settings), seeds)


def actions(space: Any, steps: int, count: int) -> Any:
    generator = np.random.default_rng(1)
    if isinstance(space, spec.Discrete):
        return generator.integers(0, space.n, (steps, count))
    return 3 * generator.normal(size=(steps, count, *space.shape))  # some out of bounds


def same(left: Any, right: Any) -> bool:
    pairs = [(getattr(left, name), getattr(right, name)) for name in FIELDS]
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.parametrize("id", CASES)
def test_the_same_seeds_give_the_same_bytes_as_in_one_process(id: str) -> None:
    seeds = [5, 0, 7]
    one, many = vector(id, "sync", seeds), vector(id, "process", seeds)
    assert many.spec.action.shape == one.spec.action.shape
    assert one.reset().tobytes() == many.reset().tobytes()
    assert one.snapshot_level == many.snapshot_level == "E0"
    for action in actions(one.spec.action, 120, 3):
        assert same(one.step(action), many.step(action))
    assert one.reset().tobytes() == many.reset().tobytes()  # the generators go on
    assert one.reset([1, 2, 3]).tobytes() == many.reset([1, 2, 3]).tobytes()
    many.close()


@pytest.mark.parametrize("id", CASES)
def test_a_saved_vector_goes_on_exactly_in_mid_episode(id: str) -> None:
    first = vector(id, "process", range(5))
    first.reset()
    moves = actions(first.spec.action, 60, 5)
    for action in moves[:20]:
        first.step(action)
    saved = first.state_dict()
    expected = [first.step(action) for action in moves[20:]]
    first.close()
    # Another machine has another number of cores: the division is part of the state.
    second = vector(id, "process", range(50, 55), workers=3)
    second.load_state_dict(saved)
    assert fingerprint(second.state_dict()) == fingerprint(saved)
    found = [second.step(action) for action in moves[20:]]
    second.close()
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))


def test_process_wide_randomness_is_part_of_the_state() -> None:
    first, second = (ProcessVector(Global, [0, 1, 2], "global", workers=2) for _ in range(2))
    assert np.array_equal(first.reset(), second.reset())
    first.step(np.zeros(3, np.int64))
    second.load_state_dict(first.state_dict())
    assert same(first.step(np.zeros(3, np.int64)), second.step(np.zeros(3, np.int64)))
    for each in (first, second):
        each.close()


def test_what_cannot_be_captured_starts_anew() -> None:
    vector = ProcessVector(Opaque, [0, 1], "opaque")
    vector.reset()
    vector.step(np.zeros(2, np.int64))
    saved = vector.state_dict()
    vector.load_state_dict(saved)
    assert vector.snapshot_level == "E3"
    with pytest.raises(RuntimeError, match="reset"):
        vector.step(np.zeros(2, np.int64))
    assert vector.reset().tolist() == [[0, 0], [0, 0]]
    vector.close()


def test_returned_arrays_are_never_written_again() -> None:
    many = vector("rl_lab/Counter-v0", "process", [0, 1])
    first = many.reset()
    steps = [many.step(np.zeros(2, np.int64)) for _ in range(3)]
    copies = [step.next_obs.copy() for step in steps]
    for _ in range(9):
        many.step(np.zeros(2, np.int64))
    many.close()
    assert first.tolist() == [[0, 0], [0, 0]]
    assert all(np.array_equal(a.next_obs, b) for a, b in zip(steps, copies, strict=True))


def test_a_run_is_the_same_run_in_processes(tmp_path: Path) -> None:
    def rows(kind: str) -> bytes:
        outcome = tiny_run(
            tmp_path, "CartPole-v1:ppo_defaults", f"environment.vectorization={kind}"
        )
        assert outcome.summary["snapshot_level"] == "E0"
        return outcome.run.metrics_file.read_bytes()

    assert rows("process") == rows("sync")


def test_an_interrupted_run_in_processes_goes_on_exactly(tmp_path: Path, monkeypatch: Any) -> None:
    words = ("Pendulum-v1:ppo_gru_defaults", "environment.vectorization=process")
    words += ("training.total_timesteps=512", "evaluation.test_episodes=0")
    straight = tiny_run(tmp_path / "straight", *words)
    original, count = Orchestrator.execute, [0]

    def execute(self: Orchestrator, action: Any) -> None:
        original(self, action)
        count[0] += 1
        if count[0] == 5:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Orchestrator, "execute", execute)
    assert tiny_run(tmp_path / "again", *words).exit_code == 143
    resumed = resume("@last", root=tmp_path / "again")
    assert resumed.exit_code == 0 and resumed.summary["resume_exact"]
    assert run_hash(resumed.run) == run_hash(straight.run)


def test_opening_and_closing_leaves_nothing_behind() -> None:
    def held() -> tuple[int, list[Path]]:
        return len(list(Path("/proc/self/fd").iterdir())), sorted(Path("/dev/shm").iterdir())

    def cycle() -> list[int]:
        many = ProcessVector(CounterEnv, [0, 1], "counter", workers=2)
        many.reset()
        pids = [worker.process.pid for worker in many._workers]
        many.close()
        many.close()
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    cycle()
    before = held()
    assert [cycle() for _ in range(20)] == [[]] * 20
    assert held() == before


def test_a_forgotten_vector_ends_its_workers() -> None:
    many = ProcessVector(CounterEnv, [0], "counter")
    pid = many._workers[0].process.pid
    del many
    assert not Path(f"/proc/{pid}").exists()


def test_mistakes_are_told_before_and_instead_of_repairs() -> None:
    class Local(CounterEnv):
        pass

    with pytest.raises(UserError, match="vectorization=sync"):
        ProcessVector(Local, [0], "local")
    many = ProcessVector(partial(CounterEnv, lengths=(3,)), [0, 1], "counter")
    with pytest.raises(RuntimeError, match="reset"):
        many.step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="as many seeds"):
        many.reset([1, 2, 3])
    many.reset()
    saved = many.state_dict()
    with pytest.raises(UserError, match="2 envs cannot fill 1"):
        ProcessVector(CounterEnv, [0], "counter").load_state_dict(saved)
    with pytest.raises(UserError, match="cannot load its state"):
        saved["workers"][0]["vector"]["envs"] = saved["workers"][0]["vector"]["envs"] * 2
        many.load_state_dict(saved)
    assert many.faults == 0
    many.close()
    with pytest.raises(RuntimeError, match="closed"):
        many.reset()
    for wrong in ({"workers": 0}, {"step_timeout": 0}, {"restarts": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            EnvironmentConfig(id="x", **wrong)  # type: ignore[arg-type]
