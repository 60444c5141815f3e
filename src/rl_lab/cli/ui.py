"""`rl-lab ui`: the runs of a folder as a page in a browser."""

from importlib.util import find_spec
from typing import Annotated

import typer

from rl_lab.cli.arguments import RUNS, RunsDir
from rl_lab.cli.printing import say, warn
from rl_lab.core.errors import UserError


def ui(
    where: Annotated[
        str | None,
        typer.Argument(metavar="RUN|FOLDER", help="a run to begin with, or a folder of runs"),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any that is free")] = 7860,
    host: Annotated[
        str, typer.Option(help="the address to listen on; 0.0.0.0: all of this machine")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(envvar="RL_LAB_UI_TOKEN", help="instead of a random one for each start"),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="a further name by which this machine is reached"),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="open a browser, if there is a screen")
    ] = True,
    runs_dir: RunsDir = RUNS,
) -> int:
    """Show the runs of a folder as a page: live curves, comparisons, sweeps, recorded episodes.

    The page needs the token of the printed address. Nothing is loaded from elsewhere. Ctrl-C ends.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UserError(f"the page needs {missing[0]}: pip install 'rl-lab[ui]'")
    from rl_lab.ui.server import LOOPBACK, folder_and_page, open_browser, prepare

    root, page = folder_and_page(where, runs_dir)
    served = prepare(root, host=host, port=port, token=token, names=names, page=page)
    if host not in LOOPBACK:
        warn(
            f"warning: {host} can be reached from other machines, without encryption: whoever has "
            "the token can read the runs, tag and stop them"
        )
    say(f"runs of {root}: {served.url}")
    say("Ctrl-C ends")
    if browser:
        open_browser(served.url)
    served.run()
    return 0
