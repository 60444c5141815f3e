"""The folder of a published policy: policy, configuration, origin, results and a card.

It is a run folder with one checkpoint that holds the policy alone: no environments, no buffers, no
random streams. Names of users, machines and folders are left out or replaced.
"""

import importlib.util
import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from rl_lab.analysis.curves import read_curves
from rl_lab.analysis.plots import main_chart, to_png
from rl_lab.analysis.statistics import normal_interval
from rl_lab.collect.evaluate import Evaluation
from rl_lab.config.tree import tree_hash
from rl_lab.config.trust import dangers
from rl_lab.core.errors import UserError
from rl_lab.core.state import Stateful, Tree
from rl_lab.display.chart import to_svg
from rl_lab.hub.card import Published, card
from rl_lab.hub.contents import CARD, write_list
from rl_lab.records.commit import commit_files, encode_tree, make_directory, write_atomically
from rl_lab.records.config_file import load_tree
from rl_lab.records.files import read_bounded
from rl_lab.records.metrics import plain
from rl_lab.records.redaction import anonymous, without_places
from rl_lab.records.run_directory import RunDirectory, find_run
from rl_lab.records.source import read_provenance
from rl_lab.run.policy import EVALUATE, load

ORIGIN = (
    *("time", "command", "packages", "python", "platform", "cpu", "cpu_count"),
    *("torch_threads", "gpus"),
)
OUTCOME = (
    *("status", "environment", "seed", "env_steps", "total_timesteps", "updates", "episodes"),
    *("best", "best_step", "last_return", "wall_time", "parameters", "test"),
)
FILM_BYTES = 20_000_000
METRICS_BYTES = 50_000_000


@dataclass(frozen=True)
class Bundle:
    """A finished folder, and what was measured with the policy in it."""

    folder: Path
    evaluation: Evaluation
    facts: Published


