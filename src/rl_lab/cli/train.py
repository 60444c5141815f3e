"""`rl-lab train`: a new run per seed, or an old one continued; then the result and what is next."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.arguments import (
    RUNS,
    ConfigDirs,
    ConfigFile,
    Json,
    Plugins,
    RunsDir,
    Seeds,
    TotalTimesteps,
    Trust,
    Words,
)
from rl_lab.cli.printing import program, say, say_json, spread, table, warn
from rl_lab.cli.request import Request, is_override, key_of
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig
from rl_lab.records.formatting import from_here

if TYPE_CHECKING:
    from rl_lab.records.run_directory import RunDirectory
    from rl_lab.run.session import Outcome, View

RESUME_WORD = "training.resume_path"


def train(
    words: Words = None,
    config_file: ConfigFile = None,
    config_dirs: ConfigDirs = None,
    plugins: Plugins = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN[:STEP]", help="continue a run, bit for bit")
    ] = None,
    fork: Annotated[
        str | None,
        typer.Option(metavar="RUN[:STEP]", help="go on from a checkpoint as a new run"),
    ] = None,
    schedules: Annotated[
        str | None,
        typer.Option(
            metavar="stretch|keep",
            help="--fork: schedules follow a new length, or stay at the end of the old one",
        ),
    ] = None,
    init_from_run: Annotated[
        str | None, typer.Option(metavar="RUN[:STEP]", help="start from the weights of a run")
    ] = None,
    seed: Seeds = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, metavar="N", help="with several seeds: runs at a time")
    ] = 1,
    total_timesteps: TotalTimesteps = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="a small run: checks, weights, profile, tracebacks")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            *("-q", "--quiet"),
            envvar=["RL_LAB_QUIET", "VIBES_QUIET", "VIBES_DISABLE_CHECKPOINT_LOGS"],
            show_envvar=False,
            help="print only the result; RL_LAB_QUIET=1 does the same",
        ),
    ] = False,
    track: Annotated[bool, typer.Option("--track", help="also log to Weights & Biases")] = False,
    list_envs: Annotated[
        bool, typer.Option("--list-envs", help="the same as `rl-lab envs [TEXT]`")
    ] = False,
    show_config: Annotated[
        str | None, typer.Option("--cfg", metavar="job", help="the same as `rl-lab config`")
    ] = None,
    progress_lines: Annotated[bool, typer.Option("--progress-lines", hidden=True)] = False,
    package: Annotated[str | None, typer.Option("--package", hidden=True)] = None,  # with --cfg
    config_id: Annotated[str | None, typer.Option("--config_id", hidden=True)] = None,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Train an experiment, or continue a run."""
    from rl_lab.cli.config import print_config
    from rl_lab.cli.envs import envs

    if list_envs:
        return envs(" ".join(words or []), config_dirs, as_json)
    request = Request(
        words=[*([config_id] if config_id else []), *(words or [])],
        config_file=config_file,
        config_dirs=config_dirs or [],
        plugins=plugins or [],
        resume=resume,
        fork=fork,
        schedules=schedules,
        init_from_run=init_from_run,
        seed=seed,
        total_timesteps=total_timesteps,
        debug=debug,
        track=track,
        trust=trust,
        runs_dir=runs_dir,
    )
    if show_config is not None:
        return print_config(request, as_json=as_json)
    return _run(request, quiet=quiet, as_json=as_json, jobs=jobs, lines=progress_lines)


