"""What a run costs besides its algorithm: the loop around it, its start, its checkpoints.

    python benchmarks/overhead.py [--part loop|default|shares|start|checkpoint] [--repeats 7]

loop        the real run (guards, clocks, 500 rows, terminal, TensorBoard) against a bare loop of
            the same calls: collect, buffer, update. No evaluation, no checkpoint.
default     the whole default run (evaluation, rows, checkpoints, terminal, TensorBoard), eager and
            compiled, against a bare loop of the same calls.
shares      what the parts of such a default run take beside its calls, in CPU time: for a machine
            that is busy with something else.
start       from starting the interpreter of `rl-lab train CartPole-v1:ppo` to its first step, and
            to the end of its first rollout.
checkpoint  the seconds of one save, as a share of the minute that lies between two.
"""

import argparse
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from rl_lab.api import configure
from rl_lab.benchmarking.collect import PHASE
from rl_lab.benchmarking.measure import Tell, interleave
from rl_lab.benchmarking.report import RESULTS, Report, measured, save
from rl_lab.cli.bench import as_text
from rl_lab.cli.printing import warn
from rl_lab.config.resolve import resolve
from rl_lab.config.tree import to_tree
from rl_lab.core.errors import RunError
from rl_lab.core.schema import RunConfig
from rl_lab.display.sinks import Sinks, TensorBoardSink
from rl_lab.display.terminal import TerminalView
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.build import build_run, make_algorithm, make_context
from rl_lab.run.efficiency import count_parameters
from rl_lab.run.orchestrator import Orchestrator

SPEC = "CartPole-v1:ppo"
QUIET = ["evaluation.every_steps=0", "checkpoint.every_steps=0", "compute.compile=off"]
WARM_UP = 3  # cycles that are not counted
MINUTE = 60.0
MILLION = "network.encoder.hidden_dims=[704, 704]"  # actor and critic: 1.0 million parameters


def configured(*words: str) -> RunConfig:
    return resolve(configure(SPEC, [*QUIET, *words])[0])


# ------------------------------------------------------------------------------- the loop


def loop(repeats: int, steps: int, tell: Tell) -> Report:
    config = configured(f"training.total_timesteps={steps}")
    jobs: dict[str, Callable[[], float]] = {
        "bare loop": lambda: bare(config),
        "run": lambda: real(config),
    }
    samples = interleave(jobs, repeats, tell)
    base = samples["bare loop"]
    return Report(
        benchmark="overhead-loop",
        title=f"{SPEC}, {steps:,} steps: a run, and its calls alone",
        unit="µs per environment step",
        ratio_means="to the bare loop",
        rows=[measured(name, own, (own, base)) for name, own in samples.items()],
        settings={"config": to_tree(config), "steps": steps, "repeats": repeats},
        notes=[f"the first {WARM_UP} cycles are not counted; the last save neither"],
    )


def default(repeats: int, steps: int, tell: Tell) -> Report:
    """A run as it is when nothing is switched off; a compiled one is compiled before it counts."""
    rows = []
    for mode in ("off", "on"):
        words = [f"training.total_timesteps={steps}", f"compute.compile={mode}"]
        quiet, whole = (resolve(configure(SPEC, [*more, *words])[0]) for more in (QUIET[:2], []))
        jobs: dict[str, Callable[[], float]] = {
            f"bare loop, compile={mode}": lambda quiet=quiet: bare(quiet),
            f"default run, compile={mode}": lambda whole=whole: real(whole),
        }
        for job in jobs.values():
            job()
        samples = interleave(jobs, repeats, tell)
        base = next(iter(samples.values()))
        rows += [measured(name, own, (own, base)) for name, own in samples.items()]
    return Report(
        benchmark="overhead-default",
        title=f"{SPEC}, {steps:,} steps: a default run, and its calls alone",
        unit="µs per environment step",
        ratio_means="to the bare loop",
        rows=rows,
        settings={"steps": steps, "repeats": repeats},
        notes=[f"the first {WARM_UP} cycles, the last save and the final test are not counted"],
    )


def shares(repeats: int, steps: int, tell: Tell) -> Report:
    """Where the CPU time of a default run goes; a share is of the calls of the same run."""
    rows = []
    for mode in ("off", "on"):
        words = [f"training.total_timesteps={steps}", f"compute.compile={mode}"]
        config = resolve(configure(SPEC, words)[0])
        found = []
        for number in range(repeats):
            tell(f"[{number + 1}/{repeats}] compile={mode}")
            found.append(spent(config))
        calls = [each[CALLS] for each in found]
        for name in found[0]:
            own = [each[name] for each in found]
            rows.append(measured(f"{name}, compile={mode}", own, (own, calls)))
    return Report(
        benchmark="overhead-shares",
        title=f"{SPEC}, {steps:,} steps: the parts of a default run, in CPU time",
        unit="µs per environment step",
        ratio_means=f"to {CALLS}",
        rows=rows,
        settings={"steps": steps, "repeats": repeats},
        notes=[f"the first {WARM_UP} cycles and the final test are not counted"],
    )


