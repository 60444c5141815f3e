"""What `auto` means: every decision by its own rule, and nothing measured where nothing depends."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_lab.config import resolve as module
from rl_lab.config.resolve import Machine, other_runs, resolve, threads, vectorization
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec
from rl_lab.envs.probe import Probe
from rl_lab.records.run_directory import RunDirectory
from tiny_runs import tiny_config, tiny_run

EIGHT = Machine(cores=8, cuda=False, compiler=True)
LONG = "training.total_timesteps=10_000_000"
PENDULUM = (
    "Pendulum-v1:ppo_defaults",
    "environment.kwargs={g: 9.8}",
)  # with kwargs in no fixed table


def spec_of(*shape: int) -> EnvSpec:
    box = Box(shape, np.dtype(np.uint8), np.zeros(shape), np.full(shape, 255))
    return EnvSpec("x", box, Discrete(2), None, None)


def pendulum(*overrides: str) -> RunConfig:
    return tiny_config(*PENDULUM, "environment.num_envs=8", *overrides)


def on(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    monkeypatch.setattr(module, "this_machine", lambda: machine)
    monkeypatch.setattr(module, "usable_cores", lambda: machine.cores)


# -- vectorization --------------------------------------------------------------------------------


def chosen(seconds: float, cores: int = 8, *overrides: str, **found: Any) -> str:
    seen = Probe(spec_of(3), seconds, **found)
    config = pendulum(LONG, "evaluation.every_steps=0", *overrides)
    return vectorization(config, seen, cores)[0]


def test_processes_only_where_they_are_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    # 8 x 1 ms in turn; 1 + 0.2 + 8 x 0.1 = 2 ms in 8 workers.
    assert chosen(1e-3) == "process"
    assert chosen(0.1e-3) == "sync"  # 0.8 ms against 1.1 ms
    assert chosen(0.19e-3) == "sync"  # 1.52 ms against 1.19 ms: not 1.3 times
    assert chosen(0.2e-3) == "process"  # 1.6 ms against 1.2 ms
    assert chosen(1e-3, 1) == "sync"  # eight workers that take turns
    assert chosen(1e-3, 8, free_cores=1.1) == "sync"  # others need the cores
    assert chosen(1e-3, 8, "environment.workers=1") == "sync"
    assert chosen(1e-3, 8, obstacle="it is special") == "sync"
    assert chosen(1e-3, 8, "training.total_timesteps=1000") == "sync"  # nothing repays the start
    assert chosen(1e-3, 8, "evaluation.every_steps=100") == "sync"  # new workers each time


def test_the_reason_names_the_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    backend, reason = vectorization(pendulum(LONG), Probe(spec_of(3), 20e-3), 2)
    assert backend == "process"
    assert reason == "8 steps take 160 ms here, about 80 ms in 2 workers (2 cores free)"


def test_only_training_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def measure(environment: Any) -> Probe:
        tried.append(environment.id)
        return Probe(spec_of(3), 1.0)

    on(monkeypatch, EIGHT)
    monkeypatch.setattr(module.probe, "measure", measure)
    said: list[str] = []
    assert resolve(pendulum(LONG)).environment.vectorization == "sync" and not tried
    found = resolve(pendulum(LONG), measure=True, tell=said.append)
    assert found.environment.vectorization == "process" and tried == ["Pendulum-v1"]
    assert len(said) == 1 and said[0].startswith("environment.vectorization=process: 8 steps take")


@pytest.mark.parametrize(
    ("words", "cores"),
    [
        ([*PENDULUM, "environment.vectorization=sync"], 8),
        ([*PENDULUM, "environment.num_envs=1"], 8),
        (["CartPole-v1:ppo_defaults"], 8),  # its family is fixed by a table
        (PENDULUM, 1),
    ],
)
def test_nothing_is_made_where_nothing_depends_on_it(
    words: Sequence[str], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(environment: Any) -> Probe:
        raise AssertionError("an environment was made")

    monkeypatch.setattr(module.probe, "measure", forbidden)
    monkeypatch.setattr(module.probe, "look", forbidden)
    on(monkeypatch, replace(EIGHT, cores=cores))
    resolve(tiny_config(*words, "network.encoder.type=mlp"), measure=True)


def test_a_run_says_and_records_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, replace(EIGHT, cores=2))
    run = tiny_run(tmp_path, *PENDULUM).run
    assert "environment.vectorization=sync: 4 steps take" in run.log_file.read_text()
    assert "vectorization: sync" in run.config_file.read_text()


def test_both_choices_are_the_same_run(tmp_path: Path) -> None:
    words = ("Pendulum-v1:ppo_defaults", "training.total_timesteps=256", "evaluation.every_steps=0")
    sync, process = (
        tiny_run(tmp_path, *words, f"environment.vectorization={backend}").run
        for backend in ("sync", "process")
    )
    assert sync.metrics_file.read_bytes() == process.metrics_file.read_bytes()


# -- threads --------------------------------------------------------------------------------------

WIDE = ["network.encoder.hidden_dims=[256,256]", "algorithm.minibatches=1"]


def count(*overrides: str, spec: EnvSpec | None = None, **machine: Any) -> int:
    config = pendulum("environment.vectorization=sync", "algorithm.rollout_steps=32", *overrides)
    return threads(config, spec, replace(EIGHT, **machine))[0]


def test_more_threads_only_for_wide_layers_with_large_batches() -> None:
    assert count() == 1
    assert count(*WIDE) == 4  # 8 x 32 rows
    assert count(WIDE[0], "algorithm.minibatches=2") == 1
    assert count(WIDE[1], "network.encoder.hidden_dims=[255]") == 1
    assert count(WIDE[1], "network.actor.hidden_dims=[300]") == 4


def test_images_are_worth_threads() -> None:
    assert count(spec=spec_of(3, 64, 64)) == 4
    assert count(spec=spec_of(64)) == 1
    both = Dict({"camera": spec_of(3, 64, 64).observation, "speed": Discrete(3)})  # type: ignore[dict-item]
    assert count(spec=replace(spec_of(3), observation=both)) == 4
    config = tiny_config("Pendulum-v1:ppo_defaults")
    nature = replace(config.network, encoder=_encoder("nature"))
    assert threads(replace(config, network=nature), None, EIGHT)[0] == 4


def _encoder(name: str) -> Any:
    from rl_lab.networks.cnn import NatureConfig

    return NatureConfig(type=name)


def test_cores_are_shared() -> None:
    assert count(*WIDE, cores=2) == 2
    assert count(*WIDE, cores=1) == 1
    assert count(*WIDE, thread_limit=3) == 3
    process = "environment.vectorization=process"
    assert count(*WIDE, process, cores=4) == 2  # the workers have the other half
    assert count(*WIDE, process, "environment.workers=3", cores=4) == 1
    assert count(*WIDE, process, "environment.workers=9", cores=4) == 1


def test_omp_num_threads_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, limit in {"3": 3, "3,2": 3, "": None, "many": None, "0": None}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert module.this_machine().thread_limit == limit


def test_other_runs_are_counted_while_they_live(tmp_path: Path) -> None:
    if not Path("/proc/locks").exists():
        pytest.skip("this system does not tell who holds a lock")
    directory = RunDirectory.create(tmp_path, "other")
    with directory.lock():
        assert directory.lock_file not in other_runs()  # our own
    script = (
        "import sys; from pathlib import Path\n"
        "from rl_lab.records.run_directory import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).lock():\n"
        "    print('locked', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(directory.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        assert directory.lock_file in other_runs()
        other.kill()  # not even given the time to clean up
        other.wait()
        assert directory.lock_file not in other_runs()


def test_runs_that_live_take_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    for others, cores in {0: 8, 1: 4, 2: 2, 20: 1}.items():
        names = {Path(str(each)) for each in range(others)}
        monkeypatch.setattr(module, "other_runs", lambda names=names: names)
        assert module.this_machine().cores == cores


def test_where_nobody_tells_about_locks_there_are_no_others(tmp_path: Path) -> None:
    assert other_runs(tmp_path) == set()


# -- device and compilation -----------------------------------------------------------------------


def test_a_device_is_chosen_or_refused() -> None:
    assert [module.device("auto", cuda) for cuda in (True, False)] == ["cuda", "cpu"]
    assert module.device("cuda:1", True) == "cuda:1" and module.device("cpu", True) == "cpu"
    with pytest.raises(UserError, match="no usable GPU"):
        module.device("cuda:1", False)


def test_compiling_must_repay() -> None:
    said: list[str] = []

    def mode(*overrides: str, compiler: bool = True, device: str = "cpu") -> str:
        return module.compile_mode(pendulum(*overrides), None, device, compiler, said.append)

    # 10 M steps / 128 rows x 2 epochs x 4 minibatches = 625,000 gradient steps of 1 ms
    assert mode(LONG) == "on" and mode() == "off" and not said
    assert mode(LONG, "network.memory.type=gru") == "off" and mode(LONG, device="cuda") == "off"
    # 480,000 steps repay the 30 s of one function; rollouts of a `torch` vector are a second one.
    steps, torch_vector = "training.total_timesteps", "environment.vectorization=torch"
    assert mode(f"{steps}=470_000") == "off" and mode(f"{steps}=490_000") == "on"
    assert mode(f"{steps}=950_000", torch_vector) == "off"
    assert mode(f"{steps}=970_000", torch_vector) == "on"
    assert mode(compiler=False) == "off" and not said  # it would not have been compiled anyway
    assert mode(LONG, compiler=False) == "off"
    assert said == [
        "updates would be compiled, but no C++ compiler was found (install g++): running eagerly"
    ]
    assert mode("compute.compile=on") == "on" and mode(LONG, "compute.compile=off") == "off"
    with pytest.raises(UserError, match="no C\\+\\+ compiler"):
        mode("compute.compile=on", compiler=False)


def test_an_algorithm_that_cannot_tell_is_not_compiled() -> None:
    config = tiny_config("CartPole-v1:random", LONG)
    assert module.compile_mode(config, None, "cpu", True, print) == "off"


def test_an_evaluation_of_vectorised_classic_control_waits_for_no_second_episodes() -> None:
    """Twenty episodes of 500 steps in eight environments are 1,500 vector steps, in twenty 500."""
    auto = ("evaluation.num_envs=auto", "evaluation.episodes=20")

    def environments(backend: str, *words: str) -> object:
        config = tiny_config(*PENDULUM[:1], f"environment.vectorization={backend}", *auto, *words)
        return resolve(config).evaluation.num_envs

    assert environments("torch", "evaluation.test_episodes=5") == 20
    assert environments("torch", "evaluation.test_episodes=30") == 30
    assert environments("sync") == 8
    assert environments("torch", "evaluation.num_envs=3") == 3
