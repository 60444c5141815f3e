"""Arguments and options that many commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_lab.core.counts import read_count

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
RUNS = Path("runs")


def count(least: int) -> Callable[[Any], int]:
    """The parser of an option that counts: 5000, 5e3 and 5k are the same number."""

    def parse(text: object) -> int:
        found = read_count(str(text))
        if found is None or found < least:
            raise typer.BadParameter(
                f"'{text}' must be a whole number, {least} or more: 5000, 5e3 or 5k"
            )
        return found

    return parse


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SPEC|KEY=VALUE", help="an experiment such as CartPole-v1:ppo, and overrides"
    ),
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
RUN_HELP = (
    "a run: @last, @best, @best:ENV, an id, a path of a run or of a checkpoint; "
    "add :best, :last or :STEP"
)
Run = Annotated[str, typer.Argument(help=RUN_HELP)]
RunsDir = Annotated[
    Path, typer.Option("--runs-dir", envvar="RL_LAB_RUNS", help="the folder of all runs")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="import code that a run of another user names")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
