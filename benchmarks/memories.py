"""What the memories cost: forward and backward over a sequence, against a plain loop of steps.

    python benchmarks/memories.py [--part forms|updates|scans|growth]
                                  [--steps 128] [--batch 32] [--width 256]

All forms of a memory have the same weights and compute the same numbers, which is checked.
`updates` are whole updates of PPO (CartPole, velocities hidden, as in the preset); `scans` is the
recurrence of Mamba and Mamba-2 alone, without the layers around it.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.api import configure
from rl_lab.benchmarking.measure import Tell, interleave
from rl_lab.benchmarking.report import RESULTS, Report, measured, save
from rl_lab.benchmarking.update import PHASE, filled
from rl_lab.cli.bench import as_text
from rl_lab.cli.printing import warn
from rl_lab.config import catalog
from rl_lab.config.resolve import resolve
from rl_lab.core import registry
from rl_lab.core.compiled import tracing
from rl_lab.core.errors import RunError
from rl_lab.core.tree import where_rows
from rl_lab.networks.memory.episodes import episode_steps, step_by_step
from rl_lab.networks.memory.ssm import SelectiveScan, chunked_scan, looped_scan
from rl_lab.run.build import make_algorithm, make_context

MEMORIES = [name for name in catalog.BUILT_INS["memory"] if name != "none"]
LOOPED = ("gru", "lstm", "mamba")  # these have a loop over time with its own backward pass
STEPWISE = ("gru", "lstm", "mamba", "mamba2")  # not transformers: no gradient flows through `step`
WORDS = ("compute.compile=off",)  # of the updates
RESETS = 0.02  # of all steps
HEAD, STATES, CHUNK = 64, {"mamba": 16, "mamba2": 64}, 32  # of the recurrences alone
SIZES = {"gru": "hidden_dim", "lstm": "hidden_dim"}  # other memories: dim


def memory_of(name: str, width: int) -> torch.nn.Module:
    """A memory of one layer; those with an inner width do not expand it."""
    torch.manual_seed(0)
    kind = registry.get("memory", name)
    options = {SIZES.get(name, "dim"): width}
    if name.startswith("mamba"):
        options |= {"expand": 1}
    if name.endswith("trxl"):
        options |= {"memory_length": 64}
    memory: torch.nn.Module = kind(kind.Config(type=name, **options), width)
    return memory


def sequence(memory: torch.nn.Module, x: Tensor, resets: Tensor) -> Tensor:
    """As a minibatch computes it."""
    outputs: Tensor = memory.sequence(x, memory.initial_state(x.shape[1]), resets)[0]  # type: ignore[operator]
    return outputs


def steps(memory: torch.nn.Module, x: Tensor, resets: Tensor) -> Tensor:
    """One step after another, by autograd."""
    fresh = state = memory.initial_state(x.shape[1])  # type: ignore[operator]
    outputs = []
    for each, begins in zip(x, resets, strict=True):
        output, state = memory.step(each, where_rows(begins, fresh, state))  # type: ignore[operator]
        outputs.append(output)
    return torch.stack(outputs)


def cells(memory: torch.nn.Module, x: Tensor, resets: Tensor) -> Tensor:
    """The loop that the compiler gets, by autograd: what a sequence would be without its own."""
    token = tracing.set(True)
    try:
        return sequence(memory, x, resets)
    finally:
        tracing.reset(token)


def milliseconds(form: Callable[[], Tensor]) -> float:
    """CPU time of a forward and a backward pass: neighbours on the machine count less."""
    began = time.process_time()
    form().square().mean().backward()
    return 1e3 * (time.process_time() - began)


def data(length: int, batch: int, width: int) -> tuple[Tensor, Tensor]:
    """Inputs, and where episodes begin."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(length, batch, width, generator=generator)
    return x, torch.rand(length, batch, generator=generator) < RESETS


