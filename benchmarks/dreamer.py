"""One gradient step of Dreamer v3: here, eager and compiled, and in sheeprl, at the same sizes.

    python benchmarks/dreamer.py [--peer-python PYTHON] [--steps 150] [--repeats 3]

A step is one of the world model, the actor and the critic: CartPole, 8 sequences of 16 frames,
memory 128, 8 × 8 latents, two layers of 64, dreams of 15 steps, one thread. PYTHON is one that has
sheeprl (it wants a virtual environment of its own); without it, there are only our own rows. Each
sample is a process: the median of its steps, the first fifth left out.
"""

import argparse
import json
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median

import torch

from rl_lab.api import configure
from rl_lab.benchmarking.measure import interleave
from rl_lab.benchmarking.report import RESULTS, Report, measured, save
from rl_lab.cli.bench import as_text
from rl_lab.cli.printing import warn
from rl_lab.config.resolve import resolve
from rl_lab.core.errors import RunError
from rl_lab.run.build import make_algorithm, make_context

SPEC = "CartPole-v1:dreamer_v3"
PEER = Path(__file__).with_name("dreamer_peer.py")


def own_steps(steps: int, compile: str) -> list[float]:
    """The seconds of gradient steps on what 400 random steps have brought."""
    words = [f"compute.compile={compile}", "compute.threads=1"]
    config = resolve(configure(SPEC, words)[0])
    torch.set_num_threads(1)
    context = make_context(config)
    with closing(context.train_environment):
        algorithm = make_algorithm(config, context)
        buffer = context.buffers["replay"]
        phase = {"type": "offline", "step": 0, "buffer": None, "phase_steps": 0}
        for _ in range(100 // config.algorithm.train_every):
            buffer.add(algorithm.collect_step(0, phase=phase).trajectory)
        seconds = []
        for _ in range(steps):
            began = time.perf_counter()
            for hook in ("update_world_model", "update_controller"):
                batch = algorithm.sample(buffer, hook=hook, phase=phase)
                getattr(algorithm, hook)(batch, phase=phase)
            seconds.append(time.perf_counter() - began)
    return seconds


def in_a_process(command: list[str]) -> float:
    """Milliseconds of a step, by the last line that the program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunError(f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1]}")
    seconds = json.loads(done.stdout.splitlines()[-1])
    return 1000 * median(seconds[len(seconds) // 5 :])


def compare(peer: str | None, steps: int, repeats: int) -> Report:
    """In turns, a process for each."""
    jobs = {}
    for mode, name in (("on", "compiled"), ("off", "eager")):
        own = [sys.executable, __file__, "--worker", mode, "--steps", str(steps)]
        jobs[f"rl-lab, {name}"] = partial(in_a_process, own)
        if peer is not None:
            other = [peer, str(PEER), str(steps), mode]
            jobs[f"sheeprl, {name}"] = partial(in_a_process, other)
    samples = interleave(jobs, repeats, warn)
    first = next(iter(samples.values()))
    return Report(
        benchmark="dreamer",
        title="One gradient step of Dreamer v3, tiny, on CartPole-v1",
        unit="milliseconds",
        ratio_means="of this row's time to that of rl-lab, compiled",
        rows=[measured(name, values, (values, first)) for name, values in samples.items()],
        settings={"spec": SPEC, "steps": steps, "repeats": repeats},
        notes=["drawing the sequences is in our steps and not in sheeprl's", "one thread"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", help="a Python with sheeprl")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a folder; default: benchmarks/results")
    parser.add_argument("--worker", choices=["on", "off"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(own_steps(options.steps, options.worker)))
        return
    report = compare(options.peer_python, options.steps, options.repeats)
    print(as_text(report, {}), flush=True)
    folder = options.output or (RESULTS if RESULTS.is_dir() else None)
    if folder is not None:
        warn(f"written: {', '.join(map(str, save(report, folder / 'dreamer.json')))}")


if __name__ == "__main__":
    main()
