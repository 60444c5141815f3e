"""`rl-lab show`: one run at a glance."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_lab.cli.arguments import RUNS, Json, Run, RunsDir
from rl_lab.cli.printing import pairs, say, say_json, spread, table
from rl_lab.records.formatting import saved_as
from rl_lab.records.metrics import STEP, iterate_metrics

if TYPE_CHECKING:
    from rl_lab.display.metric_style import Display

FROM_SUMMARY = (
    *("env_steps", "total_timesteps", "updates", "episodes", "best", "best_step", "last_return"),
    *("test", "wall_time", "resumes", "snapshot_level", "resume_exact", "error"),
    *("lost_workers", "parameters", "efficiency", "parent", "cleaned", "alerts"),
)


def show(run: Run = "@last", runs_dir: RunsDir = RUNS, as_json: Json = False) -> int:
    """Show one run: its settings, results and checkpoints."""
    from rl_lab.display.metric_style import load_display

    display = load_display()
    facts = gather(run, runs_dir, display)
    if as_json:
        say_json(facts)
        return 0
    tests = {f"test ({which})": spread(each) for which, each in (facts["test"] or {}).items()}
    total = facts["total_timesteps"]
    steps = f"{facts['env_steps']:,} of {total:,}" if total else "-"
    best = None
    if facts["best"] is not None:
        best = f"{facts['best']:,.1f} at step {facts['best_step']:,}"
    exact = "bit for bit" if facts["resume_exact"] else "inexact"
    how = saved_as(facts["snapshot_level"])
    lost = f", {facts['lost_workers']} workers lost" if facts["lost_workers"] else ""
    keys = ("id", "name", "path", "status", "error", "algorithm", "environment", "seed", "device")
    lines = {key: facts[key] for key in keys if facts[key] is not None}
    lines["seed"] = str(facts["seed"])
    lines |= {"tags": " ".join(facts["tags"])} if facts["tags"] else {}
    lines |= {"notes": facts["notes"]} if facts["notes"] else {}
    lines |= {
        "env_steps": steps,
        "updates": facts["updates"],
        "episodes": facts["episodes"],
        "wall_time": f"{facts['wall_time'] or 0:,.1f} s",
        "resume": f"{exact} (environment: {how}), resumed {facts['resumes'] or 0} times{lost}",
        "parameters": counted(facts["parameters"]),
        "best": best,
        **tests,
    }
    if cleaned := facts["cleaned"]:
        lines["cleaned up"] = f"{cleaned['time'][:8]}: no checkpoints, cannot be resumed"
    if parent := facts["parent"]:
        lines["fork of"] = f"{parent['id']} at step {parent['step']:,}"
    if facts["code_change"]:
        lines["code"] = facts["code_change"]
    say(pairs(lines))
    if alerts := _alerts(facts["path"]):
        say("\nalerts\n" + table(alerts, ["step", "monitor", "message", "tip"]))
    if facts["checkpoints"]:
        say("\n" + table(facts["checkpoints"], ["step", "score"]))
    if costs := facts["efficiency"]:
        texts = {
            name: f"{display[name].text(costs[name])} {display[name].unit}".rstrip()
            for name in costs
        }
        say("\nefficiency\n" + pairs({name: texts[name] for name in display.ordered(texts)}))
    if facts["metrics"]:
        rows = metric_rows(facts["metrics"], facts["best_metrics"], display)
        say("\nmetrics of the last row\n" + pairs(rows))
    return 0


def gather(reference: str, runs_dir: Path, display: "Display") -> dict[str, Any]:
    """Everything that is known about a run."""
    from rl_lab.records.config_file import at, load_tree
    from rl_lab.records.index import row_of, true_status
    from rl_lab.records.run_directory import find_run
    from rl_lab.records.source import code_change

    directory, _ = find_run(reference, runs_dir)
    # As data: looking at a run must not import its plug-ins.
    config, summary = load_tree(directory.config_file), directory.read_summary()
    row = row_of(directory, runs_dir)
    last, best = last_and_best(iterate_metrics(directory.metrics_file), display)
    return {
        "id": directory.id,
        "path": str(directory.path),
        "status": true_status(directory.path, summary.get("status")),
        **{name: row[name] for name in ("name", "algorithm", "environment", "seed")},
        **{name: row[name] for name in ("experiment", "group", "tags", "notes")},
        "device": at(config, "experiment", "device"),
        **{name: summary.get(name) for name in FROM_SUMMARY},
        "code_change": code_change(directory),
        "checkpoints": _checkpoints(directory.checkpoints),
        "metrics": last,
        "best_metrics": best,
        "config": config,
    }


def _alerts(path: str) -> list[dict[str, Any]]:
    """The alerts of a run."""
    from rl_lab.records.alerts import read_alerts
    from rl_lab.records.run_directory import RunDirectory

    run = RunDirectory(Path(path))
    found = [*read_alerts(run.alerts_file), *read_alerts(run.timing_alerts_file)]
    return [each.to_tree() for each in sorted(found, key=lambda each: each.step)]


def counted(parameters: Mapping[str, int] | None) -> str | None:
    """Parameters in words."""
    if not parameters:
        return None
    total, trainable = parameters["total"], parameters["trainable"]
    return f"{total:,}" if total == trainable else f"{total:,}, {trainable:,} of them trainable"


def last_and_best(
    rows: Iterable[Mapping[str, Any]], display: "Display"
) -> tuple[dict[str, Any], dict[str, float]]:
    """The last row, and the best value of each metric where one direction is good."""
    last: Mapping[str, Any] = {}
    best: dict[str, float] = {}
    directed: dict[str, bool] = {}
    for last in rows:
        for name, value in last.items():
            if name not in directed:
                directed[name] = display[name].better is not None
            if directed[name]:
                found = display[name].best([best.get(name, value), value])
                best |= {} if found is None else {name: found}
    return dict(last), best


def metric_rows(
    last: Mapping[str, float], best: Mapping[str, float], display: "Display"
) -> dict[str, str]:
    """One line per metric in the order of metrics.yaml; a star marks what matters most."""
    lines = {}
    for name in display.ordered(name for name in last if name != STEP):
        style = display[name]
        line = f"{style.text(last[name]):>10} {style.unit}".rstrip()
        if name in best:
            line += f" (best {style.text(best[name])})"
        lines[f"{'*' if style.highlight else ' '} {name}"] = line
    return lines


def _checkpoints(folder: Path) -> list[dict[str, Any]]:
    from rl_lab.core.errors import UserError
    from rl_lab.records.checkpoint import CheckpointStore
    from rl_lab.records.commit import CorruptCheckpoint, read_manifest

    found = []
    for step in CheckpointStore(folder).steps():
        try:
            score = read_manifest(folder / f"step_{step:012d}").get("score")
        except (CorruptCheckpoint, UserError):  # damaged, or of a newer version
            score = None
        found.append({"step": step, "score": score})
    return found
