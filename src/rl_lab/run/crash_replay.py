"""A numerical failure met again, from its dump. The run itself is not touched."""

import logging
import re
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from rl_lab.config.trust import require_trust
from rl_lab.config.validate import validate
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.schema import RunConfig
from rl_lab.core.state import Tree
from rl_lab.core.tree import map_leaves
from rl_lab.display.sinks import Sinks
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import MANIFEST, CorruptCheckpoint, read_tree
from rl_lab.records.config_file import read_config
from rl_lab.records.mark import doubt
from rl_lab.records.run_directory import RunDirectory, find_run
from rl_lab.run.build import build_run
from rl_lab.run.guard import SAVE, check_update
from rl_lab.run.orchestrator import Orchestrator
from rl_lab.run.progress import numbers_of
from rl_lab.run.session import find_weights


@dataclass(frozen=True)
class Replay:
    """What a dump says, and what happened this time."""

    dump: Path
    hook: str
    step: int
    expected: str
    error: NonFiniteError | None  # None: it went well this time

    @property
    def reproduced(self) -> bool:
        """The same failure, word for word; `--debug` names gradients, which a replay does not."""
        return self.error is not None and _unnamed(str(self.error)) == _unnamed(self.expected)


def _unnamed(message: str) -> str:
    return re.sub(r" \(gradient of [^)]*\)", "", message)


def replay(reference: str, root: Path, *, trust: bool = False) -> Replay:
    """Load a dump, do what failed, and say whether it fails again."""
    where = find_dump(reference, root)
    try:
        tree, manifest = read_tree(where)
        hook, step, expected = manifest["hook"], int(manifest["step"]), manifest["message"]
        why = partial(_doubt, where, manifest["config"])
        require_trust(manifest["config"], f"the dump {where}", why, trust=trust)
        config = validate(manifest["config"], {}, existing=True)
    except (CorruptCheckpoint, KeyError) as error:
        raise UserError(f"{where} is damaged or not a crash dump: {error}") from error
    config = replace(config, compute=replace(config.compute, on_nonfinite="raise"))
    failure = None
    with TemporaryDirectory(prefix="rl-lab-replay-") as folder:
        try:
            _again(config, tree, hook, step, root, Path(folder), _checkpoints_beside(where))
        except NonFiniteError as error:
            failure = error
            failure.__notes__ = []  # they name a dump of this replay, which goes with the folder
    return Replay(where, hook, step, expected, failure)


def _doubt(dump: Path, config: object) -> str | None:
    """A dump is as good as the run that it lies in, if it has that run's configuration."""
    run = RunDirectory(dump.resolve().parent.parent)
    if read_config(run.config_file) != config:
        return "does not lie in the run that it is of"
    return doubt(run)


def find_dump(reference: str, root: Path) -> Path:
    """The folder of a dump itself, or the newest dump of a run."""
    path = Path(reference)
    if (path / MANIFEST).exists():
        return path
    if path.parent.name == "crash" and path.is_dir():
        raise UserError(f"{path} is damaged: it has no {MANIFEST}")
    run = find_run(reference, root)[0]
    dumps = [each for each in (run.path / "crash").glob("step_*") if each.is_dir()]
    if not dumps:
        raise UserError(f"run {run.id} has no crash dump: it never met a NaN or an infinity")
    return max(dumps, key=lambda each: each.stat().st_mtime_ns)


def _again(
    config: RunConfig,
    tree: Tree,
    hook: str,
    step: int,
    root: Path,
    folder: Path,
    checkpoints: CheckpointStore,
) -> None:
    state, batch = tree["state"], tree["batch"]
    weights = None
    if state is None:
        warn = logging.getLogger(__name__).warning
        weights = find_weights(config.training.warm_start, root, warn=warn)
    made = build_run(
        config, lambda: RunDirectory.create(folder, "replay"), Sinks([]), weights=weights
    )
    run = made[0]
    with closing(run):
        if state is not None:
            parts = _with_rows(state["parts"], run, hook, checkpoints)
            # its rows of metrics stay in its own folder
            run.load({**state, "parts": parts, "metrics_offset": 0})
        if hook == "collect":
            _until_after(run, step)
        elif hook == SAVE:
            run.guard.check_state()
        elif hook == "evaluate":
            run.measure()
        else:
            batch = map_leaves(lambda leaf: _on(leaf, config.experiment.device), batch)
            metrics = run.hooks[hook](batch, phase=run.scheduler.view())
            check_update(hook, numbers_of(metrics, hook))


def _checkpoints_beside(dump: Path) -> CheckpointStore:
    """Those of the run whose `crash/` has the dump."""
    return CheckpointStore(RunDirectory(dump.resolve().parent.parent).checkpoints)


def _with_rows(
    parts: Tree, run: Orchestrator, hook: str, checkpoints: CheckpointStore
) -> dict[str, Tree]:
    """The parts of a dump, with the buffers that it left out.

    A hook that failed has its batch and needs no buffer, so an empty one will do. A rollout may
    come after updates that do.
    """
    missing = [name for name, part in parts.items() if part is None]
    if not missing:
        return dict(parts)
    if hook != "collect":
        fresh = run.state()["parts"]
        return {**parts, **{name: fresh[name] for name in missing}}
    step = int(parts["counters"]["env_steps"])
    try:
        saved = checkpoints.load(step)[0]["parts"]
    except UserError as error:
        raise UserError(
            f"the dump begins with the {missing[0]} of step {step}, which is only in that "
            f"checkpoint of its run: {error}"
        ) from error
    return {**parts, **{name: saved[name] for name in missing}}


def _until_after(run: Orchestrator, step: int) -> None:
    """The loop, as far as the rollout that began at `step`."""
    while run.counters.env_steps <= step and (action := run.scheduler.next_action()):
        run.execute(action)
        if run.scheduler.at_cycle_start:
            run.counters.cycles += 1
            run.after_cycle()


def _on(leaf: object, device: str) -> Any:
    return leaf.to(device) if isinstance(leaf, Tensor) else leaf
