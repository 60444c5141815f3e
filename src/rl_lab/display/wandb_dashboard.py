"""A dashboard on Weights & Biases: a section for each kind of metric, over environment steps.

It is one saved view of a project, always under the same name: made once, then left as its users
have arranged it, unless `--overwrite` is given.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.display.metric_style import Display
from rl_lab.display.wandb import STEP_AXIS, choose_mode

TITLE = "RL Lab"
VIEW = "rllabdashboard"  # of all projects, in the address of the view
SECTIONS = {
    "Evaluation": "eval/",
    "Collected episodes": "collect/",
    "Learning": "train/",
    "Controller": "controller/",
    "Time": "time/",
    "Machine": "sys/",
}
OPEN = ("Evaluation", "Collected episodes", "Learning")
COLUMNS = 3
INSTALL = "this needs wandb-workspaces: pip install 'rl-lab[wandb]'"


@dataclass(frozen=True)
class Saved:
    """What came of it."""

    address: str
    outcome: str  # created | left as it is | overwritten


def make_dashboard(entity: str, project: str, display: Display, *, select_latest: bool) -> Any:
    """The dashboard as the object that the W&B library saves; nothing is sent.

    With `select_latest` its panels show the newest run of the project only, whichever that is.
    """
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise UserError(INSTALL) from error
    sections = []
    for title, prefix in SECTIONS.items():
        names = [key for key in display.styles if key.startswith(prefix)]
        single = [key for key in names if "*" not in key and "?" not in key]
        panels = [
            reports.LinePlot(title=_title(key, display), x=STEP_AXIS, y=[key]) for key in single
        ]
        others = reports.LinePlot(
            title=f"other {prefix}*", x=STEP_AXIS, metric_regex=_others(prefix, single)
        )
        sections.append(
            workspaces.Section(
                name=title,
                panels=[*panels, others],
                is_open=title in OPEN,
                layout_settings=workspaces.SectionLayoutSettings(columns=COLUMNS, rows=2),
            )
        )
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=TITLE,
        sections=sections,
        settings=workspaces.WorkspaceSettings(
            x_axis=STEP_AXIS, max_runs=1 if select_latest else 10
        ),
    )


def to_json(dashboard: Any) -> str:
    """What would be sent."""
    spec = dashboard._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    tree = {
        "entity": dashboard.entity,
        "project": dashboard.project,
        "name": dashboard.name,
        "view": VIEW,
        "spec": json.loads(spec),
    }
    return json.dumps(tree, indent=2)


def save_dashboard(dashboard: Any, *, overwrite: bool) -> Saved:
    """Create the view; one that is there stays as it is, unless it is to be overwritten."""
    require_login(os.environ)
    from wandb_workspaces.workspaces import internal

    dashboard._internal_name = internal._url_query_str_to_internal_name(VIEW)
    where = f"{dashboard.entity}/{dashboard.project}"
    try:
        known = _known(dashboard.entity, dashboard.project)
        if known is not None and not overwrite:
            return Saved(dashboard.url, "left as it is")
        dashboard._internal_id = "" if known is None else str(known["id"])
        dashboard.save()
    except UserError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"W&B does not take the dashboard of {where}: {why}") from error
    return Saved(dashboard.url, "created" if known is None else "overwritten")


def require_login(variables: Mapping[str, str]) -> None:
    """Refuse in a second what W&B would refuse after a time-out."""
    mode, why = choose_mode("auto", variables, Path.home())
    if mode != "online":
        raise UserError(
            f"W&B is {mode} here ({why}): run `wandb login` or set WANDB_API_KEY, or look at the "
            "dashboard with --dry-run"
        )


def _known(entity: str, project: str) -> dict[str, Any] | None:
    """The view as it is on the server; None if there is none."""
    from wandb_workspaces.workspaces import internal

    try:
        found: dict[str, Any] = internal.get_view_dict(entity, project, VIEW)
    except ValueError as error:
        if str(error).startswith("Workspace"):  # the project is there, the view is not
            return None
        raise UserError(f"W&B: {' '.join(str(error).split())}") from error
    return found


def _title(key: str, display: Display) -> str:
    unit = display[key].unit
    return f"{key} ({unit})" if unit else key


def _others(prefix: str, single: list[str]) -> str:
    """A pattern of what has no panel of its own."""
    own = "|".join(key.removeprefix(prefix) for key in single)
    return f"^{prefix}(?!(?:{own})$).*" if own else f"^{prefix}.*"