def forms(length: int, batch: int, width: int, repeats: int, tell: Tell) -> Report:
    """Every memory's sequence against its steps, and against plain cells where it has a loop."""
    x, resets = data(length, batch, width)
    jobs: dict[str, Callable[[], float]] = {}
    for name in MEMORIES:
        memory = memory_of(name, width)
        own = (cells,) if name in LOOPED else ()
        made = {form.__name__: partial(form, memory, x, resets) for form in (sequence, *own, steps)}
        with torch.no_grad():
            expected = made["sequence"]()
            for job in made.values():
                if not torch.allclose(job(), expected, atol=1e-4):
                    raise RunError(f"{name}: its forms do not compute the same")
        jobs |= {f"{name} {form}": partial(milliseconds, job) for form, job in made.items()}
    samples = interleave(jobs, repeats, tell)
    return Report(
        benchmark="memories-forms",
        title=f"Forward and backward, {length} steps x {batch} sequences, width {width}",
        unit="milliseconds of CPU",
        ratio_means="of this one's time to the sequence's",
        rows=[
            measured(name, found, (found, samples[f"{name.split()[0]} sequence"]))
            for name, found in samples.items()
        ],
        settings={"length": length, "batch": batch, "width": width, "repeats": repeats},
        notes=[f"torch threads: {torch.get_num_threads()}"],
    )


def updates(repeats: int, tell: Tell) -> Report:
    """A whole update of PPO, with sequences and with a loop of steps in their place."""
    jobs: dict[str, Callable[[], float]] = {}
    with ExitStack() as open_ones:
        for name in STEPWISE:
            config = configure(f"CartPole-v1:ppo_{name}_masked", overrides=list(WORDS))
            resolved = resolve(config[0])
            context = make_context(resolved)
            open_ones.callback(context.train_environment.close)
            algorithm: Any = make_algorithm(resolved, context)
            batch, before = filled(algorithm, "update"), deepcopy(algorithm.get_state())
            reached = {}
            for form, switch in (("sequence", nullcontext), ("steps", looped)):
                job = partial(_update, algorithm, batch, before, switch)
                jobs[f"{name} {form}"] = job
                job()
                reached[form] = algorithm.learner.state.flat.clone()
            if not torch.allclose(*reached.values(), atol=1e-5):
                raise RunError(f"{name}: its forms do not learn the same")
        samples = interleave(jobs, repeats, tell)
    return Report(
        benchmark="memories-updates",
        title="An update of PPO on CartPole with hidden velocities",
        unit="milliseconds of CPU",
        ratio_means="of this one's time to the one with sequences",
        rows=[
            measured(name, found, (found, samples[f"{name.split()[0]} sequence"]))
            for name, found in samples.items()
        ],
        settings={"repeats": repeats},
        notes=[f"torch threads: {torch.get_num_threads()}"],
    )


def _update(algorithm: Any, batch: Any, before: Any, switch: Callable[[Any], Any]) -> float:
    algorithm.set_state(deepcopy(before))
    algorithm.order_rng.manual_seed(0)  # of the minibatches
    own = deepcopy(batch)
    with switch(algorithm.model):
        began = time.process_time()
        algorithm.update(own, phase=PHASE)
        return 1e3 * (time.process_time() - began)


@contextmanager
def looped(model: Any) -> Iterator[None]:
    """Every memory of a model takes its sequences step by step."""
    memories = [torso.memory for torso in model.torsos.values()]

    def scan(several: Any, inputs: Any, states: Any, resets: Tensor) -> Any:
        parts = zip(several, inputs, states, strict=True)
        return [step_by_step(memory, x, state, resets) for memory, x, state in parts]

    for memory in memories:
        memory.scan, memory.sequence = scan, partial(step_by_step, memory)
    try:
        yield
    finally:
        for memory in memories:
            del memory.scan, memory.sequence


