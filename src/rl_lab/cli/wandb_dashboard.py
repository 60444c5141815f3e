"""`rl-lab wandb-dashboard`: a view of a W&B project with the lab's metrics in order."""

from typing import Annotated

import typer

from rl_lab.cli.arguments import Json
from rl_lab.cli.printing import say, say_json


def wandb_dashboard(
    entity: Annotated[str, typer.Option(metavar="NAME", help="user or team")],
    project: Annotated[str, typer.Option(metavar="NAME", help="a project with runs in it")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace the dashboard if it is there")
    ] = False,
    select_latest: Annotated[
        bool, typer.Option("--select-latest", help="its panels show the newest run only")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what would be sent, and send nothing")
    ] = False,
    as_json: Json = False,
) -> int:
    """Make a dashboard on Weights & Biases; one that is there stays as it is."""
    from rl_lab.display.metric_style import load_display
    from rl_lab.display.wandb_dashboard import make_dashboard, save_dashboard, to_json

    made = make_dashboard(entity, project, load_display(), select_latest=select_latest)
    if dry_run:
        say(to_json(made))
        return 0
    saved = save_dashboard(made, overwrite=overwrite)
    if as_json:
        say_json(vars(saved))
    else:
        hint = " (--overwrite replaces it)" if saved.outcome == "left as it is" else ""
        say(f"{saved.outcome}: {saved.address}{hint}")
    return 0
