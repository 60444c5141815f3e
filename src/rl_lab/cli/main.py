"""The command line: every command's words and options. What they do is one file per command.

Nothing heavy is imported here, so that `rl-lab --help` answers at once.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from rl_lab.cli import bench, compare_commands, run_commands, spellings, sweep
from rl_lab.cli.arguments import RUNS, SETTINGS, Json, Run, RunsDir, Trust, count
from rl_lab.cli.printing import prints_to_stderr
from rl_lab.core.errors import RunError, UserError

PROGRAM = "rl-lab"
NO_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
MAKE_ROOM = "make room, or choose another folder with --runs-dir"
WORDS = "SPEC|KEY=VALUE"

GROUPS = {
    "Train": ("train", "sweep", "config", "algorithms", "envs"),
    "Look at what was learned": (
        "evaluate",
        "play",
        "imagine",
        "show",
        "list",
        "report",
        "compare",
        "export",
    ),
    "Keep runs in order": ("tag", "cleanup", "verify", "replay-crash", "index"),
    "Extend and check": ("new", "check", "smoke", "bench"),
}


class Grouped(typer.core.TyperGroup):
    """The list of commands in groups, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Every command is in one of the groups; a test sees to it."""
        for title, names in GROUPS.items():
            rows = [(name, self.commands[name].get_short_help_str(1_000)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=Grouped,
    help="Train, resume, evaluate and inspect reinforcement-learning experiments.",
    epilog="Start with: rl-lab train CartPole-v1:ppo",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings=SETTINGS,
)
check_app = typer.Typer(
    help="Prove what an environment, an algorithm or this machine can do.",
    rich_markup_mode=None,
    context_settings=SETTINGS,
)
index_app = typer.Typer(
    help="The index over all runs.", rich_markup_mode=None, context_settings=SETTINGS
)
new_app = typer.Typer(
    help="A working start for something of your own.",
    rich_markup_mode=None,
    context_settings=SETTINGS,
)
app.add_typer(run_commands.app)  # no name: its commands are commands of this one
app.add_typer(compare_commands.app)
app.add_typer(sweep.app)
app.add_typer(bench.app, name="bench")
app.add_typer(check_app, name="check")
app.add_typer(new_app, name="new")
app.add_typer(index_app, name="index")

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar=WORDS, help="an experiment such as CartPole-v1:ppo, and overrides"),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="a YAML file instead of SPEC")
]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option("--config-dir", metavar="DIR", help="a further folder of presets"),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE.py", help="a local file that registers classes"),
]
TotalTimesteps = Annotated[
    str | None,
    typer.Option(
        "--total-timesteps",
        "--total_timesteps",
        "--max-timesteps",
        metavar="N",
        help="environment steps of the run: 5000, 5e3, 5k, 1M",
    ),
]
Seeds = Annotated[
    str | None, typer.Option("--seed", metavar="SEEDS", help="1, 1,2,3 or 1-3: one run for each")
]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"{PROGRAM} {version('rl-lab')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Train, resume, evaluate and inspect reinforcement-learning experiments."""


