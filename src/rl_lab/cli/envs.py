"""`rl-lab envs`: the environments that can be trained on here, and their presets."""

from typing import Annotated

import typer

from rl_lab.cli.arguments import ConfigDirs, Json
from rl_lab.cli.printing import say, say_json, table
from rl_lab.core.errors import UserError


def envs(
    text: Annotated[str, typer.Argument(help="only ids that contain this")] = "",
    config_dirs: ConfigDirs = None,
    as_json: Json = False,
) -> int:
    """List the environments, and the presets of each."""
    from rl_lab.config.presets import list_presets, split_spec
    from rl_lab.envs.make import families, list_environments, needed_extra, optimum

    presets: dict[str, list[str]] = {}
    for spec in list_presets(config_dirs or []):
        id, variant = split_spec(spec)
        if variant is not None:
            presets.setdefault(id, []).append(variant)
    ids = list_environments(text)
    ids += [id for id in presets if id not in ids and text.lower() in id.lower()]
    if not ids:
        missing = [start for start, _, installed in families() if not installed]
        unread = f"; not installed, so not searched: {', '.join(missing)}" if missing else ""
        raise UserError(f"no environment has '{text}' in its id: `rl-lab envs` lists all{unread}")
    found = [
        {
            "id": id,
            "presets": presets.get(id, []),
            "extra": needed_extra(id),
            "optimum": optimum(id),
        }
        for id in sorted(ids)
    ]
    if as_json:
        say_json(found)
        return 0
    rows = [
        {
            "id": row["id"],
            "needs": f"rl-lab[{row['extra']}]" if row["extra"] else "",
            "optimum": "" if row["optimum"] is None else f"{row['optimum']:.3g}",
            "presets": ", ".join(presets.get(str(row["id"]), [])),
        }
        for row in found
    ]
    known = ["optimum"] if any(row["optimum"] for row in rows) else []
    say(table(rows, ["id", "needs", *known, "presets"]))
    if not text:
        say("\nneeds: pip install 'rl-lab[NAME]' brings what those environments are made of")
        for start, package, installed in families():
            quoted = package if package.startswith("-") else f"'{package}'"
            where = f"rl-lab envs {start.split(', ')[0]}" if installed else f"pip install {quoted}"
            say(f"more: {start} environments ({where})")
    return 0