WHOLE, CALLS = "the whole run", "collect, buffer and update"


def spent(config: RunConfig) -> dict[str, float]:
    """CPU microseconds per step of a whole run and of its parts, after the warm-up."""
    with default_run(config) as run:
        seconds = dict.fromkeys(
            (WHOLE, CALLS, "evaluations", "rows of metrics", "checkpoints"), 0.0
        )
        cycles, began = 0, (0.0, 0)

        def timed(call: Callable[..., Any], part: str) -> Callable[..., Any]:
            def counted(*arguments: Any, **more: Any) -> Any:
                started = time.process_time()
                try:
                    return call(*arguments, **more)
                finally:
                    seconds[part] += time.process_time() - started

            return counted

        after_cycle = run.after_cycle

        def after() -> None:
            nonlocal cycles, began
            after_cycle()
            cycles += 1
            if cycles == WARM_UP:
                seconds.update(dict.fromkeys(seconds, 0.0))
                began = time.process_time(), run.counters.env_steps

        (buffer,) = run.buffers.values()
        for owner, name, part in (
            (run.algorithm, "collect_step", CALLS),
            (buffer, "add", CALLS),
            (run, "measure", "evaluations"),
            (run, "write_row", "rows of metrics"),
            (run, "save", "checkpoints"),
        ):
            setattr(owner, name, timed(getattr(owner, name), part))
        run.hooks["update"] = timed(run.hooks["update"], CALLS)
        run.after_cycle = after  # type: ignore[method-assign]
        run.run()
        seconds[WHOLE] = time.process_time() - began[0]
        return {
            name: 1e6 * each / (run.counters.env_steps - began[1]) for name, each in seconds.items()
        }


@contextmanager
def default_run(config: RunConfig) -> Iterator[Orchestrator]:
    """A run with its default displays, in a folder that is removed."""
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        terminal = TerminalView(
            config.training.total_timesteps, title="bench", console=Console(file=io.StringIO())
        )
        run, _ = build_run(
            config,
            lambda: RunDirectory.create(Path(folder), "bench"),
            Sinks([terminal, TensorBoardSink(Path(folder) / "tensorboard")], None),
        )
        with closing(run):
            yield run


def real(config: RunConfig) -> float:
    """Microseconds per step of a run with its default displays."""
    marks: list[tuple[float, int]] = []
    with default_run(config) as run:
        after_cycle = run.after_cycle

        def after() -> None:
            after_cycle()
            marks.append((time.perf_counter(), run.counters.env_steps))

        run.after_cycle = after  # type: ignore[method-assign]
        run.run()
    return steady(marks)


def bare(config: RunConfig) -> float:
    """Microseconds per step of the same calls without anything around them."""
    context = make_context(config)
    algorithm = make_algorithm(config, context)
    (buffer,) = context.buffers.values()
    marks: list[tuple[float, int]] = []
    steps = 0
    with closing(context.train_environment):
        while steps < config.training.total_timesteps:
            left = config.training.total_timesteps - steps
            phase = PHASE | {"step": steps, "steps_left": left}
            result = algorithm.collect_step(steps, phase=phase)
            steps += result.steps
            assert result.trajectory is not None
            buffer.add(result.trajectory)
            algorithm.update(buffer.sample(), phase=phase | {"env_steps": steps})
            buffer.done()
            marks.append((time.perf_counter(), steps))
    return steady(marks)


def steady(marks: list[tuple[float, int]]) -> float:
    """Microseconds per step between the end of the warm-up and the end."""
    (start, before), (end, after) = marks[min(WARM_UP, len(marks) - 1) - 1], marks[-1]
    return 1e6 * (end - start) / (after - before)


# ------------------------------------------------------------------------------ the start

FIRST_ROLLOUT = """
import os, sys, time
from rl_lab.cli.main import main
from rl_lab.run.orchestrator import Orchestrator

execute = Orchestrator.execute

def first(self, action):
    began = time.monotonic()
    execute(self, action)
    sys.stderr.write(f"{action} {began} {time.monotonic()}\\n")
    sys.stderr.flush()
    os._exit(0)

Orchestrator.execute = first
main(sys.argv[1:])
"""
BEGIN, END = "rl-lab train, to its first step", "rl-lab train, to its first rollout"
TORCH, PYTHON = "import torch", "interpreter"


