"""`rl-lab bench profile`: where the time of a run goes, stage by stage, in the real loop."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_lab.api import configure, runs_root
from rl_lab.benchmarking.measure import Tell, interleave, silent
from rl_lab.benchmarking.report import Report, measured
from rl_lab.config.resolve import resolve
from rl_lab.config.tree import to_tree
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig
from rl_lab.display.sinks import Sinks
from rl_lab.records.run_directory import RunDirectory, find_run
from rl_lab.run.build import build_run
from rl_lab.run.orchestrator import Orchestrator
from rl_lab.run.session import load_config

STAGES = ("env", "policy", "storage", "update", "evaluate", "log", "checkpoint", "loop")


class Stages:
    """Seconds of each stage, without those of the stages inside it."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._stack: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def inside(self, stage: str) -> Iterator[None]:
        """Count the time in here for this stage. An evaluation keeps what happens inside it."""
        if "evaluate" in self._stack:
            yield
            return
        self._turn()
        self._stack.append(stage)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def forget(self) -> None:
        """Start again from zero: what came before was warming up."""
        self._turn()
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


def bench_profile(config: RunConfig, *, steps: int, repeats: int, tell: Tell = silent) -> Report:
    """Microseconds per environment step of each stage, and its share of the whole."""
    config = resolve(replace(config, training=replace(config.training, total_timesteps=steps)))
    samples = interleave({"run": lambda: profiled(config)}, repeats, tell)["run"]
    micros = {stage: [1e6 * own[stage] / taken for own, taken in samples] for stage in STAGES}
    whole = [1e6 * sum(own.values()) / taken for own, taken in samples]
    rows = [measured(stage, own, (own, whole)) for stage, own in micros.items()]
    rows.append(measured("total", whole, (whole, whole)))
    return Report(
        benchmark="profile",
        title=f"Stages: {config.algorithm.name} on {config.environment.id}",
        unit="µs per environment step",
        ratio_means="of the total",
        rows=rows,
        settings={"config": to_tree(config), "steps": steps, "repeats": repeats},
        notes=[
            "the first cycle (warm-up, compilation) is not counted; storage is what collecting "
            "and the buffer do besides; loop is the orchestrator itself"
        ],
    )


def config_of(
    words: str, overrides: list[str], root: Path | None = None, *, trust: bool = False
) -> RunConfig:
    """The configuration of a run, or of a spec such as CartPole-v1:ppo."""
    try:
        directory, _ = find_run(words, runs_root(root))
    except UserError:
        if words.startswith("@") or Path(words).exists():
            raise
        return configure(words, overrides)[0]
    if overrides:
        raise UserError(f"{words} is a run: its configuration is taken as it is, not {overrides}")
    return load_config(directory, trust=trust)


def profiled(config: RunConfig) -> tuple[dict[str, float], int]:
    """Seconds of each stage in one run, after its first cycle, and the steps they were for."""
    stages = Stages()
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        run, _ = build_run(
            config, lambda: RunDirectory.create(Path(folder), "bench"), Sinks([], None)
        )
        with closing(run):
            after_cycle, warm = run.after_cycle, 0

            def after() -> None:
                nonlocal warm
                if not warm:
                    stages.forget()
                    warm = run.counters.env_steps
                after_cycle()

            run.after_cycle = after  # type: ignore[method-assign]
            with _timed(run, stages), stages.inside("loop"):
                run.run()
            taken = run.counters.env_steps - warm
    if not warm or taken <= 0:
        raise UserError(f"the first cycle takes all of --steps {config.training.total_timesteps}: "
                        "give more")  # fmt: skip
    return stages.seconds, taken


@contextmanager
def _timed(run: Orchestrator, stages: Stages) -> Iterator[None]:
    """Every stage of this run tells when it begins and ends."""
    hooks = {"env": (run.environment, "step"), "policy": (run.algorithm, "act")}
    parts: list[tuple[str, Any, str]] = [(stage, *each) for stage, each in hooks.items()]
    parts += [("storage", run.collector, "collect")]
    for buffer in run.buffers.values():
        parts += [("storage", buffer, name) for name in ("add", "sample", "done")]
    parts += [("evaluate", run, "measure"), ("log", run, "write_row"), ("checkpoint", run, "save")]
    undo: list[Callable[[], None]] = []
    run.hooks = {name: _within(stages, "update", call) for name, call in run.hooks.items()}
    for stage, owner, name in parts:
        undo.append(_replace(owner, name, stage, stages))
    try:
        yield
    finally:
        for each in reversed(undo):
            each()


def _replace(owner: object, name: str, stage: str, stages: Stages) -> Callable[[], None]:
    """Time a method of an object's class, and how to undo it.

    Of the class: an attribute on the object could be taken for a part of its state.
    """
    kind = type(owner)
    own = vars(kind).get(name)
    setattr(kind, name, _within(stages, stage, getattr(kind, name)))
    return lambda: setattr(kind, name, own) if own is not None else delattr(kind, name)


def _within(stages: Stages, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*arguments: object, **options: object) -> Any:
        with stages.inside(stage):
            return call(*arguments, **options)

    return timed