def write_bundle(
    reference: str,
    root: Path,
    folder: Path,
    *,
    repo: str | None = None,
    episodes: int = 100,
    warn: Callable[[str], None],
) -> Bundle:
    """Write the folder of a checkpoint's policy, and measure it as everybody who loads it will.

    The policy is measured after it was loaded from the folder itself, with the rights of another
    user's run: what is published loads, and its score is that of what is published.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: name another folder")
    make_directory(folder.parent)
    with TemporaryDirectory(prefix=".tmp-", dir=folder.parent) as place:
        draft = Path(place) / "policy"
        made = _fill(draft, reference, root, repo, episodes, warn)
        draft.rename(folder)
    return Bundle(folder, *made)


def _fill(
    folder: Path,
    reference: str,
    root: Path,
    repo: str | None,
    episodes: int,
    warn: Callable[[str], None],
) -> tuple[Evaluation, Published]:
    run, _ = find_run(reference, root)
    tree = _published_config(run)
    step = _write_policy(reference, root, folder, tree, warn)
    loaded = load(str(folder), root, warn=warn)
    with closing(loaded.context.train_environment):
        evaluation = loaded.evaluate(EVALUATE, episodes)
    numbers = evaluation.summary()
    interval = normal_interval(numbers["return_mean"], numbers["return_std"], episodes)
    provenance = read_provenance(run)
    facts = Published(
        repo=repo,
        environment=str(loaded.config.environment.id),
        algorithm=loaded.config.algorithm.name,
        seed=loaded.config.experiment.seed,
        step=step,
        numbers=numbers,
        interval=interval,
        command=_command(provenance),
        packages=_packages(provenance),
        image=_write_curves(run, folder),
        film=_write_film(run, folder),
    )
    results = {
        "command": facts.evaluate,
        **numbers,
        "return_interval_95": list(interval),
        "returns": evaluation.returns,
        "lengths": evaluation.lengths,
        "seed": facts.seed,
        "step": step,
    }
    _write_json(folder / "results.json", results)
    write_atomically(folder / CARD, card(facts).encode())
    write_list(folder, {"rl_lab": version("rl-lab"), "run": run.id, "step": step})
    return evaluation, facts


def _published_config(run: RunDirectory) -> dict[str, Any]:
    """The configuration without what only this machine has; refused if it needs code."""
    run.check_complete()
    tree = load_tree(run.config_file)
    if found := next(dangers(tree), None):
        raise UserError(
            f"run {run.id} would {found}: a published policy may use registered names only"
        )
    neutral = {"name": "", "tags": [], "device": "cpu"}  # which every machine has
    experiment = dict(tree.get("experiment") or {}) | neutral
    kept = {key: each for key, each in tree.items() if key not in ("logging", "plugins")}
    published: dict[str, Any] = without_places({**kept, "experiment": experiment})
    return published


def _write_policy(
    reference: str, root: Path, folder: Path, tree: Mapping[str, Any], warn: Callable[[str], None]
) -> int:
    """Configuration, checkpoint and outcome: enough to load it; the step of the checkpoint."""
    loaded = load(reference, root, warn=warn)
    with closing(loaded.context.train_environment):
        parts = loaded.context.components
        state: Tree = {
            "workflow": loaded.workflow.get_state(),
            "parts": {
                f"component.{role}": part.state_dict()
                for role, part in parts.items()
                if isinstance(part, Stateful)
            },
        }
        payload = encode_tree(state, inline=False)
    text = yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=100)
    write_atomically(folder / "config.yaml", text.encode())
    summary, run = loaded.run.read_summary(), loaded.run
    manifest = {
        "config_hash": tree_hash(tree),
        "step": loaded.step,
        "number": 1,
        "permanent": True,
        "score": summary.get("best") if summary.get("best_step") == loaded.step else None,
        "policy_only": True,
    }
    commit_files(folder / "checkpoints" / f"step_{loaded.step:012d}", payload, manifest=manifest)
    outcome = {key: summary[key] for key in OUTCOME if key in summary}
    _write_json(folder / "summary.json", anonymous(outcome))
    provenance = read_provenance(run)
    origin = {key: provenance[key] for key in ORIGIN if key in provenance}
    git = provenance.get("git")
    if isinstance(git, Mapping):  # not the changes themselves: they are not part of the policy
        origin["git"] = {key: git.get(key) for key in ("sha", "dirty")}
    _write_json(folder / "provenance.json", anonymous(origin))
    try:
        write_atomically(folder / "metrics.jsonl", read_bounded(run.metrics_file, METRICS_BYTES))
    except OSError as error:
        warn(f"run {run.id}: published without metrics.jsonl: {error.strerror or error}")
    return loaded.step


def _write_curves(run: RunDirectory, folder: Path) -> str | None:
    """Draw the learning curves; the name of the file. PNG where matplotlib is installed."""
    chart = main_chart("learning curves", read_curves(run.metrics_file, thin=True))
    if chart is None:
        return None
    if importlib.util.find_spec("matplotlib") is None:
        write_atomically(folder / "curves.svg", to_svg(chart).encode())
        return "curves.svg"
    write_atomically(folder / "curves.png", to_png(chart))
    return "curves.png"


def _write_film(run: RunDirectory, folder: Path) -> str | None:
    """Copy the newest video of the run that is not too large; its name in the folder."""
    films = [each for each in run.videos.glob("**/*") if each.suffix in (".mp4", ".gif")]
    for film in sorted(films, key=lambda each: each.stat().st_mtime_ns, reverse=True):
        try:
            data = read_bounded(film, FILM_BYTES)
        except OSError:  # too large
            continue
        write_atomically(folder / f"replay{film.suffix}", data)
        return f"replay{film.suffix}"
    return None


def _command(provenance: Mapping[str, Any]) -> str | None:
    """What trained it, as it was typed."""
    words = provenance.get("command")
    if not isinstance(words, list) or not words:
        return None
    return shlex.join(["rl-lab", *anonymous([str(word) for word in words[1:]])])


def _packages(provenance: Mapping[str, Any]) -> str:
    found = provenance.get("packages")
    pairs = found.items() if isinstance(found, Mapping) else ()
    return ", ".join(f"{name} {version}" for name, version in pairs if version)


def _write_json(path: Path, data: object) -> None:
    text = json.dumps(plain(data), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())
