"""`rl-lab demo`: train, kill, resume, prove, compare, report, in about two minutes."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.arguments import count
from rl_lab.cli.browser import open_page
from rl_lab.cli.printing import program, say, warn
from rl_lab.core.errors import RunError

if TYPE_CHECKING:
    from rl_lab.records.run_directory import RunDirectory

SPEC = "CartPole-v1:ppo"
OTHER = "algorithm.gamma=0.9"  # what the second run does differently
STEPS = 20_000
LEAST = 4_000  # steps that are killed half-way for sure
POLL_SECONDS = 0.02
STAGES = 6


def demo(
    runs_dir: Annotated[
        Path | None,
        typer.Option("--runs-dir", help="where its runs go; else into a temporary folder"),
    ] = None,
    steps: Annotated[
        int, typer.Option(parser=count(LEAST), metavar="N", help="environment steps of each run")
    ] = STEPS,
    open_it: Annotated[
        bool, typer.Option("--open", help="open the report in a browser at the end")
    ] = False,
) -> int:
    """Train CartPole, kill it, resume it, prove that nothing changed, compare: in two minutes.

    Two runs of PPO on two cores. Ctrl-C ends it; what is there stays there.
    """
    from rl_lab.cli.compare import compare
    from rl_lab.cli.report import report
    from rl_lab.cli.verify import verify

    root = runs_dir or Path(tempfile.mkdtemp(prefix="rl-lab-demo-"))
    train = ["train", SPEC, f"training.total_timesteps={steps}", "--seed", "1"]
    train += [f"checkpoint.every_steps={steps // 10}"]
    say(f"The commands below are those you would type after: export RL_LAB_RUNS={root}")
    _stage(1, f"train PPO on CartPole-v1 for {steps:,} steps", train)
    first = _train_and_kill(train, root, steps // 3)
    _stage(2, "resume it where its newest checkpoint is", ["train", "--resume", first.id])
    _train(["train", "--resume", str(first.path)], root)
    _stage(3, "prove it: train the same run again, uninterrupted, and compare every bit",
           ["verify", first.id])  # fmt: skip
    if (code := verify(str(first.path), runs_dir=root)) != 0:
        return code
    _stage(4, f"train once more, with {OTHER}", [*train, OTHER])
    second = _new_run(root, lambda: _train([*train, OTHER], root))
    runs = [str(first.path), str(second.path)]
    _stage(5, "compare the two", ["compare", first.id, second.id])
    compare(runs, runs_dir=root)
    page = root / "demo" / "report.html"
    _stage(6, "write the page to send to a colleague", ["report", first.id, second.id])
    report(runs, output=page.parent, runs_dir=root)
    say(f"\nDone. The runs are in {root}; the report of the first: {first.path / 'report.html'}")
    if open_it:
        open_page(page)
    return 0


def _stage(number: int, words: str, command: Sequence[str]) -> None:
    say(f"\n[{number}/{STAGES}] {words}\n      {program()} {' '.join(command)}")


def _train_and_kill(words: Sequence[str], root: Path, after: int) -> "RunDirectory":
    """Train until there is a checkpoint after this step, then SIGKILL: no chance to save."""
    from rl_lab.records.checkpoint import CheckpointStore
    from rl_lab.records.run_directory import list_runs

    before = {run.path for run in list_runs(root)}
    process = _start(words, root)
    try:
        while process.poll() is None:
            made = [run for run in list_runs(root) if run.path not in before]
            saved = CheckpointStore(made[-1].checkpoints).steps() if made else []
            if saved and saved[-1] >= after:
                process.kill()
                process.wait()
                say(f"      killed with SIGKILL; its newest checkpoint is of step {saved[-1]:,}")
                return made[-1]
            time.sleep(POLL_SECONDS)
    finally:
        _end(process)
    raise RunError(f"the training ended before it was killed (exit code {process.returncode})")


def _new_run(root: Path, train: Callable[[], None]) -> "RunDirectory":
    from rl_lab.records.run_directory import list_runs

    before = {run.path for run in list_runs(root)}
    train()
    return next(run for run in list_runs(root) if run.path not in before)


def _train(words: Sequence[str], root: Path) -> None:
    process = _start(words, root)
    try:
        code = process.wait()
    finally:
        _end(process)
    if code != 0:
        raise RunError(f"the training failed (exit code {code})")


def _start(words: Sequence[str], root: Path) -> "subprocess.Popen[bytes]":
    """A process of its own, which ends with this one; it prints its errors and nothing else."""
    from rl_lab.tuning.processes import TRAIN, launch, usable

    command = [*TRAIN, *words[1:], "--runs-dir", str(root), "-q"]
    return launch(command, slot=0, threads=len(usable()), stdout=subprocess.DEVNULL, stderr=None)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Let a training that still runs save and end: this one was interrupted."""
    if process.poll() is None:
        warn("interrupted: the training saves and ends")
        process.terminate()
        process.wait()
