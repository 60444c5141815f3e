"""A guard that times nothing: Python calls and torch operations per step must not grow.

Speed on a noisy machine cannot be asserted; what causes it can be counted. A budget is what was
counted when it was set, plus a tenth. Lower it when the count falls; raise it only on purpose.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rl_lab
from extras import installed_case
from rl_lab.core.batch import LOG_PROB, REWARD

PHASE = {"name": "train", "step": 0}
MATCHED = [
    "network.encoder.hidden_dims=[64, 64]",
    "algorithm.rollout_steps=64",
    "algorithm.epochs=2",
    "environment.num_envs=8",
    "training.total_timesteps=4096",
    "environment.max_episode_steps=200",
]
MINIBATCHES = 8  # two epochs of four

# Python calls (C functions included) of one vector step, and torch operations.
COLLECT = {
    "CartPole-v1": (109, 3),
    "Pendulum-v1": (99, 3),
    "LunarLander-v3": (404, 3),  # eight Box2D environments in a loop
}
# Python calls and torch operations of one gradient step, the whole update counted.
UPDATE = {"CartPole-v1": (470, 226), "Pendulum-v1": (477, 249)}
REPLAY = [
    "algorithm.learning_starts=0",
    "algorithm.train_every=8",
    "algorithm.batch_size=64",
    "network.actor.hidden_dims=[32, 32]",
    "network.critic.hidden_dims=[32, 32]",
    "environment.num_envs=1",
]
# Python calls and torch operations of one gradient step of the replay algorithms.
REPLAY_UPDATE = {"sac": (1139, 455)}
# Functions of ours that a collect call and an update cross, their files, and the deepest nesting.
CROSSED = {"ppo": (80, 18, 12), "sac": (100, 20, 12)}
# Python calls of the orchestrator around one collect and one update.
LOOP = 236


def python_calls(function: Callable[[], object]) -> int:
    """How many functions it calls, whether they are written in Python or in C."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


SOURCE = str(Path(rl_lab.__file__).parent)


def crossed(function: Callable[[], object]) -> tuple[set[tuple[str, str]], int]:
    """(file, name) of every function of ours that it calls, and how deep they are nested.

    Comprehensions do not count: newer versions of Python do not make functions of them.
    """
    found: set[tuple[str, str]] = set()
    depth = deepest = 0

    def note(frame, event, argument):
        nonlocal depth, deepest
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(SOURCE):
            return
        if code.co_name.endswith(("comp>", "genexpr>")):
            return
        if code.co_filename.endswith("core/flops.py"):  # of one sampled decision, not of each
            return
        depth += 1 if event == "call" else -1
        deepest = max(deepest, depth)
        found.add((code.co_filename, code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found, deepest


def torch_operations(function: Callable[[], object]) -> int:
    """How many kernels torch is asked for."""

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            Counter.count += 1
            return operation(*args, **(kwargs or {}))

    with Counter():
        function()
    return Counter.count


def collecting(run) -> Callable[[], object]:
    return lambda: run.algorithm.collect_step(0, phase=PHASE)


@pytest.mark.parametrize("env", map(installed_case, COLLECT))
def test_a_vector_step(tiny, env):
    run = tiny(f"{env}:ppo_defaults", *MATCHED)
    collect = collecting(run)
    collect()  # whatever is made once
    calls, operations = python_calls(collect) / 64, torch_operations(collect) / 64
    assert calls <= COLLECT[env][0]
    assert operations <= COLLECT[env][1]


def test_more_environments_are_no_more_python(tiny):
    counts = []
    for num_envs in (8, 128):
        run = tiny("CartPole-v1:ppo_defaults", *MATCHED, f"environment.num_envs={num_envs}")
        collecting(run)()
        # Episodes that end cost a little each; here none does.
        run.environment.max_steps = 10**9
        counts.append(python_calls(collecting(run)) / 64)
    assert counts[1] < 1.5 * counts[0]


@pytest.mark.parametrize("env", UPDATE)
def test_a_gradient_step(tiny, env):
    run = tiny(f"{env}:ppo_defaults", *MATCHED)
    batch = collecting(run)().trajectory
    assert LOG_PROB in batch

    def update():
        run.algorithm.update(batch, phase=PHASE)

    update()
    calls = python_calls(update) / MINIBATCHES
    operations = torch_operations(update) / MINIBATCHES
    assert calls <= UPDATE[env][0]
    assert operations <= UPDATE[env][1]


def replay_run(tiny, name: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """A call that collects 8 steps, and one that takes 8 gradient steps."""
    run = tiny(f"Pendulum-v1:{name}_defaults", *REPLAY)
    algorithm, buffer = run.algorithm, run.buffers["replay"]
    phase = {"name": "train", "type": "online", "step": 0, "buffer": None}

    def collect():
        return algorithm.collect_step(phase["step"], phase=phase)

    for _ in range(9):
        buffer.add(collect().trajectory)
    phase["step"] = 8
    batch = algorithm.sample(buffer, hook="update", phase=phase)
    assert len(batch[REWARD]) == 8
    return collect, lambda: algorithm.update(batch, phase=phase)


@pytest.mark.parametrize("name", REPLAY_UPDATE)
def test_a_gradient_step_from_replay(tiny, name):
    _, update = replay_run(tiny, name)
    update()  # whatever is made once
    assert python_calls(update) / 8 <= REPLAY_UPDATE[name][0]
    assert torch_operations(update) / 8 <= REPLAY_UPDATE[name][1]


def rollout_run(tiny) -> tuple[Callable[[], object], Callable[[], object]]:
    """A call that collects a rollout of PPO, and one that learns from it."""
    run = tiny("CartPole-v1:ppo_defaults", *MATCHED)
    collect = collecting(run)
    batch = collect().trajectory
    return collect, lambda: run.algorithm.update(batch, phase=PHASE)


@pytest.mark.parametrize("name", CROSSED)
def test_how_much_a_reader_has_to_follow(tiny, name):
    collect, update = rollout_run(tiny) if name == "ppo" else replay_run(tiny, name)
    collect()
    update()
    found = [crossed(collect), crossed(update)]
    functions = found[0][0] | found[1][0]
    files = {file for file, _ in functions}
    assert len(functions) <= CROSSED[name][0]
    assert len(files) <= CROSSED[name][1]
    assert max(found[0][1], found[1][1]) <= CROSSED[name][2]


def test_the_loop_around_it(tiny):
    run = tiny("CartPole-v1:ppo_defaults", *MATCHED)
    for clock in run.clocks.values():
        clock.period = 10**9
    collected = collecting(run)()
    learned = run.algorithm.update(collected.trajectory, phase=PHASE)
    run.algorithm.collect_step = lambda *words, **options: collected
    run.hooks["update"] = lambda *words, **options: learned

    def cycle():
        for _ in range(2):
            run.execute(run.scheduler.next_action())
        run.after_cycle()

    cycle()
    assert python_calls(cycle) <= LOOP


def test_nothing_waits_for_a_number(tiny):
    """No `.item()` and no comparison on the host between two minibatches."""
    run = tiny("CartPole-v1:ppo_defaults", *MATCHED)
    batch = collecting(run)().trajectory
    rows, _ = run.algorithm._credit(batch, run.algorithm.config)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            seen.append(str(operation))
            return operation(*args, **(kwargs or {}))

    with Watch():
        run.algorithm._learn(rows, run.algorithm.config)
    assert not [name for name in seen if "_local_scalar_dense" in name]
    assert torch.is_grad_enabled()
