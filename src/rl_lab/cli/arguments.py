"""Arguments and options that many commands share."""

from pathlib import Path
from typing import Annotated

import typer

SETTINGS = {"help_option_names": ["-h", "--help"]}
RUNS = Path("runs")

Run = Annotated[
    str, typer.Argument(help="a run: @last, @best, an id or a path; add :best, :last or :STEP")
]
RunsDir = Annotated[
    Path, typer.Option("--runs-dir", envvar="RL_LAB_RUNS", help="the folder of all runs")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="import code that a run of somebody else names")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
