"""The proof of a snapshot level: what a second process continues must equal what the first one saw.

The first process plays a vector, saves it at five points and writes down every byte that follows.
The second one makes the vector again, loads each state, takes the same actions and writes its own
bytes. The process-wide random generators are seeded, saved and loaded with it, as in a run.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors

from rl_lab.core import registry, seeding, spec, state
from rl_lab.core.batch import Array, Step
from rl_lab.core.protocols import VectorEnv
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.tree import map_leaves, named_leaves
from rl_lab.envs import snapshot
from rl_lab.envs.make import make_vector
from rl_lab.envs.vector import SyncVector

SEARCH_STEPS = 3000  # how far to look for an episode's end
Rows = dict[str, Array]  # field of a Step -> [T, N, …]


@dataclass(frozen=True)
class Point:
    """One moment at which the state was saved, and whether it went on exactly from there."""

    name: str
    step: int
    difference: str | None = None  # the first one, e.g. "reward at step 3"


@dataclass(frozen=True)
class CheckReport:
    """What was proven about an environment."""

    id: str
    level: str
    points: list[Point] = field(default_factory=list)
    reason: str | None = None  # why it is E3

    @property
    def exact(self) -> bool:
        """True when every point continued bit for bit."""
        return self.level != "E3"


def check_env(
    id: str,
    *,
    steps: int = 200,
    num_envs: int = 2,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    modules: Sequence[str] = (),
) -> CheckReport:
    """Prove the snapshot level of an environment in a second process.

    `settings` are further keys of the `environment:` block, such as `wrappers`, `kwargs` or
    `vectorization`. `steps` is how far each point is followed. The second process imports
    `modules` first: they register an environment of the user's own.
    """
    config = EnvironmentConfig(**{"id": id, "num_envs": num_envs, **(settings or {})})
    seeds = [seeding.integer(seed, "check", index) for index in range(config.num_envs)]
    vector = make_vector(config, seeds)
    try:
        vector.reset()
        level = vector.snapshot_level
        if level == "E3":
            return CheckReport(id, level, reason=_obstacle(vector))
        actions = _random_actions(vector, SEARCH_STEPS + steps, seed)
        moments = _moments(vector, actions)
    finally:
        vector.close()
    with tempfile.TemporaryDirectory(prefix="rl-lab-check-") as folder:
        expected = _play(Path(folder), config, seeds, actions, moments, steps, modules)
        failure = _second_process(Path(folder))
        if failure is not None:
            return CheckReport(id, "E3", reason=f"the second process failed: {failure}")
        points = [
            Point(name, step, _difference(expected[name], load_arrays(_result(folder, index))))
            for index, (name, step) in enumerate(moments.items())
        ]
    wrong = next((point for point in points if point.difference), None)
    if wrong is None:
        return CheckReport(id, level, points)
    return CheckReport(id, "E3", points, f"{wrong.name}: another {wrong.difference}")


def _moments(vector: VectorEnv, actions: Array) -> dict[str, int]:
    """The five points, by the number of steps before them; the search moves `vector` on."""
    moments = {"after the reset": 0, "after 50 steps": 50, "after 75 steps": 75}
    for count, action in enumerate(actions[:SEARCH_STEPS], start=1):
        step = vector.step(action)
        if (step.terminated | step.truncated).any():
            ends = {"one step before an episode's end": count - 1, "after an episode's end": count}
            return moments | ends
    return moments | {"after 100 steps (no episode ended)": 100, "after 125 steps": 125}


def _play(
    folder: Path,
    config: EnvironmentConfig,
    seeds: Sequence[int],
    actions: Array,
    moments: dict[str, int],
    steps: int,
    modules: Sequence[str],
) -> dict[str, Rows]:
    """Play once from the start, saving the state at every moment; the rows that follow each."""
    vector = make_vector(config, seeds)
    streams = seeding.Streams(seeds[0])
    try:
        vector.reset()
        seen: list[Step] = []
        for count, action in enumerate(actions[: max(moments.values()) + steps]):
            for index, moment in enumerate(moments.values()):
                if moment == count:
                    tree = {"env": vector.state_dict(), "streams": streams.state_dict()}
                    _save_tree(folder / f"point_{index}", tree)
            seen.append(vector.step(action))
    finally:
        vector.close()
    save_arrays({"actions": actions}, folder / "actions.safetensors")
    request = {
        "config": asdict(config),
        "seeds": list(seeds),
        "moments": list(moments.values()),
        "steps": steps,
        "modules": list(modules),
    }
    (folder / "request.json").write_text(json.dumps(request))
    return {name: _rows(seen[moment : moment + steps]) for name, moment in moments.items()}


def _second_process(folder: Path) -> str | None:
    """Run it to its end; its last words if it failed."""
    command = [sys.executable, "-m", "rl_lab.envs.check", "--child", str(folder)]
    # The second process must find the user's own modules where this one found them.
    folders = [*sys.path, *sorted(registry.local_folders)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if outcome.returncode == 0:
        return None
    return (outcome.stderr.strip().splitlines() or [f"exit code {outcome.returncode}"])[-1]


def _child(folder: Path) -> None:
    """What the second process does: load each state, take the same actions, write the rows."""
    request = json.loads((folder / "request.json").read_text())
    actions = load_arrays(folder / "actions.safetensors")["actions"]
    for module in request["modules"]:
        importlib.import_module(module)
    config = EnvironmentConfig(**request["config"])
    for index, moment in enumerate(request["moments"]):
        vector = make_vector(config, request["seeds"])
        tree = _load_tree(folder / f"point_{index}")
        vector.load_state_dict(tree["env"])
        seeding.Streams(request["seeds"][0]).load_state_dict(tree["streams"])
        seen = [vector.step(action) for action in actions[moment : moment + request["steps"]]]
        save_arrays(_rows(seen), _result(folder, index))
        vector.close()


def _random_actions(vector: VectorEnv, steps: int, seed: int) -> Array:
    generator = np.random.default_rng(seeding.sequence(seed, "check actions"))
    space, shape = vector.spec.action, (steps, vector.num_envs)
    if isinstance(space, spec.Discrete):
        return generator.integers(0, space.n, shape)
    if isinstance(space, spec.MultiDiscrete):
        return generator.integers(0, space.nvec, (*shape, len(space.nvec)))
    return generator.normal(size=(*shape, *space.shape)).astype(np.float32)


def _rows(steps: Sequence[Step]) -> Rows:
    names = [each.name for each in fields(Step) if each.name != "valid"]
    columns = {
        name: map_leaves(lambda *leaves: np.stack(leaves), *(getattr(step, name) for step in steps))
        for name in names
    }
    return dict(named_leaves(columns))


def _difference(left: Rows, right: Rows) -> str | None:
    """The earliest field and step whose bytes differ."""
    found = []
    for name, rows in left.items():
        other = right[name]
        if rows.dtype != other.dtype or rows.shape != other.shape:
            return f"{name}: {rows.dtype}{rows.shape} became {other.dtype}{other.shape}"
        pairs = enumerate(zip(rows, other, strict=True))
        found += [(t, name) for t, (a, b) in pairs if a.tobytes() != b.tobytes()]
    if not found:
        return None
    step, name = min(found)
    return f"{name} at step {step}"


def _obstacle(vector: VectorEnv) -> str:
    why = snapshot.obstacle(vector.envs[0]) if isinstance(vector, SyncVector) else None
    return why or f"the state of a {type(vector).__name__} cannot be captured"


def _save_tree(stem: Path, tree: state.Tree) -> None:
    tensors, skeleton = state.split(tree)
    save_tensors(tensors, stem.with_suffix(".safetensors"))
    stem.with_suffix(".json").write_text(json.dumps(skeleton, sort_keys=True))


def _load_tree(stem: Path) -> Any:
    skeleton = json.loads(stem.with_suffix(".json").read_text())
    return state.join(load_tensors(stem.with_suffix(".safetensors")), skeleton)


def _result(folder: str | Path, index: int) -> Path:
    return Path(folder) / f"result_{index}.safetensors"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", type=Path, required=True)
    _child(parser.parse_args().child)
