"""What a sweep found: a table, the best settings as a preset, which keys mattered, two pictures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rl_lab.display import svg
from rl_lab.records.commit import write_atomically
from rl_lab.tuning.jobs import interval
from rl_lab.tuning.space import Choice, Dimension, short_names
from rl_lab.tuning.sweep_file import Sweep
from rl_lab.tuning.tuner import Suggestion, Tuner, best

Result = tuple[Suggestion, str, float | None]
AXIS_GAP, AXIS_HEIGHT = 130.0, 260.0  # of parallel coordinates
BAR, BAR_LENGTH = 28.0, 320.0
FEW = 8  # different results: with fewer, importances are not reported


def write_report(sweep: Sweep, tuner: Tuner, folder: Path) -> dict[str, Any]:
    """report.md, best.yaml and pictures in the sweep's folder; the same as data."""
    facts = sweep_facts(sweep, tuner)
    results = tuner.results()
    winner: Result | None = best(results, sweep.objective.direction)
    if winner is not None:
        preset = folder / "best.yaml"
        write_atomically(preset, best_preset(sweep, winner[0].settings).encode())
        facts["best"] = {"trial": winner[0].number, "value": winner[2], "config": str(preset)}
    pictures = _pictures(sweep, results, facts["importance"], folder)
    write_atomically(folder / "report.md", _markdown(sweep, facts, pictures).encode())
    return facts


def sweep_facts(sweep: Sweep, tuner: Tuner) -> dict[str, Any]:
    """The trials, the best first, and which keys mattered."""
    return {
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
            for each, state, value in ranked(tuner.results(), sweep.objective.direction)
        ],
        "best": None,
        "importance": importances(tuner),
    }


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
        scored = sum(row["value"] is not None for row in facts["trials"])
        lines += ["", f"What sets the better half of {scored} trials apart (PED-ANOVA): {shares}."]
    lines += [f"\n![{name}]({name}.svg)" for name in pictures]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value).strip('"')


def _pictures(
    sweep: Sweep, results: Sequence[Result], importance: Mapping[str, float], folder: Path
) -> list[str]:
    """Parallel coordinates, and the importances, where there is something to show."""
    drawn = {}
    if sum(value is not None for _, _, value in results) > 1:
        drawn["parallel"] = _parallel(sweep, results)
    if importance:
        drawn["importance"] = _bars(importance)
    for name, picture in drawn.items():
        write_atomically(folder / f"{name}.svg", picture.encode())
    return list(drawn)


def _parallel(sweep: Sweep, results: Sequence[Result]) -> str:
    """A line for each trial through its values; the darker, the better. Gray: without a value."""
    dimensions = sweep.space.dimensions
    names = [*short_names(dimensions).values(), sweep.objective.metric]
    scored = [value for _, _, value in results if value is not None]
    low, high = min(scored), max(scored)
    gap = max(AXIS_GAP, *(svg.width_of(name, bold=True) + 24 for name in names))
    left, width = gap / 2, gap * len(names)
    top, bottom = 64.0, 64.0 + AXIS_HEIGHT

    def polyline(places: Sequence[float], color: str, thickness: float) -> str:
        xs = [left + gap * index for index in range(len(places))]
        ys = [bottom - (bottom - top) * place for place in places]
        return svg.element(
            "polyline",
            points=svg.points(xs, ys),
            fill="none",
            stroke=color,
            stroke_width=thickness,
            stroke_linejoin="round",
        )

    lines: list[str] = []
    for trial, _, value in reversed(ranked(results, sweep.objective.direction)):  # the best on top
        # Beside each other where many share a choice: by its number, so always at the same place.
        aside = 0.03 * ((trial.number * 0.618) % 1 - 0.5)
        places = [_place(dimensions[key], trial.settings[key]) + aside for key in dimensions]
        if value is None:
            lines.insert(0, polyline(places, "#d0d7de", 1.0))
            continue
        height = (value - low) / ((high - low) or 1.0)
        good = height if sweep.objective.direction == "max" else 1 - height
        color = svg.blend(good, "#a5d8ff", "#0b3d91")
        lines.append(polyline([*places, height], color, 1 + 2 * good))
    ends = [*map(_labels, dimensions.values()), [(0.0, f"{low:,.4g}"), (1.0, f"{high:,.4g}")]]
    axes = []
    for index, (name, labels) in enumerate(zip(names, ends, strict=True)):
        x = left + gap * index
        axes.append(svg.element("line", x1=x, x2=x, y1=top, y2=bottom, stroke=svg.GREY))
        axes.append(svg.text(x, bottom + 28, name, anchor="middle", bold=True))
        for place, label in labels:
            y = bottom - (bottom - top) * place
            axes.append(svg.element("line", x1=x - 3, x2=x + 3, y1=y, y2=y, stroke=svg.GREY))
            axes.append(svg.label(x + 7, y + 4, label, size=11))
    title = f"Sweep {sweep.name}: {len(scored)} trials, the darker the better"
    head = svg.text(16, 30, title, size=15, bold=True)
    width = max(width, 32 + svg.width_of(title, 15, bold=True))
    return svg.document(width, bottom + 48, title, [head, *lines, *axes])


def _bars(importance: Mapping[str, float]) -> str:
    """One bar for each key, the most important one first."""
    names = short_names(importance)
    title = "What sets the better half of the trials apart"
    left = 28 + max(svg.width_of(name) for name in names.values())
    largest = max(importance.values())
    parts = [svg.text(16, 30, title, size=15, bold=True)]
    for index, (key, share) in enumerate(importance.items()):
        y, length = 48.0 + BAR * index, BAR_LENGTH * share / (largest or 1.0)
        parts.append(svg.text(left - 8, y + 15, names[key], anchor="end"))
        parts.append(
            svg.element(
                "rect", x=left, y=y + 2, width=length, height=BAR - 8, rx=2, fill=svg.COLORS[0]
            )
        )
        parts.append(svg.text(left + length + 6, y + 15, f"{share:.0%}", fill=svg.GREY))
    width = max(left + BAR_LENGTH + 60, 32 + svg.width_of(title, 15, bold=True))
    return svg.document(width, 60 + BAR * len(importance), title, parts)


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
