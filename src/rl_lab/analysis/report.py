"""The report of a run or of a group: report.md, and report.html with everything in it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_lab.analysis.compare import Comparison, compare
from rl_lab.analysis.curves import Curve, read_curves
from rl_lab.analysis.document import (
    KINDS,
    Block,
    Code,
    Grid,
    Heading,
    Items,
    Media,
    Paragraph,
    to_html,
    to_markdown,
)
from rl_lab.analysis.export import blocks_of
from rl_lab.analysis.groups import Run, load_run
from rl_lab.core.errors import UserError
from rl_lab.orchestration.config import leaves, to_tree
from rl_lab.orchestration.validation import validate
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import write_atomically
from rl_lab.records.display import Display, load_display
from rl_lab.records.formatting import format_duration, sparkline
from rl_lab.records.metrics import MAIN_METRICS
from rl_lab.records.run_directory import RunDirectory
from rl_lab.records.sinks import Sink

NAME = "report"
PANELS = {"return": MAIN_METRICS["reward"], "loss": MAIN_METRICS["loss"]}
EMBEDDED_BYTES = 5_000_000  # of a film; a larger one is only linked to
EMBEDDED_TOTAL = 25_000_000  # of all films: the page can still be sent by mail
NO_PLOTS = "No plots: matplotlib is not installed (pip install 'rl-lab[plots]')."
SHOWN_ALERTS = 50
SPARKS = 40  # blocks of a curve in text
NORMAL_95 = 1.96  # standard errors of a 95 % interval


class ReportSink(Sink):
    """Writes the report whenever a run ends. As any sink it may fail: the run does not."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """The run has ended, and its summary is written."""
        write_report(self.directory)


def write_report(directory: RunDirectory) -> list[Path]:
    """Write the report of a run into its folder; the files."""
    run, display = load_run(directory), load_display()
    curves = read_curves(directory.metrics_file)
    title = f"{run.task} {run.algorithm}, seed {run.seed}"
    picture = _drawn(curves)
    blocks: list[Block] = [
        *_what(run),
        *_results(run, curves, display),
        *_pictured(picture),
        *_checkpoint(run),
        *_videos(directory.path),
        *_settings(run),
        *_alerts(run),
        *_reproduce(run),
    ]
    return _write(directory.path, f"{title} ({run.id})", blocks, picture)


def write_group_report(runs: Sequence[Run], folder: Path, keys: Sequence[str] = ()) -> list[Path]:
    """Write the report of several runs into a folder of their own; the files."""
    display = load_display()
    found = compare(runs, keys=keys, display=display)
    picture = _drawn_comparison(found)
    rows = [
        [run.id, run.task, run.algorithm, str(run.seed), str(run.summary.get("status")), _best(run)]
        for run in runs
    ]
    blocks: list[Block] = [
        *_pictured(picture),
        *blocks_of(found, display),
        Heading("Runs"),
        Grid(["id", "task", "algorithm", "seed", "status", "best"], rows),
        Heading("Run it again"),
        Code("\n".join(dict.fromkeys(_command(run) for run in runs))),
    ]
    return _write(folder, f"{len(runs)} runs", blocks, picture)


def _write(folder: Path, title: str, blocks: Sequence[Block], picture: bytes | None) -> list[Path]:
    data = {
        f"{NAME}.md": to_markdown(title, blocks).encode(),
        f"{NAME}.html": to_html(title, blocks).encode(),
        **({f"{NAME}.png": picture} if picture else {}),
    }
    for name, each in data.items():
        write_atomically(folder / name, each)
    return [folder / name for name in data]


def _drawn(curves: Mapping[str, Curve]) -> bytes | None:
    """The main curves; None without matplotlib or without a curve."""
    panels = {
        title: {name: curves[name] for name in names if name in curves}
        for title, names in PANELS.items()
    }
    panels = {title: lines for title, lines in panels.items() if lines}
    if not panels or find_spec("matplotlib") is None:
        return None
    from rl_lab.analysis.plots import draw_curves

    return draw_curves(panels)


def _pictured(picture: bytes | None) -> list[Block]:
    if picture is not None:
        return [Heading("Curves"), Media("curves", f"{NAME}.png", picture)]
    if find_spec("matplotlib") is None:
        return [Heading("Curves"), Paragraph(NO_PLOTS)]
    return []


def _drawn_comparison(found: Comparison) -> bytes | None:
    if find_spec("matplotlib") is None:
        return None
    from rl_lab.analysis.plots import draw_comparison

    return draw_comparison(found)


def _what(run: Run) -> list[Block]:
    summary, total = run.summary, run.config.get("training.total_timesteps") or 0
    exact = "bit for bit" if summary.get("resume_exact") else "inexact"
    level = summary.get("snapshot_level")
    parameters = (summary.get("parameters") or {}).get("total")
    facts = {
        "run": run.directory.path.name,
        "status": summary.get("status"),
        "error": summary.get("error"),
        "environment": run.task,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "device": run.config.get("experiment.device"),
        "environment steps": f"{summary.get('env_steps') or 0:,} of {total:,}",
        "updates": summary.get("updates"),
        "episodes": summary.get("episodes"),
        "parameters": None if parameters is None else f"{parameters:,}",
        "wall time": format_duration(summary.get("wall_time") or 0.0),
        "fork of": run.parent and f"{run.parent.id} at step {run.parent.step:,}",
        "resumed": f"{summary.get('resumes') or 0} times, {exact} ({level})",
    }
    rows = [[name, str(value)] for name, value in facts.items() if value not in (None, "")]
    return [Heading("What was run"), Grid(["", ""], rows)]


def _results(run: Run, curves: Mapping[str, Curve], display: Display) -> list[Block]:
    rows = []
    for which, test in (run.summary.get("test") or {}).items():
        half = NORMAL_95 * test["return_std"] / max(test["episodes"] - 1, 1) ** 0.5
        mean = test["return_mean"]
        value = f"{mean:,.1f} [{mean - half:,.1f}, {mean + half:,.1f}]"
        note = f"95 % interval over {test['episodes']} unseen episodes, of this one seed"
        rows.append([f"test return of the {which} policy", value, note])
    for name in display.ordered(curves):
        style = display[name]
        if style.highlight or name in MAIN_METRICS["loss"]:
            best = style.best(curves[name].values.tolist())
            note = "" if best is None else f"best {style.text(best)}, "
            line = sparkline(curves[name].values.tolist(), SPARKS)
            rows.append([f"{name}, last", style.text(curves[name].final), f"{note}{line}"])
    if not rows:
        return [Heading("Results"), Paragraph("The run has no results yet.")]
    return [Heading("Results"), Grid(["", "value", ""], rows)]


def _checkpoint(run: Run) -> list[Block]:
    store = CheckpointStore(run.directory.checkpoints)
    steps, best = store.steps(), store.best()
    if not steps:
        return [Heading("Best checkpoint"), Paragraph("There is no checkpoint.")]
    step, word = (steps[-1], "last") if best is None else (best, "best")
    score = "not scored" if best is None else f"score {_best(run)}"
    return [
        Heading("Best checkpoint"),
        Paragraph(f"checkpoints/step_{step:012d}, {score}."),
        Code(f"rl-lab evaluate {run.id}:{word} --episodes 100"),
    ]


def _best(run: Run) -> str:
    best = run.summary.get("best")
    return f"{best:,.1f}" if isinstance(best, int | float) else "-"


def _videos(folder: Path) -> list[Block]:
    """Links to the films, in the order of their names; the last ones are in the page itself."""
    films: list[Block] = []
    left = EMBEDDED_TOTAL
    for file in sorted(folder.glob("videos/**/*"), reverse=True):
        if file.suffix in KINDS:
            size = file.stat().st_size
            data = file.read_bytes() if size <= min(EMBEDDED_BYTES, left) else None
            left -= len(data or b"")
            films.append(Media(file.stem, file.relative_to(folder).as_posix(), data))
    return [Heading("Videos"), *reversed(films)] if films else []


def _settings(run: Run) -> list[Block]:
    """What differs from the defaults of the algorithm, and what `auto` chose."""
    heading = Heading("Settings that are not the defaults")
    names = {key: run.config.get(key) for key in ("environment.id", "algorithm.name")}
    try:
        tree = {"environment": {"id": run.task}, "algorithm": {"name": names["algorithm.name"]}}
        defaults = dict(leaves(to_tree(validate(tree, {}, existing=True))))
    except UserError as error:  # an algorithm of a plug-in that is not here
        return [heading, Paragraph(f"Not known: {str(error).splitlines()[0]}")]
    changed = {
        path: (defaults.get(path, "-"), value)
        for path, value in run.config.items()
        if defaults.get(path, "-") != value and path not in names
    }
    own = [[path, str(a), str(b)] for path, (a, b) in changed.items() if a != "auto"]
    chosen = [f"{path} {value}" for path, (a, value) in changed.items() if a == "auto"]
    blocks: list[Block] = [heading]
    blocks.append(Grid(["key", "default", "here"], own) if own else Paragraph("None."))
    if chosen:
        blocks.append(Paragraph(f"Chosen by auto: {', '.join(chosen)}."))
    return blocks


def _alerts(run: Run) -> list[Block]:
    """What the run warned of, and what it had to skip or go back for."""
    lines = []
    if run.directory.log_file.exists():
        text = run.directory.log_file.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if " WARNING" in line]
    skipped = run.summary.get("skipped") or {}
    lines += [f"{hook}: {count} calls skipped for a bad number" for hook, count in skipped.items()]
    lines += [f"went back: {each}" for each in run.summary.get("rollbacks") or []]
    if run.summary.get("error"):
        lines.append(str(run.summary["error"]))
    if not lines:
        return [Heading("Alerts"), Paragraph("None.")]
    more = [f"… and {len(lines) - SHOWN_ALERTS} more"] if len(lines) > SHOWN_ALERTS else []
    return [Heading("Alerts"), Items([*lines[:SHOWN_ALERTS], *more])]


def _reproduce(run: Run) -> list[Block]:
    facts = _provenance(run)
    blocks: list[Block] = [Heading("Run it again"), Code(_command(run))]
    if not facts:
        return blocks
    git, packages = facts.get("git"), facts.get("packages") or {}
    machine = [f"{facts.get('cpu_count')} x {facts.get('cpu')}", *(facts.get("gpus") or [])]
    lines = [
        ", ".join(f"{name} {version}" for name, version in packages.items() if version),
        f"Python {facts.get('python')}, {facts.get('platform')}",
        ", ".join(machine),
    ]
    if git:
        changed = " with uncommitted changes (in provenance.json)" if git.get("dirty") else ""
        lines.append(f"commit {git.get('sha')}{changed}")
    return [*blocks, Items(lines)]


def _command(run: Run) -> str:
    """What was typed; a run made from Python has its configuration instead."""
    words = _provenance(run).get("command") or []
    if not words:
        return shlex.join(["rl-lab", "train", "--config", str(run.directory.config_file)])
    return shlex.join(["rl-lab", *words[1:]])


def _provenance(run: Run) -> Mapping[str, Any]:
    try:
        return dict(json.loads(run.directory.provenance_file.read_bytes()))
    except (OSError, ValueError):
        return {}
