"""`rl-lab show`: one run at a glance."""

from pathlib import Path
from typing import Any

from rl_lab.cli.list_runs import true_status
from rl_lab.cli.printing import pairs, say, say_json, spread, table

FROM_SUMMARY = (
    *("env_steps", "total_timesteps", "updates", "episodes", "best", "best_step", "last_return"),
    *("test", "wall_time", "resumes", "snapshot_level", "resume_exact", "error"),
)


def run(reference: str, *, runs_dir: Path, as_json: bool) -> int:
    """Print settings, results, checkpoints and the last metrics of a run."""
    facts = gather(reference, runs_dir)
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
    keys = ("id", "name", "path", "status", "error", "algorithm", "environment", "seed", "device")
    lines = {key: facts[key] for key in keys if facts[key] is not None}
    lines["seed"] = str(facts["seed"])
    lines |= {
        "env_steps": steps,
        "updates": facts["updates"],
        "episodes": facts["episodes"],
        "wall_time": f"{facts['wall_time'] or 0:,.1f} s",
        "resume": f"{exact} ({facts['snapshot_level']}), {facts['resumes'] or 0} so far",
        "best": best,
        **tests,
    }
    say(pairs(lines))
    if facts["checkpoints"]:
        say("\n" + table(facts["checkpoints"], ["step", "score"]))
    if facts["metrics"]:
        say("\nlast metrics\n" + pairs(facts["metrics"]))
    return 0


def gather(reference: str, runs_dir: Path) -> dict[str, Any]:
    """Everything that is known about a run."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    from rl_lab.records.index import row_of
    from rl_lab.records.metrics import read_metrics
    from rl_lab.records.run_directory import find_run

    directory, _ = find_run(reference, runs_dir)
    row, summary = row_of(directory, runs_dir), directory.read_summary()
    # As data: looking at a run must not import its plug-ins.
    config = yaml.safe_load(directory.config_file.read_text(encoding="utf-8"))
    rows = read_metrics(directory.metrics_file)
    return {
        "id": directory.id,
        "path": str(directory.path),
        "status": true_status(directory.path, summary.get("status")),
        **{name: row[name] for name in ("name", "algorithm", "environment", "seed")},
        "device": config.get("experiment", {}).get("device"),
        **{name: summary.get(name) for name in FROM_SUMMARY},
        "checkpoints": _checkpoints(directory.checkpoints),
        "metrics": rows[-1] if rows else {},
        "config": config,
    }


def _checkpoints(folder: Path) -> list[dict[str, Any]]:
    from rl_lab.records.checkpoint import CheckpointStore
    from rl_lab.records.commit import CorruptCheckpoint, read_manifest

    found = []
    for step in CheckpointStore(folder).steps():
        try:
            score = read_manifest(folder / f"step_{step:012d}").get("score")
        except CorruptCheckpoint:
            score = None
        found.append({"step": step, "score": score})
    return found
