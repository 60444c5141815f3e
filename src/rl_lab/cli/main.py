"""The command line: which commands there are, errors and exit codes. A file owns each command.

These files import nothing heavy at the top, so that `rl-lab --help` answers at once.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer
import typer.core

from rl_lab.cli import bench, check, dataset, index, new, spellings
from rl_lab.cli.algorithms import algorithms
from rl_lab.cli.arguments import SETTINGS
from rl_lab.cli.cleanup import cleanup
from rl_lab.cli.compare import compare
from rl_lab.cli.config import config
from rl_lab.cli.demo import demo
from rl_lab.cli.envs import envs
from rl_lab.cli.evaluate import evaluate
from rl_lab.cli.export import export
from rl_lab.cli.export_policy import export_policy
from rl_lab.cli.imagine import imagine
from rl_lab.cli.list_runs import list_runs
from rl_lab.cli.play import play
from rl_lab.cli.printing import prints_to_stderr
from rl_lab.cli.publish import publish
from rl_lab.cli.record import record
from rl_lab.cli.replay_crash import replay_crash
from rl_lab.cli.report import report
from rl_lab.cli.show import show
from rl_lab.cli.smoke import smoke
from rl_lab.cli.sweep import sweep
from rl_lab.cli.tag import tag
from rl_lab.cli.train import train
from rl_lab.cli.ui import ui
from rl_lab.cli.verify import verify
from rl_lab.cli.wandb_dashboard import wandb_dashboard
from rl_lab.core.errors import RunError, UserError

PROGRAM = "rl-lab"
NO_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
MAKE_ROOM = "make room, or choose another place (of runs: --runs-dir)"

# The commands as `rl-lab --help` lists them; an app has subcommands.
GROUPS: dict[str, dict[str, Callable[..., int] | typer.Typer]] = {
    "Train": {
        "demo": demo,
        "train": train,
        "sweep": sweep,
        "config": config,
        "algorithms": algorithms,
        "envs": envs,
    },
    "Look at what was learned": {
        "ui": ui,
        "evaluate": evaluate,
        "play": play,
        "record": record,
        "imagine": imagine,
        "show": show,
        "list": list_runs,
        "report": report,
        "compare": compare,
        "export": export,
    },
    "Learn from data": {"dataset": dataset.app},
    "Publish": {
        "publish": publish,
        "export-policy": export_policy,
        "wandb-dashboard": wandb_dashboard,
    },
    "Keep runs in order": {
        "tag": tag,
        "cleanup": cleanup,
        "verify": verify,
        "replay-crash": replay_crash,
        "index": index.app,
    },
    "Extend and check": {"new": new.app, "check": check.app, "smoke": smoke, "bench": bench.app},
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
for commands in GROUPS.values():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name=name, context_settings=SETTINGS)(command)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"{PROGRAM} {version('rl-lab')}")
        raise typer.Exit


@app.callback()
def rl_lab(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Train, resume, evaluate and inspect reinforcement-learning experiments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code. Errors are lines on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if debug and words[0] != "train":  # the others have nothing else to do with it
        words.remove("--debug")
    if words in ([], ["bench"], ["check"], ["dataset"], ["index"], ["new"]):
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
