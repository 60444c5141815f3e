"""What the memories cost: forward and backward over a sequence, against a plain loop of steps.

    python benchmarks/memories.py [--part forms|growth] [--steps 128] [--batch 32] [--width 256]

All forms of a memory have the same weights and compute the same numbers, which is checked.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rl_lab.benchmarking.measure import Tell, interleave
from rl_lab.benchmarking.report import RESULTS, Report, measured, save
from rl_lab.cli.bench import as_text
from rl_lab.cli.printing import warn
from rl_lab.config import catalog
from rl_lab.core import registry
from rl_lab.core.compiled import tracing
from rl_lab.core.errors import RunError
from rl_lab.core.tree import where_rows

MEMORIES = [name for name in catalog.BUILT_INS["memory"] if name != "none"]
LOOPED = ("gru", "lstm", "mamba")  # these have a loop over time with its own backward pass
RESETS = 0.02  # of all steps
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
    parser.add_argument("--part", choices=("forms", "growth"), default="forms")
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
    else:
        report = growth([asked.steps // 2 * 2**power for power in range(5)], *sizes)
    print(as_text(report, {}), flush=True)
    folder = asked.output or (RESULTS if RESULTS.is_dir() else None)
    if folder is not None:
        files = save(report, folder / f"{report.benchmark}.json")
        warn(f"written: {', '.join(map(str, files))}")


if __name__ == "__main__":
    main()