def scans(length: int, batch: int, width: int, repeats: int, tell: Tell) -> Report:
    """The recurrences of Mamba and Mamba-2 alone: their own form against a loop under autograd."""
    heads = max(1, width // HEAD)
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    _, resets = data(length, batch, 1)
    since = episode_steps(resets, torch.full((batch,), length))
    dt, u = leaf(length, batch, width), leaf(length, batch, width)
    rate = leaf(width, STATES["mamba"])
    write, read = (leaf(length, batch, STATES["mamba"]) for _ in range(2))
    one = (dt.detach().sigmoid(), u, -rate.detach().exp(), write, read)
    one = tuple(each.requires_grad_() for each in one)
    start = torch.randn(batch, width, STATES["mamba"], generator=generator)
    keep = -leaf(length, batch, heads).detach().abs()
    two = (keep.requires_grad_(), leaf(length, batch, heads, width // heads))
    two += (leaf(length, batch, STATES["mamba2"]), leaf(length, batch, STATES["mamba2"]))
    begin = torch.randn(batch, heads, width // heads, STATES["mamba2"], generator=generator)
    made: dict[str, Callable[[], Tensor]] = {
        "mamba scan": lambda: SelectiveScan.apply(*one, start, resets)[0],
        "mamba loop": lambda: looped_scan(*one, start, resets)[0],
        "mamba2 scan": lambda: chunked_scan(*two, begin, since, CHUNK)[0],
        "mamba2 loop": lambda: looped_heads(*two, begin, resets),
    }
    for name in STATES:
        if not torch.allclose(made[f"{name} scan"](), made[f"{name} loop"](), atol=1e-3):
            raise RunError(f"{name}: its forms do not compute the same")
    jobs = {name: partial(milliseconds, job) for name, job in made.items()}
    samples = interleave(jobs, repeats, tell)
    return Report(
        benchmark="memories-scans",
        title=f"Recurrences alone, forward and backward, {length} steps x {batch}, width {width}",
        unit="milliseconds of CPU",
        ratio_means="of this one's time to the scan's",
        rows=[
            measured(name, found, (found, samples[f"{name.split()[0]} scan"]))
            for name, found in samples.items()
        ],
        settings={
            "length": length,
            "batch": batch,
            "width": width,
            "repeats": repeats,
            "states": STATES,
            "heads": heads,
            "chunk": CHUNK,
        },
        notes=[f"torch threads: {torch.get_num_threads()}"],
    )


def looped_heads(
    log_keep: Tensor, u: Tensor, write: Tensor, read: Tensor, hidden: Tensor, resets: Tensor
) -> Tensor:
    """The recurrence of Mamba-2, one step after another, by autograd; see `chunked_scan`."""
    outputs = []
    for t in range(len(u)):
        hidden = hidden.masked_fill(resets[t, :, None, None, None], 0.0)
        hidden = log_keep[t].exp()[..., None, None] * hidden
        hidden = hidden + u[t].unsqueeze(-1) * write[t][:, None, None]
        outputs.append((hidden @ read[t][:, None, :, None]).squeeze(-1))
    return torch.stack(outputs)


def growth(lengths: Sequence[int], batch: int, width: int, repeats: int, tell: Tell) -> Report:
    """The time of a step in longer and longer sequences; 1 or less: the cost is at most linear."""
    jobs: dict[str, Callable[[], float]] = {}
    for name in MEMORIES:
        memory = memory_of(name, width)
        for length in lengths:
            job = partial(sequence, memory, *data(length, batch, width))
            jobs[f"{name} {length}"] = partial(_per_step, job, length)
    samples = interleave(jobs, repeats, tell)
    return Report(
        benchmark="memories-growth",
        title=f"Forward and backward, {batch} sequences of {lengths[0]} to {lengths[-1]} steps",
        unit="milliseconds of CPU per step",
        ratio_means=f"to a step of {lengths[0]}",
        rows=[
            measured(name, found, (found, samples[f"{name.split()[0]} {lengths[0]}"]))
            for name, found in samples.items()
        ],
        settings={"lengths": list(lengths), "batch": batch, "width": width, "repeats": repeats},
        notes=[f"torch threads: {torch.get_num_threads()}"],
    )


def _per_step(form: Callable[[], Tensor], length: int) -> float:
    return milliseconds(form) / length


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("forms", "updates", "scans", "growth"), default="forms")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a folder; default: benchmarks/results")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    sizes = (asked.batch, asked.width, asked.repeats, warn)
    if asked.part == "forms":
        report = forms(asked.steps, *sizes)
    elif asked.part == "updates":
        report = updates(asked.repeats, warn)
    elif asked.part == "scans":
        report = scans(asked.steps, *sizes)
    else:
        report = growth([asked.steps // 2 * 2**power for power in range(5)], *sizes)
    print(as_text(report, {}), flush=True)
    folder = asked.output or (RESULTS if RESULTS.is_dir() else None)
    if folder is not None:
        files = save(report, folder / f"{report.benchmark}.json")
        warn(f"written: {', '.join(map(str, files))}")


if __name__ == "__main__":
    main()
