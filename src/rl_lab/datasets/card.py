"""The data card: what a dataset is, where it came from and how to use it, for people."""

from collections.abc import Mapping
from typing import Any


def card(name: str, about: Mapping[str, Any]) -> str:
    """README.md of a dataset, from its description alone."""
    returns, lengths = about["returns"], about["lengths"]
    quantiles = returns["quantiles"]
    lines = [
        f"# {about.get('name', name)}",
        "",
        f"{about['episodes']:,} episodes of {about['environment']} with "
        f"{about['transitions']:,} transitions, recorded with RL Lab.",
        "",
        f"* Behavior: {about.get('behavior', 'not known')}",
        f"* Episodes that ended (the others were cut off): {about['terminated_episodes']:,}",
        f"* Returns: {returns['mean']:.4g} ± {returns['std']:.4g}; lengths "
        f"{lengths['mean']:.4g} ({lengths['min']:,} to {lengths['max']:,})",
        f"* Actions: {_actions(about)}, in the environment's own units",
        "",
        "| quantile of returns | " + " | ".join(f"{q} %" for q in quantiles) + " |",
        "|---|" + "---|" * len(quantiles),
        "| | " + " | ".join(f"{each:.4g}" for each in quantiles.values()) + " |",
        "",
        "| column | shape | type |",
        "|---|---|---|",
    ]
    for column, each in about["columns"].items():
        lines.append(f"| `{column}` | {each['shape']} | {each['dtype']} |")
    lines += ["", "## Where it came from", ""]
    lines += [f"* {key}: {_shown(value)}" for key, value in about.get("provenance", {}).items()]
    known = about.get("references") or {}
    if known:
        lines += ["", "## Reference returns", ""]
        named = ((name, known.get(name)) for name in ("random", "expert"))
        lines += [f"* {name} play: {value:.4g}" for name, value in named if value is not None]
        lines += ["", "A normalized return is 100 · (return − random) / (expert − random)."]
    lines += [
        "",
        "## How to use it",
        "",
        "```yaml",
        "buffers:",
        f"  data: {{type: offline, path: {about.get('name', name)}}}",
        "training:",
        "  phases:",
        "    - {type: offline, buffer: data, duration_updates: 10_000, hooks: [update]}",
        "```",
        "",
        "In Python, `np.load(file)` reads any `.npz` file; columns are [T, 1, …]. `cut` is True",
        "where an episode ends; `final/obs` has the frames in which they ended, in their order.",
        "`rl-lab dataset convert` brings it into formats of Minari, LeRobot, or plain `.npz`.",
        "",
    ]
    return "\n".join(lines)


def _actions(about: Mapping[str, Any]) -> str:
    told = about["actions"]
    if told["kind"] == "box":
        return f"a Box from {told['low']} to {told['high']}"
    return (
        f"{told['n']} discrete ones" if told["kind"] == "discrete" else f"discrete, {told['nvec']}"
    )


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return str(value)