@app.command(context_settings=SETTINGS)
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
    from rl_lab.cli import config, envs, train

    if list_envs:
        return envs.run(" ".join(words or []), config_dirs=config_dirs or [], as_json=as_json)
    request = train.Request(
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
        return config.run(request, as_json=as_json)
    return train.run(request, quiet=quiet, as_json=as_json, jobs=jobs, lines=progress_lines)


@app.command(context_settings=SETTINGS)
def config(
    words: Words = None,
    config_file: ConfigFile = None,
    config_dirs: ConfigDirs = None,
    plugins: Plugins = None,
    seed: Seeds = None,
    total_timesteps: TotalTimesteps = None,
    diff: Annotated[
        str | None, typer.Option(metavar="RUN", help="only what differs from this run")
    ] = None,
    options: Annotated[
        bool, typer.Option("--options", "--describe", help="every option, its type and meaning")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="with `migrate FILE`: put the result in its place")
    ] = False,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Print the whole configuration, and where each value comes from.

    `rl-lab config migrate FILE` prints an older file under the keys of today.
    """
    from rl_lab.cli import config, train

    if words and words[0] == "migrate":
        return config.migrate(words[1:], write=write)
    request = train.Request(
        words=words or [],
        config_file=config_file,
        config_dirs=config_dirs or [],
        plugins=plugins or [],
        seed=seed,
        total_timesteps=total_timesteps,
        trust=trust,
        runs_dir=runs_dir,
    )
    return config.run(request, diff_with=diff, options=options, as_json=as_json)


@app.command(context_settings=SETTINGS)
def evaluate(
    run: Run,
    episodes: Annotated[
        int, typer.Option(parser=count(1), metavar="N", help="episodes to play")
    ] = 100,
    sample: Annotated[bool, typer.Option("--sample", help="sample actions, not the mode")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="other episodes")] = None,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Play a trained policy on episodes that it has never seen."""
    from rl_lab.cli import evaluate

    return evaluate.run(
        run,
        episodes=episodes,
        sample=sample,
        seed=seed,
        trust=trust,
        runs_dir=runs_dir,
        as_json=as_json,
    )


@app.command(context_settings=SETTINGS)
def play(
    run: Run,
    episodes: Annotated[
        int, typer.Option(parser=count(1), metavar="N", help="episodes to play")
    ] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="sample actions, not the mode")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="other episodes")] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(parser=count(1), metavar="N", help="end episodes after this many steps"),
    ] = None,
    video: Annotated[
        Path | None, typer.Option(metavar="FILE.mp4|.gif", help="write a video, and open no window")
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Watch a trained policy, in a window or as a video: play @best --video best.mp4.

    Without a screen a video goes into the run's folder videos/. Ctrl-C ends it and keeps the video.
    """
    from rl_lab.cli import play

    return play.run(
        run,
        episodes=episodes,
        sample=sample,
        seed=seed,
        max_steps=max_steps,
        video=video,
        trust=trust,
        runs_dir=runs_dir,
        as_json=as_json,
    )


@app.command(context_settings=SETTINGS)
def imagine(
    run: Run,
    horizon: Annotated[int, typer.Option(min=1, help="steps to foresee")] = 15,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help=".mp4, .gif, .png or .json"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="another episode")] = None,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Film what a world model foresees, beside what happens: imagine @last --horizon 15."""
    from rl_lab.cli import imagine

    return imagine.run(
        run, horizon=horizon, output=output, seed=seed, runs_dir=runs_dir, as_json=as_json
    )


@app.command(context_settings=SETTINGS)
def show(run: Run = "@last", runs_dir: RunsDir = RUNS, as_json: Json = False) -> int:
    """Show one run: its settings, results and checkpoints."""
    from rl_lab.cli import show

    return show.run(run, runs_dir=runs_dir, as_json=as_json)


@app.command(context_settings=SETTINGS)
def envs(
    text: Annotated[str, typer.Argument(help="only ids that contain this")] = "",
    config_dirs: ConfigDirs = None,
    as_json: Json = False,
) -> int:
    """List the environments, and the presets of each."""
    from rl_lab.cli import envs

    return envs.run(text, config_dirs=config_dirs or [], as_json=as_json)


@app.command(context_settings=SETTINGS)
def algorithms(
    name: Annotated[str | None, typer.Argument(help="all options of this one")] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    """List the algorithms, or the options of one."""
    from rl_lab.cli import algorithms

    return algorithms.run(name, plugins=plugins or [], as_json=as_json)


@app.command(context_settings=SETTINGS)
def verify(
    run: Run,
    steps: Annotated[
        int | None,
        typer.Option(parser=count(1), metavar="N", help="environment steps to run again"),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option("--from", parser=count(1), metavar="STEP", help="begin with this checkpoint"),
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Repeat a run and name the first difference (exit code 0: none, 1: one, 2: not checked)."""
    from rl_lab.cli import verify

    return verify.run(
        run, steps=steps, start=start, trust=trust, runs_dir=runs_dir, as_json=as_json
    )


@app.command(name="replay-crash", context_settings=SETTINGS)
def replay_crash(
    dump: Annotated[
        str, typer.Argument(help="a folder RUN/crash/step_…, or a run: its newest dump")
    ],
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Reproduce a numerical crash from its dump (exit code 1: it fails again, 0: it does not)."""
    from rl_lab.cli import replay_crash

    return replay_crash.run(dump, trust=trust, runs_dir=runs_dir, as_json=as_json)


@check_app.command(name="env", context_settings=SETTINGS)
def check_env(id: str, plugins: Plugins = None, as_json: Json = False) -> int:
    """Check what an environment returns, and prove in a second process how exactly it resumes."""
    from rl_lab.cli import check

    return check.environment(id, plugins=plugins or [], as_json=as_json)


@check_app.command(name="algorithm", context_settings=SETTINGS)
def check_algorithm(name: str, plugins: Plugins = None, as_json: Json = False) -> int:
    """Prove that an interrupted run of an algorithm equals an uninterrupted one."""
    from rl_lab.cli import check

    return check.algorithm(name, plugins=plugins or [], as_json=as_json)


@check_app.command(name="install", context_settings=SETTINGS)
def check_install(runs_dir: RunsDir = RUNS, as_json: Json = False) -> int:
    """Show versions, compiler, device, and whether runs can be written."""
    from rl_lab.cli import check

    return check.install(runs_dir, as_json=as_json)


@app.command(context_settings=SETTINGS)
def smoke(
    text: Annotated[str, typer.Argument(help="only what has this in its name")] = "",
    timesteps: Annotated[
        int,
        typer.Option(parser=count(1), metavar="N", help="environment steps of each training"),
    ] = 2_000,
    only_presets: Annotated[bool, typer.Option("--presets", help="train the presets only")] = False,
    only_envs: Annotated[bool, typer.Option("--envs", help="step the environments only")] = False,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="at most this many of each; 0: all")
    ] = 0,
    config_dirs: ConfigDirs = None,
    as_json: Json = False,
) -> int:
    """Train every preset briefly, and step every environment at random: does it run here?"""
    from rl_lab.cli import smoke

    return smoke.run(
        text,
        timesteps=timesteps,
        presets=only_presets or not only_envs,
        envs=only_envs or not only_presets,
        limit=limit,
        config_dirs=config_dirs or [],
        as_json=as_json,
    )


@new_app.command(name="algorithm", context_settings=SETTINGS)
def new_algorithm(
    name: Annotated[str, typer.Argument(help="a small word such as my_algorithm")],
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="where to write it")
    ] = Path(),
    as_json: Json = False,
) -> int:
    """Write an algorithm that already trains and resumes, with its test and its preset."""
    from rl_lab.cli import new

    return new.algorithm(name, directory=directory, as_json=as_json)


