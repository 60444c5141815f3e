"""`rl-lab train`: a new run per seed, or an old one continued; then the result and what is next."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_lab.cli.printing import say, say_json, spread, table, warn
from rl_lab.core.errors import UserError

SMALL = ("training.total_timesteps=2_000", "evaluation.test_episodes=2", "compute.compile=off")
RESUME_WORD = "training.resume_path"


@dataclass(kw_only=True)
class Request:
    """What was typed."""

    words: Sequence[str] = ()
    config_file: Path | None = None
    config_dirs: Sequence[Path] = ()
    plugins: Sequence[Path] = ()
    resume: str | None = None
    fork: str | None = None
    init_from_run: str | None = None
    seed: str | None = None
    total_timesteps: str | None = None
    debug: bool = False
    track: bool = False
    trust: bool = False
    runs_dir: Path = field(default_factory=lambda: Path("runs"))

    @property
    def spec(self) -> str | None:
        """The experiment among the words."""
        found = [word for word in self.words if not _is_override(word)]
        if len(found) > 1:
            raise UserError(f"give one experiment, not '{found[0]}' and '{found[1]}'")
        return found[0] if found else None

    @property
    def overrides(self) -> list[str]:
        """Every `key=value`, those of the options included; what was typed last wins."""
        words = [word for word in self.words if _is_override(word)]
        if self.debug and self.fork is None:  # a fork begins where it begins
            words = [*SMALL, *words]
        if self.total_timesteps is not None:
            words.append(f"training.total_timesteps={self.total_timesteps}")
        if self.init_from_run is not None:
            words.append(f"training.warm_start='{self.init_from_run}'")
        if self.track:
            words.append("logging.wandb.enabled=true")
        return words

    @property
    def seeds(self) -> list[int | None]:
        """The seeds asked for; None stands for the configured one."""
        if self.seed is None:
            return [None]
        try:
            seeds: list[int | None] = [int(each) for each in self.seed.split(",")]
        except ValueError:
            raise UserError(f"--seed: write 1 or 1,2,3, got '{self.seed}'") from None
        if len(set(seeds)) < len(seeds):
            raise UserError(f"--seed: '{self.seed}' names a seed twice")
        return seeds

    def configure(self, seed: int | None) -> Any:
        """The typed config with one of the seeds, and how it was composed."""
        from rl_lab.api import configure

        extra = [] if seed is None else [f"experiment.seed={seed}"]
        return configure(
            self.spec,
            [*self.overrides, *extra],
            config_file=self.config_file,
            config_dirs=self.config_dirs,
            plugins=self.plugins,
            small=self.debug and self.fork is None,
        )


def run(request: Request, *, quiet: bool, as_json: bool) -> int:
    """Train, print, and return the exit code."""
    from rl_lab.orchestration import session
    from rl_lab.records.display import load_display
    from rl_lab.tuning.wandb_sweep import agent_words

    silent = quiet or as_json
    view = _quiet_view if silent else _terminal_view
    if not silent:
        load_display()  # a mistake in ./configs/metrics.yaml is told before anything starts
    if reference := _resumed(request):
        outcome = session.resume(
            reference,
            root=request.runs_dir,
            view=view,
            debug=request.debug,
            trust=request.trust,
        )
        return _finish(request, [outcome], quiet=quiet, as_json=as_json)
    request.words = [*request.words, *agent_words(os.environ)]
    if request.fork is not None:
        outcomes = _forks(request, view, silent)
        return _finish(request, outcomes, quiet=quiet, as_json=as_json)
    if request.trust:
        raise UserError("--trust is for --resume and --fork: what you name yourself is trusted")
    prepared = [request.configure(seed) for seed in request.seeds]  # all of them, before any runs
    for note in [] if silent else prepared[0][1].notes:
        say(note)
    command = list(sys.argv)
    outcomes = []
    for config, _ in prepared:
        root, debug = request.runs_dir, request.debug
        outcomes.append(session.train(config, root=root, command=command, view=view, debug=debug))
        if outcomes[-1].exit_code:
            break
        if not silent and len(prepared) > 1:
            say(_result(outcomes[-1]))
    return _finish(request, outcomes, quiet=quiet, as_json=as_json)


def _forks(request: Request, view: Any, silent: bool) -> list[Any]:
    """A run for every seed, each of which goes on from the same checkpoint of another run."""
    from rl_lab.orchestration.fork import fork
    from rl_lab.records.run_directory import find_run

    assert request.fork is not None
    given = {
        f"'{request.spec}'": request.spec,
        "--config": request.config_file,
        "--config-dir": request.config_dirs,
        "--plugin": request.plugins,
        "--init-from-run": request.init_from_run,
    }
    if others := [name for name, value in given.items() if value]:
        raise UserError(f"--fork: the run brings its own experiment, leave out {others[0]}")
    # By its path: the first fork must not become the `@last` of the second.
    run, which = find_run(request.fork, request.runs_dir)
    reference = str(run.path) if which is None else f"{run.path}:{which}"
    outcomes = []
    for seed in request.seeds:
        extra = [] if seed is None else [f"experiment.seed={seed}"]
        outcomes.append(
            fork(
                reference,
                [*request.overrides, *extra],
                root=request.runs_dir,
                command=list(sys.argv),
                view=view,
                debug=request.debug,
                trust=request.trust,
            )
        )
        if outcomes[-1].exit_code:
            break
        if not silent and len(request.seeds) > 1:
            say(_result(outcomes[-1]))
    return outcomes


def _resumed(request: Request) -> str | None:
    """The run to continue, which keeps its own configuration: nothing else may be asked for."""
    path = [word.partition("=")[2] for word in request.words if _key(word) == RESUME_WORD]
    others = [word for word in request.words if _key(word) != RESUME_WORD]
    if path:  # that spelling always came with the experiment, which the run knows by itself
        others = [word for word in others if _key(word) not in ("experiment", "")]
    reference = request.resume or (path[0] if path else None)
    if reference is None:
        return None
    given = {
        "--config": request.config_file,
        "--config-dir": request.config_dirs,
        "--fork": request.fork,
        "--init-from-run": request.init_from_run,
        "--seed": request.seed,
        "--total-timesteps": request.total_timesteps,
        "--track": request.track,
    }
    others += [name for name, value in given.items() if value]
    if others:
        raise UserError(
            f"--resume: the run keeps its own configuration, so '{others[0]}' cannot be changed"
        )
    return reference


def _finish(request: Request, outcomes: list[Any], *, quiet: bool, as_json: bool) -> int:
    code: int = outcomes[-1].exit_code
    if as_json:
        results = [{**each.summary, "path": str(each.run.path)} for each in outcomes]
        say_json(results[0] if len(request.seeds) == 1 else results)
        return code
    if len(outcomes) == 1:
        say(_result(outcomes[0]))
    else:
        say(_results(outcomes))
    if request.debug and not quiet:
        say(_profile(outcomes[-1]))
    if code:
        say(f"Resume it with: {_command(request, 'train', '--resume', outcomes[-1].run.id)}")
    elif not quiet:
        say("\nTry next:")
        for line in _suggestions(request, outcomes[-1]):
            say(f"  {line}")
    return code


def _result(outcome: Any) -> str:
    """How one run ended, and where it is."""
    summary = outcome.summary
    test = summary.get("test") or {}
    parts = [f"{which} {spread(test[which])}" for which in ("last", "best") if which in test]
    lines = []
    if parts:
        lines.append(f"test return: {', '.join(parts)} ({test['last']['episodes']} episodes)")
    else:
        total = summary["total_timesteps"]
        lines.append(f"{summary['status']} at step {summary['env_steps']:,} of {total:,}")
    lines.append(f"run: {outcome.run.path}")
    if (page := outcome.run.path / "report.html").exists():
        lines.append(f"report: {page}")
    return "\n".join(lines)


def _profile(outcome: Any) -> str:
    """Where the time went, and where the statistics of the weights are."""
    from rl_lab.orchestration.debug import PROFILE, WEIGHTS

    logs = outcome.run.log_file.parent
    file = logs / PROFILE
    shown = file.read_text().strip() if file.exists() else "no profile: another one was active"
    return f"\n{shown}\n\nprofile: {file}\nweights: {logs / WEIGHTS}"


def _results(outcomes: list[Any]) -> str:
    """One row per seed."""
    rows = []
    for outcome in outcomes:
        test = outcome.summary.get("test") or {}
        row = {
            "seed": str(outcome.summary["seed"]),
            "run": outcome.run.id,
            "status": outcome.summary["status"],
        }
        row |= {f"test ({which})": spread(test[which]) for which in test}
        rows.append(row)
    return table(rows, list(dict.fromkeys(name for row in rows for name in row)))


def _suggestions(request: Request, outcome: Any) -> list[str]:
    """Three commands that work as they are printed."""
    run = outcome.run.id
    lines = [
        _command(request, "evaluate", run, "--episodes", "100"),
        _command(request, "show", run),
    ]
    if _resumed(request):
        return [*lines, _command(request, "list")]
    options: list[str] = []
    for name, values in (
        ("--config", [request.config_file] if request.config_file else []),
        ("--config-dir", request.config_dirs),
        ("--plugin", request.plugins),
    ):
        options += [part for value in values for part in (name, str(value))]
    if parent := outcome.summary.get("parent"):  # by its id: `@last` is the fork itself by now
        options += ["--fork", f"{parent['id']}:{parent['step']}"]
    if request.init_from_run:
        options += ["--init-from-run", request.init_from_run]
    if request.total_timesteps:
        options += ["--total-timesteps", request.total_timesteps]
    seed = str(outcome.summary["seed"] + 1)
    return [*lines, _command(request, "train", *request.words, *options, "--seed", seed)]


def _command(request: Request, *words: str) -> str:
    from rl_lab.api import runs_root

    here = [] if request.runs_dir == runs_root() else ["--runs-dir", str(request.runs_dir)]
    return shlex.join([_program(), *words, *here])


def _program() -> str:
    """How this command can be typed again: by its path while `rl-lab` is not on the PATH."""
    called = Path(sys.argv[0])
    if called.name != "rl-lab" or shutil.which("rl-lab"):
        return "rl-lab"
    return os.path.relpath(called)


def _is_override(word: str) -> bool:
    return "=" in word or word.startswith("~")


def _key(word: str) -> str:
    """The key of `+key=value`; empty for an experiment's name."""
    return word.partition("=")[0].lstrip("+~") if _is_override(word) else ""


def _terminal_view(config: Any, directory: Any, start: int) -> Sequence[Any]:
    """Progress for a human; a resumed run shows the history it already has."""
    from rl_lab.records.metrics import STEP, iterate_metrics
    from rl_lab.records.terminal import TerminalView

    if not config.logging.terminal:
        return _quiet_view(config, directory, start)
    name = config.experiment.name or f"{config.environment.id} {config.algorithm.name}"
    title = f"{name} · seed {config.experiment.seed} · run {directory.id}"
    view = TerminalView(config.training.total_timesteps, title=title, start_step=start)
    for row in iterate_metrics(directory.metrics_file) if start else ():
        view.remember(row.pop(STEP), row)
    view.show()
    return [view]


def _quiet_view(config: Any, directory: Any, start: int) -> Sequence[Any]:
    """Only what is wrong."""
    from rl_lab.records.sinks import Sink

    class Warnings(Sink):
        def say(self, message: str) -> None:
            if message.startswith("WARNING"):
                warn(message)

    return [Warnings()]
