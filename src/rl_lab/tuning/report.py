"""What a sweep found: a table, the best settings as a preset, which keys mattered, two pictures."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rl_lab.records.commit import write_atomically
from rl_lab.tuning.space import Choice, Dimension
from rl_lab.tuning.sweep_file import Sweep
from rl_lab.tuning.tuner import Suggestion, Tuner, best

Result = tuple[Suggestion, str, float | None]
FEW = 4  # results from which nothing is said about what mattered


def write_report(sweep: Sweep, tuner: Tuner, folder: Path) -> dict[str, Any]:
    """report.md, best.yaml and pictures in the sweep's folder; the same as data."""
    results = tuner.results()
    winner: Result | None = best(results, sweep.objective.direction)
    importance = importances(tuner)
    facts: dict[str, Any] = {
        "name": sweep.name,
        "objective": sweep.objective.metric,
        "trials": [
            {"trial": each.number, "state": state, "value": value, "settings": each.settings}
            for each, state, value in ranked(results, sweep.objective.direction)
        ],
        "best": None,
        "importance": importance,
    }
    if winner is not None:
        preset = folder / "best.yaml"
        write_atomically(preset, best_preset(sweep, winner[0].settings).encode())
        facts["best"] = {"trial": winner[0].number, "value": winner[2], "config": str(preset)}
    pictures = _pictures(sweep, results, importance, folder)
    write_atomically(folder / "report.md", _markdown(sweep, facts, pictures).encode())
    return facts


def ranked(results: Sequence[Result], direction: str) -> list[Result]:
    """The best first; those without a value last."""
    sign = -1 if direction == "max" else 1
    worst = float("inf")
    return sorted(
        results, key=lambda each: (worst if each[2] is None else sign * each[2], each[0].number)
    )


def importances(tuner: Tuner) -> dict[str, float]:
    """How much of the differences each key explains, by PED-ANOVA; empty where nothing differs."""
    values = {value for _, _, value in tuner.results() if value is not None}
    if len(values) < FEW or len(tuner.space.dimensions) < 2:
        return {}
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    found = get_param_importances(tuner.study, evaluator=PedAnovaImportanceEvaluator())
    return {key: float(share) for key, share in found.items()}


def best_preset(sweep: Sweep, settings: Mapping[str, Any]) -> str:
    """The settings as a file for `rl-lab train --config`."""
    from rl_lab.orchestration.compose import compose
    from rl_lab.tuning.driver import words

    is_file = sweep.base_config.endswith((".yaml", ".yml"))
    composed = compose(
        None if is_file else sweep.base_config,
        words(sweep, settings),
        config_file=Path(sweep.base_config) if is_file else None,
    )
    tree = dict(composed.tree)
    tree["experiment"] = {
        key: value
        for key, value in (tree.get("experiment") or {}).items()
        if key not in ("tags", "seed", "name")
    }
    head = f"# The best of sweep '{sweep.name}' by {sweep.objective.metric}.\n"
    return head + str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def _markdown(sweep: Sweep, facts: Mapping[str, Any], pictures: Sequence[str]) -> str:
    keys = [*sweep.space.dimensions, *sweep.space.derived]
    seeds = ", ".join(str(each) for each in sweep.seeds)
    lines = [
        f"# Sweep {sweep.name}",
        "",
        f"{sweep.base_config}, {sweep.method}, seeds {seeds}; the {sweep.objective.across} over "
        f"seeds of the {sweep.objective.of} {sweep.objective.metric} "
        f"({'largest' if sweep.objective.direction == 'max' else 'smallest'} is best).",
        "",
        "| trial | value | " + " | ".join(keys) + " |",
        "|---" * (len(keys) + 2) + "|",
    ]
    for row in facts["trials"]:
        value = row["state"] if row["value"] is None else f"{row['value']:,.6g}"
        cells = [_cell(row["settings"].get(key)) for key in keys]
        lines.append(f"| {row['trial']} | {value} | " + " | ".join(cells) + " |")
    if facts["best"] is not None:
        lines += ["", f"The best as a preset: `rl-lab train --config {facts['best']['config']}`"]
    if facts["importance"]:
        shares = (f"{key} {share:.0%}" for key, share in facts["importance"].items())
        lines += ["", f"What mattered (PED-ANOVA): {', '.join(shares)}."]
    lines += [f"\n![{name}]({name}.png)" for name in pictures]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value).strip('"')


def _pictures(
    sweep: Sweep, results: Sequence[Result], importance: Mapping[str, float], folder: Path
) -> list[str]:
    """Parallel coordinates, and the importances; none without matplotlib."""
    told = [(each.settings, value) for each, _, value in results if value is not None]
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    drawn = []
    if len(told) > 1:
        figure = Figure(figsize=(2.0 * (len(sweep.space.dimensions) + 1) + 1, 4), layout="tight")
        _parallel(figure, sweep, told)
        drawn.append(_saved(figure, folder, "parallel"))
    if importance:
        figure = Figure(figsize=(6, 0.5 * len(importance) + 1), layout="tight")
        axes = figure.subplots()
        axes.barh(list(importance)[::-1], list(importance.values())[::-1])
        axes.set(title="share of the differences", xlim=(0, 1))
        drawn.append(_saved(figure, folder, "importance"))
    return drawn


def _parallel(figure: Any, sweep: Sweep, told: Sequence[tuple[Mapping[str, Any], float]]) -> None:
    """A line for each trial through its values; the brighter, the better."""
    import matplotlib as mpl

    axes = figure.subplots()
    keys = list(sweep.space.dimensions)
    values = np.array([value for _, value in told])
    low, high = values.min(), values.max()
    heights = (values - low) / ((high - low) or 1.0)
    for (settings, _), height in sorted(
        zip(told, heights, strict=True), key=lambda pair: float(pair[1])
    ):
        places = [_place(sweep.space.dimensions[key], settings[key]) for key in keys]
        good = height if sweep.objective.direction == "max" else 1 - height
        colour = mpl.colormaps["viridis"](float(good))
        axes.plot([*places, height], color=colour, linewidth=1.5, alpha=0.8)
    axes.set_xticks(range(len(keys) + 1), [*keys, sweep.objective.metric], rotation=15, ha="right")
    axes.set_yticks([])
    axes.set_frame_on(False)
    for index, key in enumerate(keys):
        dimension = sweep.space.dimensions[key]
        ends = (
            [(_place(dimension, each), each) for each in dimension.values]
            if isinstance(dimension, Choice)
            else [(0.0, dimension.low), (1.0, dimension.high)]
        )
        for place, label in ends:
            axes.text(index, place, f" {_cell(label)}", fontsize=8, va="center")
        axes.axvline(index, color="0.8", linewidth=0.8, zorder=0)
    for place, label in ((0.0, low), (1.0, high)):
        axes.text(len(keys), place, f" {label:,.4g}", fontsize=8, va="center")


def _place(dimension: Dimension, value: Any) -> float:
    """Where a value stands between the bottom and the top of its line."""
    if isinstance(dimension, Choice):
        return dimension.values.index(value) / max(len(dimension.values) - 1, 1)
    low, high = dimension.low, dimension.high
    if dimension.log:
        low, high, value = np.log(low), np.log(high), np.log(value)
    return float((value - low) / ((high - low) or 1.0))


def _saved(figure: Any, folder: Path, name: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    write_atomically(folder / f"{name}.png", data.getvalue())
    return name
