"""How costs grow: more environments, wider networks, more rows of metrics, longer runs.

    python benchmarks/growth.py [--quick] [--only envs|width|rows|length] [--output FILE.json]

Every point is a process of its own, so that its peak memory is its own too. Costs are per unit (a
step, a row, a parameter): where they stay level, growth is linear, or better where they fall.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_lab.api import configure
from rl_lab.benchmarking.collect import PHASE
from rl_lab.benchmarking.measure import interleave, spread
from rl_lab.benchmarking.report import Report, destination, measured, png, save
from rl_lab.cli.bench import Columns, as_text
from rl_lab.cli.printing import warn
from rl_lab.core.errors import RunError

MATCHED = [
    "environment.num_envs=8",
    "algorithm.rollout_steps=128",
    "algorithm.batch_size=256",
    "algorithm.epochs=4",
    "network.encoder.hidden_dims=[64, 64]",
    "compute.compile=off",
    "compute.threads=1",
]
POINTS = {
    "envs": [8, 16, 32, 64, 128, 256, 512],
    "width": [64, 128, 256, 512, 1024],
    "rows": [1_000, 10_000, 100_000, 1_000_000],
    "length": [100_000, 1_000_000, 10_000_000],
}
QUICK = {
    "envs": [8, 64],
    "width": [64, 256],
    "rows": [1_000, 10_000],
    "length": [10_000, 100_000],
}
TITLES = {
    "envs": ("environments", "µs per environment step"),
    "width": ("width of both hidden layers", "ns per parameter and row"),
    "rows": ("rows of metrics", "µs per row"),
    "length": ("environment steps of a run", "µs per environment step"),
}
METRICS = 10  # in a row
SAMPLES = 20  # of the memory along a run
Found = dict[str, Any]  # costs: name -> per unit; and whatever else a point tells


# ------------------------------------------------- one point, in a process of its own


def envs(count: int, seconds: float) -> Found:
    """PPO with 128 steps of so many environments, in minibatches of 256."""
    costs, _ = trained([f"environment.num_envs={count}"], seconds)
    return {"costs": costs, "per_second": 1e6 / sum(costs.values())}


def width(size: int, seconds: float) -> Found:
    """PPO with 8 environments and two layers of this size."""
    costs, parameters = trained([f"network.encoder.hidden_dims=[{size}, {size}]"], seconds)
    return {
        "costs": {name: 1e3 * each / parameters for name, each in costs.items()},
        "per_second": 1e6 / sum(costs.values()),
        "parameters": parameters,
    }


def trained(words: list[str], seconds: float) -> tuple[dict[str, float], int]:
    """Microseconds per environment step of collecting and of updating, and the parameters."""
    from rl_lab.config.resolve import resolve
    from rl_lab.run.build import make_algorithm, make_context
    from rl_lab.run.efficiency import count_parameters

    config = resolve(configure("CartPole-v1:ppo_defaults", [*MATCHED, *words])[0])
    context = make_context(config)
    algorithm = make_algorithm(config, context)
    collecting = updating = 0.0
    steps = -1  # the first round fills caches
    with closing(context.train_environment):
        while steps <= 0 or collecting + updating < seconds:
            started = time.perf_counter()
            result = algorithm.collect_step(0, phase=PHASE)
            middle = time.perf_counter()
            algorithm.update(result.trajectory, phase=PHASE)
            if steps < 0:
                steps = 0
                continue
            collecting += middle - started
            updating += time.perf_counter() - middle
            steps += result.steps
    costs = {"collect": 1e6 * collecting / steps, "update": 1e6 * updating / steps}
    return costs, count_parameters([*algorithm.parts().values()])["total"]


def rows(count: int, seconds: float) -> Found:
    """A run whose metrics have so many rows: writing them, `show`, which reads them, the index."""
    from rl_lab import api
    from rl_lab.cli.show import gather
    from rl_lab.display.metric_style import load_display
    from rl_lab.records.index import Index, row_of
    from rl_lab.records.metrics import MetricLog

    values = {f"train/metric_{number}": 1.0 / (number + 3) for number in range(METRICS)}
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        root = Path(folder)
        run = api.train("CartPole-v1:random", total_timesteps=256, runs_dir=root).run
        log = MetricLog(run.metrics_file)
        started = time.perf_counter()
        for step in range(count):
            log.append(1000 + step, values)
        log.flush()
        appending = time.perf_counter() - started
        log.close()
        before = peak_mb()
        started = time.perf_counter()
        gather(run.id, root, load_display())
        showing = time.perf_counter() - started
        started = time.perf_counter()
        Index(root).upsert(row_of(run, root))
        indexing = time.perf_counter() - started
    spent = {"append": appending, "show": showing, "index": indexing}
    return {
        "costs": {name: 1e6 * each / count for name, each in spent.items()},
        "show_seconds": showing,
        "peak_before_show_mb": before,
    }


def length(steps: int, seconds: float) -> Found:
    """A run of random actions: the real loop, its rows and checkpoints, for so many steps."""
    from rl_lab.config.resolve import resolve
    from rl_lab.display.sinks import Sinks, TensorBoardSink
    from rl_lab.records.run_directory import RunDirectory
    from rl_lab.run.build import build_run

    words = ["environment.num_envs=64", "evaluation.every_steps=0", "checkpoint.every_steps=500000"]
    words.append(f"training.total_timesteps={steps}")
    config = resolve(configure("CartPole-v1:random", words)[0])
    memory: list[float] = []
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        run, _ = build_run(
            config,
            lambda: RunDirectory.create(Path(folder), "bench"),
            Sinks([TensorBoardSink(Path(folder) / "tensorboard")], None),
        )
        with closing(run):
            after_cycle = run.after_cycle

            def after() -> None:
                after_cycle()
                if run.counters.env_steps * SAMPLES >= (len(memory) + 1) * steps:
                    memory.append(resident_mb())

            run.after_cycle = after  # type: ignore[method-assign]
            started = time.perf_counter()
            run.run()
            spent = time.perf_counter() - started
    return {
        "costs": {"run": 1e6 * spent / steps},
        "per_second": steps / spent,
        "memory_mb": memory,
        "grown_mb": memory[-1] - memory[len(memory) // 10],
    }


KINDS: dict[str, Callable[[int, float], Found]] = {
    "envs": envs,
    "width": width,
    "rows": rows,
    "length": length,
}


def peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 if sys.platform != "darwin" else 1024**2)  # kilobytes; bytes on a Mac


def resident_mb() -> float:
    """What is in memory now, where the system tells; otherwise the most that ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_mb()
    return pages * resource.getpagesize() / 1024**2


