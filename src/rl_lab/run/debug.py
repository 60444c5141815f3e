"""Looking closely: under a debugger, and with `--debug` weights, activations and a profile."""

import cProfile
import io
import os
import pstats
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import profiler as autograd_profiler

from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.learner import Learner, networks
from rl_lab.core.schema import RunConfig
from rl_lab.core.state import Stateful
from rl_lab.records.commit import write_atomically
from rl_lab.records.metrics import MetricLog
from rl_lab.run.activations import activation_statistics, watch_activations
from rl_lab.run.callback import Callback
from rl_lab.run.orchestrator import Orchestrator

PROFILE, WEIGHTS, TRACE = "profile.txt", "debug.jsonl", "trace.json"  # in the run's logs/
TRACED = 3  # updates in the trace, after the first one, which loads and warms up
PROFILE_ROWS = 25

# -- a debugger -----------------------------------------------------------------------------------


def debugger() -> str | None:
    """The name of the debugger that holds this process, if any."""
    trace = sys.gettrace()
    # Measuring which lines a test runs is tracing too, but no user waits at a prompt.
    if trace is not None and not _module(trace).startswith("coverage"):
        return _module(trace).partition(".")[0] or "a debugger"
    debugpy = sys.modules.get("debugpy")  # imported without being attached by some editors
    if debugpy is not None and debugpy.is_client_connected():
        return "debugpy"
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12 and later
    if monitoring is not None:
        tool: str | None = monitoring.get_tool(monitoring.DEBUGGER_ID)
        return tool
    return None


def for_debugger(config: RunConfig) -> RunConfig:
    """One environment in this process: a breakpoint stops everything, and shows one episode."""
    own = config.environment.vectorization
    backend: Any = own if own in ("native", "envpool") else "sync"  # those may be another task
    return fitted(
        replace(
            config,
            environment=replace(config.environment, num_envs=1, vectorization=backend),
            evaluation=replace(config.evaluation, num_envs=1),
        )
    )


def fitted(config: RunConfig) -> RunConfig:
    """With as few minibatches less as the algorithm needs for a rollout that has become small."""
    algorithm = config.algorithm
    if not (problems := algorithm.check(config)):
        return config
    for smaller in algorithm.with_fewer_minibatches():
        if not smaller.check(config):
            return replace(config, algorithm=smaller)
    raise UserError(f"one environment is too few here: {problems[0]}")


def _module(trace: object) -> str:
    return str(getattr(trace, "__module__", None) or type(trace).__module__)


# -- weights and gradients ------------------------------------------------------------------------


class WeightLog(Callback):
    """After every update a row of `logs/debug.jsonl`; a gradient that is not finite is named.

    Nothing here draws a random number or changes a weight: metrics.jsonl stays what it is.
    """

    def initialize(self, run: Orchestrator) -> None:
        """Open the file, and let optimizers keep their gradients."""
        self.log = MetricLog(run.folder / "logs" / WEIGHTS)
        run.resources.callback(self.log.close)
        for part in run.algorithm.parts().values():
            if isinstance(part, Learner):
                part.inspected = True
        self.activations, end = watch_activations(networks(run.algorithm.parts()))
        run.resources.callback(end)

    def after_update(self, run: Orchestrator, hook: str) -> None:
        """One row."""
        parts = run.algorithm.parts()
        gradients = named_gradients(parts)
        bad = [name for name, each in gradients.items() if not bool(torch.isfinite(each).all())]
        if bad:
            raise NonFiniteError(
                f"the gradient of {', '.join(bad)} is not finite, and was applied",
                {"parameters": bad, "applied": True},
            )
        row = weight_statistics(parts, gradients)
        modules = {
            f"{name}.{each}": module
            for name, network in networks(parts).items()
            for each, module in network.named_modules()
        }
        for name, output in self.activations.items():
            bounded = isinstance(modules[name], nn.Tanh)
            row |= activation_statistics(name, output, bounded=bounded)
        self.log.append(run.counters.env_steps, row)
        self.log.flush()
        run.alerts.look_closely(run.counters.env_steps, row)


@torch.no_grad()
def weight_statistics(
    parts: Mapping[str, Stateful], gradients: dict[str, Tensor]
) -> dict[str, float]:
    """Mean, deviation and largest weight of every parameter, and the norm of its gradient."""
    row: dict[str, float] = {}
    for name, weight in _parameters(parts):
        row |= {
            f"debug/{name}/mean": float(weight.mean()),
            f"debug/{name}/std": float(weight.std(correction=0)),
            f"debug/{name}/max": float(weight.abs().max()),
        }
        if name in gradients:
            row[f"debug/{name}/grad_norm"] = float(torch.linalg.vector_norm(gradients[name]))
    return row


def named_gradients(parts: Mapping[str, Stateful]) -> dict[str, Tensor]:
    """The last gradient of every parameter that has one, whoever computed it."""
    found = {name: w.grad for name, w in _parameters(parts) if w.grad is not None}
    for name, part in parts.items():
        if isinstance(part, Learner):
            found |= {f"{name}.{each}": grad for each, grad in part.named_gradients().items()}
    return found


def _parameters(parts: Mapping[str, Stateful]) -> Iterator[tuple[str, nn.Parameter]]:
    for part_name, network in networks(parts).items():
        for name, weight in network.named_parameters():
            if weight.numel():
                yield f"{part_name}.{name}", weight


# -- trace and profile ----------------------------------------------------------------------------


class TraceUpdates(Callback):
    """What torch does in a few updates and what is between them: `logs/trace.json`.

    Chrome (chrome://tracing) and Perfetto show it.
    """

    def initialize(self, run: Orchestrator) -> None:
        """Nothing is traced before the first update is over."""
        self.file = run.folder / "logs" / TRACE
        self.updates = 0
        self.trace: autograd_profiler.profile | None = None
        run.resources.callback(self.finish)

    def after_update(self, run: Orchestrator, hook: str) -> None:
        """Begin after the first one, end a few later."""
        self.updates += 1
        if self.updates == 1:
            # Not `torch.profiler`, which wraps this one and imports for seconds.
            self.trace = autograd_profiler.profile()
            with _silent():
                self.trace.__enter__()
        elif self.updates == 1 + TRACED:
            self.finish()

    def finish(self) -> None:
        """Write what there is."""
        trace, self.trace = self.trace, None
        if trace is None:
            return
        with _silent():
            trace.__exit__(None, None, None)
        with TemporaryDirectory() as folder:
            draft = Path(folder) / TRACE
            trace.export_chrome_trace(str(draft))
            write_atomically(self.file, draft.read_bytes())


@contextmanager
def _silent() -> Iterator[None]:
    """Without the lines that the profiler's C++ writes to stderr."""
    kept, (unread, nowhere) = os.dup(2), os.pipe()
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        for each in (kept, unread, nowhere):
            os.close(each)


@contextmanager
def profiling(file: Path) -> Iterator[None]:
    """Where the time goes, written to `file` however the block ends."""
    profile = cProfile.Profile()
    try:
        profile.enable()
    except ValueError:  # another profiler or a debugger is at work: theirs is the better one
        yield
        return
    try:
        yield
    finally:
        profile.disable()
        text = io.StringIO()
        statistics = pstats.Stats(profile, stream=text)
        statistics.strip_dirs().sort_stats("tottime").print_stats(PROFILE_ROWS)
        write_atomically(file, text.getvalue().encode())