def _run(request: Request, *, quiet: bool, as_json: bool, jobs: int, lines: bool) -> int:
    """Train, print, and return the exit code; `lines`: progress on stderr beside the JSON."""
    from rl_lab.analysis.view import with_report
    from rl_lab.display.metric_style import load_display
    from rl_lab.run import session
    from rl_lab.tuning.wandb_sweep import agent_words

    silent = quiet or as_json
    view = with_report(_line_view if lines else _quiet_view if silent else _terminal_view)
    if not silent:
        load_display()  # a mistake in ./configs/metrics.yaml is reported before anything starts
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
    if request.schedules is not None and request.fork is None:
        raise UserError("--schedules is for --fork: a new run has schedules of its own")
    if request.trust and request.fork is None:
        raise UserError("--trust is for --resume and --fork: what you name yourself is trusted")
    train = (
        _forking(request, view) if request.fork is not None else _training(request, view, silent)
    )
    if jobs > 1 and len(request.seeds) > 1:
        return _side_by_side(request, jobs, quiet=quiet, as_json=as_json)
    outcomes: list[Outcome] = []
    failures: list[Exception] = []
    for seed in request.seeds:
        try:
            outcomes.append(train(seed))
        except Exception as error:
            if len(request.seeds) == 1:
                raise
            error.add_note(f"that was seed {seed}")
            failures.append(error)
            warn(f"seed {seed} failed: {error}")
            continue
        if outcomes[-1].exit_code:
            break
        if not silent and len(request.seeds) > 1:
            say(_result(outcomes[-1]))
    code = _finish(request, outcomes, quiet=quiet, as_json=as_json) if outcomes else 0
    if failures and not code:
        raise failures[0]
    return code


def _training(request: Request, view: "View", silent: bool) -> Callable[[int | None], "Outcome"]:
    """A function that trains one seed. All seeds are configured now, before any run starts."""
    from rl_lab.run import session

    prepared = {seed: request.configure(seed) for seed in request.seeds}
    for note in [] if silent else prepared[request.seeds[0]][1].notes:
        say(note)

    def train(seed: int | None) -> "Outcome":
        return session.train(
            prepared[seed][0],
            root=request.runs_dir,
            command=list(sys.argv),
            view=view,
            debug=request.debug,
        )

    return train


def _forking(request: Request, view: "View") -> Callable[[int | None], "Outcome"]:
    """What goes on from the same checkpoint of another run, with one seed."""
    from rl_lab.records.run_directory import find_run
    from rl_lab.run.fork import fork

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
    request.fork = str(run.path) if which is None else f"{run.path}:{which}"

    def train(seed: int | None) -> "Outcome":
        assert request.fork is not None
        extra = [] if seed is None else [f"experiment.seed={seed}"]
        return fork(
            request.fork,
            [*request.overrides, *extra],
            root=request.runs_dir,
            command=list(sys.argv),
            view=view,
            debug=request.debug,
            schedules=request.schedules or "stretch",
            trust=request.trust,
        )

    return train


def _side_by_side(request: Request, jobs: int, *, quiet: bool, as_json: bool) -> int:
    """Each seed in a process; one that fails does not stop the others."""
    from rl_lab.cli.seed_jobs import run_seeds
    from rl_lab.records.run_directory import RunDirectory
    from rl_lab.run.session import Outcome

    output = ["--json"] if quiet else ["--json", "--progress-lines"]
    seeds = [seed for seed in request.seeds if seed is not None]
    commands = {seed: [*request.again(seed), *_where(request), *output] for seed in seeds}
    ended, code = run_seeds(commands, jobs, warn if quiet or as_json else say)
    outcomes = []
    for each in ended:
        if each.summary is not None:
            run = RunDirectory(Path(each.summary.pop("path")))
            outcomes.append(Outcome(run, each.summary, each.code))
    failed = [each for each in ended if each.summary is None and each.code]
    if outcomes or as_json:
        _finish(request, outcomes, quiet=quiet, as_json=as_json)
    if failed:
        named = ", ".join(str(each.seed) for each in failed)
        warn(f"error: {len(failed)} of {len(seeds)} seeds failed: {named}")
    return code or next((each.code for each in ended if each.code), 0)


def _resumed(request: Request) -> str | None:
    """The run to continue, which keeps its own configuration: nothing else may be asked for."""
    path = [word.partition("=")[2] for word in request.words if key_of(word) == RESUME_WORD]
    others = [word for word in request.words if key_of(word) != RESUME_WORD]
    if path:  # that spelling always came with the experiment, which the run knows by itself
        others = [word for word in others if key_of(word) not in ("experiment", "")]
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
    changed = [word for word in others if is_override(word)]
    others += [name for name, value in given.items() if value]
    if others:
        line = f"--resume: the run keeps its own configuration, so '{others[0]}' cannot be changed"
        for name in ("--total-timesteps", "--seed"):
            changed += [name, str(given[name])] if given[name] else []
        if changed:
            fork = _command(request, "train", "--fork", reference, *changed)
            line += f"; as a new run that goes on from it: {fork}"
        raise UserError(line)
    return reference


