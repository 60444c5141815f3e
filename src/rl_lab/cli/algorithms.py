"""`rl-lab algorithms`: what can learn, and with which options."""

import inspect
from typing import Annotated

import typer

from rl_lab.cli.arguments import Json, Plugins
from rl_lab.cli.config import print_options
from rl_lab.cli.printing import say, say_json, table, warn
from rl_lab.core.errors import UserError


def algorithms(
    name: Annotated[str | None, typer.Argument(help="all options of this one")] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    """List the algorithms, or the options of one."""
    from rl_lab.config import catalog
    from rl_lab.config.tree import describe
    from rl_lab.core import registry
    from rl_lab.core.checker import config_class

    for file in plugins or []:
        catalog.load_plugin(str(file))
    if name is None:
        rows = []
        for each in registry.names("workflow"):
            try:
                found = registry.get("workflow", each)
            except UserError as error:  # a broken plug-in: the others are still worth a list
                warn(f"warning: {error}")
                continue
            actions = getattr(found, "actions", "both")
            rows.append({"name": each, "actions": actions, "description": _summary(found)})
        if as_json:
            say_json(rows)
        else:
            say(table(rows, ["name", "actions", "description"]))
        return 0
    chosen = registry.get("workflow", name)
    config = config_class(chosen)
    options = describe(config, "algorithm.") if config else []
    if not as_json:
        actions = getattr(chosen, "actions", "both")
        kinds = "discrete and continuous" if actions == "both" else actions
        say(f"{name}: {_summary(chosen)} For {kinds} actions.\n")
    if options or as_json:
        print_options(options, as_json)
    else:
        say("It declares no options: every key of its `algorithm:` block reaches it as written.")
    return 0


def _summary(item: type) -> str:
    """The first line of a class's own docstring."""
    return (inspect.cleandoc(item.__doc__ or "").splitlines() or [""])[0]