def fresh(kind: str, value: int, seconds: float) -> Found:
    """One point, measured in a new process."""
    words = [__file__, "--point", kind, str(value), "--seconds", str(seconds)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{kind} {value}: {done.stderr.strip().splitlines()[-1]}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


# ---------------------------------------------------------------------- all of them


def bench(points: dict[str, list[int]], repeats: int, seconds: float) -> Report:
    jobs = {
        f"{kind} {value}": partial(fresh, kind, value, seconds)
        for kind, values in points.items()
        for value in values
    }
    samples = interleave(jobs, repeats, warn)
    made: list[dict[str, Any]] = []
    for kind, values in points.items():
        first = samples[f"{kind} {values[0]}"]
        for value in values:
            found = samples[f"{kind} {value}"]
            for cost in first[0]["costs"]:
                own = [each["costs"][cost] for each in found]
                row = measured(
                    f"{kind} {value:,}: {cost}", own, (own, [each["costs"][cost] for each in first])
                )
                middle = {
                    name: spread([each[name] for each in found]).median
                    for name, number in found[0].items()
                    if isinstance(number, int | float)
                }
                more = {"memory_mb": each} if (each := found[-1].get("memory_mb")) else {}
                made.append(row | {"kind": kind, "at": value, "cost": cost} | middle | more)
    units = "; ".join(f"{kind}: {TITLES[kind][1]}" for kind in points)
    return Report(
        benchmark="growth",
        title="How costs grow",
        unit=f"per unit ({units})",
        ratio_means="to the first point of the same cost; level is linear",
        rows=made,
        settings={"points": points, "repeats": repeats, "seconds": seconds, "ppo": MATCHED},
        notes=[
            f"one thread, CartPole-v1; a row of metrics has {METRICS} numbers; `show` reads every "
            "row of a run",
            "grown: memory at the end of the run against that after a tenth of it",
        ],
    )


COLUMNS: Columns = {
    "steps/s": lambda row: row.get("per_second"),
    "peak MB": lambda row: round(row["peak_mb"]),
    "grown MB": lambda row: round(row["grown_mb"], 1) if "grown_mb" in row else None,
}


def panels(report: Report) -> bytes | None:
    """Four panels: the cost per unit (left) and the peak memory (right, dashed) of each kind."""
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    figure.suptitle(report.title)
    kinds = dict.fromkeys(row["kind"] for row in report.rows)
    for number, kind in enumerate(kinds, start=1):
        own = [row for row in report.rows if row["kind"] == kind]
        axes = figure.add_subplot(2, 2, number)
        for cost in dict.fromkeys(row["cost"] for row in own):
            line = [row for row in own if row["cost"] == cost]
            axes.plot(
                *([row["at"] for row in line], [row["value"]["median"] for row in line]),
                marker="o",
                label=cost,
            )
        places = sorted({row["at"] for row in own})
        axes.set(xscale="log", xlabel=TITLES[kind][0], ylabel=TITLES[kind][1])
        axes.set_xticks(places, [f"{each:,}" for each in places])
        axes.set_xticks([], minor=True)
        axes.set_ylim(0, 1.15 * max(row["value"]["median"] for row in own))
        axes.legend()
        memory = axes.twinx()
        peaks = {row["at"]: row["peak_mb"] for row in own}
        memory.plot(peaks.keys(), peaks.values(), linestyle="--", color="grey")
        memory.set_ylabel("peak memory, MB (dashed)")
        memory.set_ylim(0, 1.3 * max(peaks.values()))
    return png(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small ranges")
    parser.add_argument("--only", choices=KINDS, action="append", help="default: all four")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="least time of a PPO point")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/growth.json")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)  # how it calls itself
    options = parser.parse_args()
    if options.point:
        kind, value = options.point
        found = KINDS[kind](int(value), options.seconds)
        print(json.dumps(found | {"peak_mb": peak_mb()}))
        return
    file = destination("growth", options.output)
    points = {
        kind: values
        for kind, values in (QUICK if options.quick else POINTS).items()
        if not options.only or kind in options.only
    }
    report = bench(points, options.repeats, options.seconds)
    print(as_text(report, COLUMNS))
    if file is not None:
        warn(f"written: {', '.join(map(str, save(report, file, panels)))}")


if __name__ == "__main__":
    main()
