"""Run folders with numbers chosen by hand: for tests of what only reads runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rl_lab.analysis.groups import Run, load_run
from rl_lab.records.run_directory import RunDirectory


def made_run(
    root: Path,
    values: Sequence[float],
    *,
    seed: int = 0,
    task: str = "CartPole-v1",
    algorithm: str = "ppo",
    gamma: float = 0.99,
    metric: str = "eval/return_mean",
    steps: Sequence[int] | None = None,
    summary: Mapping[str, Any] | None = None,
) -> Run:
    """A finished run whose metric has these values at steps 100, 200, …"""
    directory = RunDirectory.create(root, f"{task}-{algorithm}")
    steps = steps or [100 * (place + 1) for place in range(len(values))]
    config = {
        "version": 1,
        "experiment": {"name": "", "seed": seed, "tags": []},
        "environment": {"id": task},
        "algorithm": {"name": algorithm, "gamma": gamma},
        "training": {"total_timesteps": steps[-1]},
    }
    directory.config_file.write_text(yaml.safe_dump(config))
    rows = [{"step": step, metric: value} for step, value in zip(steps, values, strict=True)]
    directory.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {"status": "finished", "env_steps": steps[-1], "wall_time": 10.0}
    directory.write_summary({**facts, **(summary or {})})
    return load_run(directory)