def _finish(request: Request, outcomes: "list[Outcome]", *, quiet: bool, as_json: bool) -> int:
    code: int = next((each.exit_code for each in outcomes if each.exit_code), 0)
    if as_json:
        results = [{**each.summary, "path": str(each.run.path)} for each in outcomes]
        say_json(results[0] if len(request.seeds) == 1 else results)
        return code
    if len(request.seeds) == 1:
        say(_result(outcomes[0]))
    else:
        say(_results(outcomes))
    if request.debug and not quiet:
        say(_profile(outcomes[-1]))
    for stopped in [each for each in outcomes if each.exit_code]:
        say(f"Resume it with: {_command(request, 'train', '--resume', stopped.run.id)}")
    if not code and not quiet:
        say("\nTry next:")
        for line in _suggestions(request, outcomes):
            say(f"  {line}")
    return code


def _result(outcome: "Outcome") -> str:
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
    lines.append(f"run: {from_here(outcome.run.path)}")
    if (page := outcome.run.path / "report.html").exists():
        lines.append(f"report: {from_here(page)}")
    return "\n".join(lines)


def _profile(outcome: "Outcome") -> str:
    """Where the time went, and where the statistics of the weights are."""
    from rl_lab.run.debug import PROFILE, WEIGHTS

    logs = outcome.run.log_file.parent
    file = logs / PROFILE
    shown = file.read_text().strip() if file.exists() else "no profile: another one was active"
    return f"\n{shown}\n\nprofile: {file}\nweights: {logs / WEIGHTS}"


def _results(outcomes: "list[Outcome]") -> str:
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


def _suggestions(request: Request, outcomes: "list[Outcome]") -> list[str]:
    """Three commands that work as they are printed."""
    runs = [outcome.run.id for outcome in outcomes]
    lines = [_command(request, "evaluate", runs[-1], "--episodes", "100")]
    if len(runs) > 1:
        lines.append(_command(request, "compare", *runs))
    else:
        lines.append(_command(request, "show", runs[-1]))
    if _resumed(request):
        return [*lines, _command(request, "list")]
    parent = outcomes[-1].summary.get("parent")  # by its id: `@last` is the fork itself by now
    fork = f"{parent['id']}:{parent['step']}" if parent else None
    seed = max(outcome.summary["seed"] for outcome in outcomes) + 1
    return [*lines, _command(request, "train", *request.again(seed, fork=fork))]


def _command(request: Request, *words: str) -> str:
    return shlex.join([program(), *words, *_where(request)])


def _where(request: Request) -> list[str]:
    """The option that leads to the same runs; none if they are where a command looks anyway."""
    from rl_lab.api import runs_root

    return [] if request.runs_dir == runs_root() else ["--runs-dir", str(request.runs_dir)]


def _line_view(config: RunConfig, directory: "RunDirectory", start: int) -> Sequence[Any]:
    """Progress as lines on stderr, for the process that started this one."""
    return _terminal_view(config, directory, start, on_stderr=True)


def _terminal_view(
    config: RunConfig, directory: "RunDirectory", start: int, on_stderr: bool = False
) -> Sequence[Any]:
    """Progress for a human, unless `logging.terminal` is off."""
    from rl_lab.run.view import terminal_view

    if not config.logging.terminal:
        return _quiet_view(config, directory, start)
    return terminal_view(config, directory, start, on_stderr=on_stderr)


def _quiet_view(config: RunConfig, directory: "RunDirectory", start: int) -> Sequence[Any]:
    """Only what is wrong."""
    from rl_lab.run.view import WarningSink

    return [WarningSink(warn)]