def start(repeats: int, tell: Tell) -> Report:
    jobs: dict[str, Callable[[], tuple[float, ...]]] = {
        BEGIN: first_rollout,
        TORCH: lambda: lasting("import torch"),
        PYTHON: lambda: lasting("pass"),
    }
    for job in jobs.values():
        job()  # files come from the cache of the system from here on
    samples = interleave(jobs, repeats, tell)
    seconds = {name: [each[0] for each in own] for name, own in samples.items()}
    seconds = {BEGIN: seconds[BEGIN], END: [each[1] for each in samples[BEGIN]], **seconds}
    return Report(
        benchmark="overhead-start",
        title="From the command to the first environment step",
        unit="seconds",
        ratio_means="to importing torch",
        rows=[measured(name, own, (own, seconds[TORCH])) for name, own in seconds.items()],
        settings={"spec": SPEC, "repeats": repeats},
        notes=["warm: every file was read before; a rollout may compile something when it begins"],
    )


def first_rollout() -> tuple[float, float]:
    """Seconds until the first rollout begins, and until it is there; the run ends then."""
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        words = ["train", SPEC, "--runs-dir", folder, "--quiet"]
        started = time.monotonic()  # the same clock in every process
        done = subprocess.run(
            [sys.executable, "-c", FIRST_ROLLOUT, *words],
            capture_output=True,
            text=True,
            check=False,
        )
    found = [line.split() for line in done.stderr.splitlines() if line.startswith("collect ")]
    if not found:
        raise RunError(f"nothing was collected: {done.stderr}")
    _, began, ended = found[0]
    return float(began) - started, float(ended) - started


def lasting(code: str) -> tuple[float]:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.monotonic() - started,)


# ------------------------------------------------------------------------ the checkpoints


def checkpoint(repeats: int, tell: Tell) -> Report:
    with ExitStack() as open_ones:
        folder = Path(open_ones.enter_context(tempfile.TemporaryDirectory(prefix="rl-lab-bench-")))
        runs: dict[str, Orchestrator] = {}
        for words in ([], [MILLION]):
            run, _ = build_run(
                configured("training.total_timesteps=1_000_000_000", *words),
                lambda: RunDirectory.create(folder, "bench"),
                Sinks([], None),
            )
            open_ones.enter_context(closing(run))
            total = count_parameters([*run.algorithm.parts().values()])["total"]
            runs[f"{SPEC}, {total:,} parameters"] = run
        jobs = {name: (lambda run=run: saving(run)) for name, run in runs.items()}
        for job in jobs.values():
            job()
        samples = interleave(jobs, repeats, tell)
    return Report(
        benchmark="overhead-checkpoint",
        title="One checkpoint, when one is saved every minute",
        unit="seconds of one save",
        ratio_means="of the minute between two saves",
        rows=[measured(name, own, (own, [MINUTE] * len(own))) for name, own in samples.items()],
        settings={"repeats": repeats},
        notes=["with fsync, to the folder of temporary files; old checkpoints are removed in it"],
    )


def saving(run: Orchestrator) -> float:
    """Seconds of one save, after a cycle: what is saved has changed."""
    for _ in range(2):
        action = run.scheduler.next_action()
        assert action is not None
        run.execute(action)
    started = time.perf_counter()
    if not run.save():
        raise RunError("a checkpoint could not be written")
    return time.perf_counter() - started


PARTS: dict[str, Callable[[argparse.Namespace], Report]] = {
    "loop": lambda options: loop(options.repeats, options.steps, warn),
    "default": lambda options: default(options.repeats, options.steps, warn),
    "shares": lambda options: shares(options.repeats, options.steps, warn),
    "start": lambda options: start(options.repeats, warn),
    "checkpoint": lambda options: checkpoint(options.repeats, warn),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all of them")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=50_000, help="of each training of `loop`")
    parser.add_argument("--output", type=Path, help="a folder; default: benchmarks/results")
    options = parser.parse_args()
    folder = options.output or (RESULTS if RESULTS.is_dir() else None)
    for part in options.part or PARTS:
        report = PARTS[part](options)
        print(as_text(report, {}), end="\n\n", flush=True)
        if folder is not None:
            warn(
                f"written: {', '.join(map(str, save(report, folder / f'{report.benchmark}.json')))}"
            )


if __name__ == "__main__":
    main()
