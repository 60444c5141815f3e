"""What a sweep found: a table, the best settings as a preset, which keys mattered, two pictures."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rl_lab.records.commit import write_atomically
from rl_lab.tuning.jobs import interval
from rl_lab.tuning.space import Choice, Dimension, short_names
from rl_lab.tuning.sweep_file import Sweep
from rl_lab.tuning.tuner import Suggestion, Tuner, best

Result = tuple[Suggestion, str, float | None]
FEW = 8  # different results: with fewer, nothing is said about what mattered


def write_report(sweep: Sweep, tuner: Tuner, folder: Path) -> dict[str, Any]:
    """report.md, best.yaml and pictures in the sweep's folder; the same as data."""
    results = tuner.results()
    winner: Result | None = best(results, sweep.objective.direction)
    importance = importances(tuner)
    facts: dict[str, Any] = {
        "name": sweep.name,
        "objective": sweep.objective.metric,
        "trials": [
            {
                "trial": each.number,
                "state": state,
                "value": value,
                "seeds": (seeds := tuner.seeds(each)),
                "interval": interval(seeds, sweep.objective),
                "settings": each.settings,
            }
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
    """How much each key sets the better half apart, by PED-ANOVA; empty if too few are known."""
    values = {value for _, _, value in tuner.results() if value is not None}
    if len(values) < FEW or len(tuner.space.dimensions) < 2:
        return {}
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    # The better half, not Optuna's best tenth: that would be one or two trials of a small sweep.
    evaluator = PedAnovaImportanceEvaluator(target_quantile=0.5)
    found = get_param_importances(tuner.study, evaluator=evaluator)
    return {key: float(share) for key, share in found.items()}


def best_preset(sweep: Sweep, settings: Mapping[str, Any]) -> str:
    """The settings as a file for `rl-lab train --config`."""
    from rl_lab.tuning.driver import configuration

    tree = dict(configuration(sweep, settings).tree)
    experiment = tree.pop("experiment", None) or {}
    if kept := {key: each for key, each in experiment.items() if key not in ("seed", "name")}:
        tree["experiment"] = kept
    head = f"# The best of sweep '{sweep.name}' by {sweep.objective.metric}.\n"
    return head + str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def _markdown(sweep: Sweep, facts: Mapping[str, Any], pictures: Sequence[str]) -> str:
    names = short_names([*sweep.space.dimensions, *sweep.space.derived])
    seeds = ", ".join(str(each) for each in sweep.seeds)
    head = ["trial", "value", "95 % interval", *names.values()]
    lines = [
        f"# Sweep {sweep.name}",
        "",
        f"{sweep.base_config}, {sweep.method}, seeds {seeds}; the {sweep.objective.across} over "
        f"seeds of the {sweep.objective.of} {sweep.objective.metric} "
        f"({'largest' if sweep.objective.direction == 'max' else 'smallest'} is best), with its "
        "bootstrap interval over seeds.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for row in facts["trials"]:
        value = row["state"] if row["value"] is None else f"{row['value']:,.4g}"
        span = "" if row["interval"] is None else " to ".join(f"{x:,.4g}" for x in row["interval"])
        cells = [
            str(row["trial"]),
            value,
            span,
            *(_cell(row["settings"].get(key)) for key in names),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if facts["best"] is not None:
        lines += ["", f"The best as a preset: `rl-lab train --config {facts['best']['config']}`"]
    if facts["importance"]:
        shares = ", ".join(f"{key} {share:.0%}" for key, share in facts["importance"].items())
        told = sum(row["value"] is not None for row in facts["trials"])
        lines += ["", f"What sets the better half of {told} trials apart (PED-ANOVA): {shares}."]
    lines += [f"\n![{name}]({name}.png)" for name in pictures]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value).strip('"')


def _pictures(
    sweep: Sweep, results: Sequence[Result], importance: Mapping[str, float], folder: Path
) -> list[str]:
    """Parallel coordinates, and the importances; none without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    drawn = []
    if sum(value is not None for _, _, value in results) > 1:
        width = 1.6 * (len(sweep.space.dimensions) + 1)
        figure = Figure(figsize=(max(width, 5.0), 4), layout="tight")
        _parallel(figure.subplots(), sweep, results)
        drawn.append(_saved(figure, folder, "parallel"))
    if importance:
        figure = Figure(figsize=(6, 0.4 * len(importance) + 1), layout="tight")
        axes = figure.subplots()
        names = short_names(importance)
        bars = axes.barh([names[key] for key in importance][::-1], list(importance.values())[::-1])
        axes.bar_label(bars, fmt="{:.0%}", padding=3)
        room = 1.2 * max(importance.values())  # for the numbers beside the bars
        axes.set(title="what sets the better half apart", xlim=(0, room), xticks=[])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        drawn.append(_saved(figure, folder, "importance"))
    return drawn


def _parallel(axes: Any, sweep: Sweep, results: Sequence[Result]) -> None:
    """A line for each trial through its values; the darker, the better. Grey: without a value."""
    import matplotlib as mpl

    dimensions = sweep.space.dimensions
    names = short_names(dimensions)
    told = [value for _, _, value in results if value is not None]
    low, high = min(told), max(told)
    for trial, _, value in reversed(ranked(results, sweep.objective.direction)):  # the best on top
        # Beside each other where many share a choice: by its number, so always at the same place.
        aside = 0.03 * ((trial.number * 0.618) % 1 - 0.5)
        places = [_place(dimensions[key], trial.settings[key]) + aside for key in dimensions]
        if value is None:
            axes.plot(places, color="0.8", linewidth=0.8, zorder=0)
            continue
        height = (value - low) / ((high - low) or 1.0)
        good = height if sweep.objective.direction == "max" else 1 - height
        colour = mpl.colormaps["viridis_r"](float(good))
        axes.plot([*places, height], color=colour, linewidth=1 + 1.5 * good, alpha=0.9)
    axes.set_xticks(range(len(names) + 1), [*names.values(), sweep.objective.metric])
    axes.tick_params(axis="x", length=0, pad=8)
    axes.set_yticks([])
    axes.set_frame_on(False)
    ends = [*map(_labels, dimensions.values()), [(0.0, f"{low:,.4g}"), (1.0, f"{high:,.4g}")]]
    for index, labels in enumerate(ends):
        axes.axvline(index, color="0.7", linewidth=0.8, zorder=1)
        for place, label in labels:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
            axes.text(index + 0.04, place, label, fontsize=8, va="center", bbox=box, zorder=9)


def _labels(dimension: Dimension) -> list[tuple[float, str]]:
    """What stands along a line, and where: all choices, or both ends of a range."""
    values = dimension.values if isinstance(dimension, Choice) else (dimension.low, dimension.high)
    return [(_place(dimension, each), _cell(each)) for each in values]


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