@new_app.command(name="env", context_settings=SETTINGS)
def new_env(
    name: Annotated[str, typer.Argument(help="a small word such as my_env")],
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="where to write it")
    ] = Path(),
    as_json: Json = False,
) -> int:
    """Write an environment that can be trained on at once, with its test and its preset."""
    from rl_lab.cli import new

    return new.environment(name, directory=directory, as_json=as_json)


@new_app.callback()
def new_group() -> None:
    """A working start for something of your own."""


@index_app.command(name="rebuild", context_settings=SETTINGS)
def index_rebuild(runs_dir: RunsDir = RUNS, as_json: Json = False) -> int:
    """Make the index again from the run folders."""
    from rl_lab.cli import index

    return index.rebuild(runs_dir, as_json=as_json)


@index_app.callback()
def index_group() -> None:
    """The index over all runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code. Errors are lines on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if debug and words[0] != "train":  # the others have nothing else to do with it
        words.remove("--debug")
    if words in ([], ["bench"], ["check"], ["index"], ["new"]):
        words.append("--help")
    try:
        with prints_to_stderr() if "--json" in words else nullcontext():
            return app(words, prog_name=PROGRAM, standalone_mode=False) or 0
    except UserError as error:
        return _fail(_explained(error, debug), 2, debug)
    except typer.TyperException as error:  # a wrong command, option or argument
        return _fail(error.format_message() + spellings.hint(words), 2, debug)
    except RunError as error:
        return _fail(_explained(error, debug), 1, debug)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130, debug)
    except BrokenPipeError:  # `rl-lab list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - a bug, ours or of the user's own code
        return _fail(_explained(error, debug), 1, debug)


def _explained(error: Exception, debug: bool) -> str:
    """The error in one line, and what was noted on the way: what is saved, where to read more."""
    from rl_lab.core.failure import located

    notes: list[str] = getattr(error, "__notes__", [])
    if isinstance(error, OSError) and error.errno in NO_DISK:
        where = f" {error.filename}" if error.filename else ""
        return "\n".join([f"cannot write{where}: {error.strerror}; {MAKE_ROOM}", *notes])
    hidden = not (debug or notes or isinstance(error, UserError | RunError))
    more = " (--debug shows the traceback)" if hidden else ""
    return "\n".join([located(error) + more, *notes])


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    for line in message.splitlines():
        typer.echo(f"error: {line}", err=True)
    return code
