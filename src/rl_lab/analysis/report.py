"""The report of a run or of a group: report.md, and report.html with everything in it."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_lab.analysis.compare import compare
from rl_lab.analysis.curves import Curve, read_curves
from rl_lab.analysis.document import (
    KINDS,
    Block,
    Code,
    Drawing,
    Grid,
    Heading,
    Items,
    Media,
    More,
    Paragraph,
    to_html,
    to_markdown,
)
from rl_lab.analysis.export import blocks_of
from rl_lab.analysis.groups import Run, load_run
from rl_lab.analysis.plots import PANELS, comparison_chart, described, main_chart, run_chart
from rl_lab.analysis.settings import AUTO, changed_settings
from rl_lab.analysis.statistics import normal_interval
from rl_lab.core.errors import UserError
from rl_lab.display.chart import Chart, to_svg
from rl_lab.display.metric_style import Display, load_display
from rl_lab.display.sinks import Sink
from rl_lab.records.alerts import read_alerts
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import write_atomically
from rl_lab.records.files import check_folder, open_to_read, read_bounded
from rl_lab.records.formatting import format_duration, saved_as, sparkline
from rl_lab.records.metrics import MAIN_METRICS, iterate_metrics
from rl_lab.records.run_directory import RunDirectory
from rl_lab.records.source import read_provenance
from rl_lab.run.debug import PROFILE, TRACE, WEIGHTS

NAME = "report"
EMBEDDED_BYTES = 5_000_000  # of a film; a larger one is only linked to
EMBEDDED_TOTAL = 25_000_000  # of all films: the page can still be sent by mail
SHOWN_ALERTS = 50
SPARKS = 40  # blocks of a curve in text
PRINTING = ("--json", "--progress-lines", "-q", "--quiet")


class ReportSink(Sink):
    """Writes the report whenever a run ends. As any sink it may fail: the run does not."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """The run has ended, and its summary is written."""
        write_report(self.directory)


def write_report(directory: RunDirectory) -> list[Path]:
    """Write the report of a run into its folder; the files."""
    check_folder(directory.path)  # a report shows films and logs of the run, nothing else
    run, display = load_run(directory), load_display()
    curves = read_curves(directory.metrics_file, thin=True)
    title = f"{run.task} {run.algorithm}, seed {run.seed}"
    chart = main_chart(title, curves)
    blocks: list[Block] = [
        *_results(run, curves, display),
        *_pictured(chart),
        *_more(curves, display),
        *_videos(directory.path),
        *_what(run),
        *_costs(run, display),
        *_checkpoint(run),
        *_settings(run),
        *_alerts(run),
        *_debug(run),
        *_reproduce(run),
    ]
    return _write(directory.path, f"{title} ({run.id})", blocks, chart)


def write_group_report(runs: Sequence[Run], folder: Path, keys: Sequence[str] = ()) -> list[Path]:
    """Write the report of several runs into a folder of their own; the files."""
    display = load_display()
    found = compare(runs, keys=keys, display=display)
    chart = comparison_chart(found)
    rows = [
        [run.id, run.task, run.algorithm, str(run.seed), str(run.summary.get("status")), _best(run)]
        for run in runs
    ]
    blocks: list[Block] = [
        *_pictured(chart),
        *blocks_of(found, display),
        Heading("Runs"),
        Grid(["id", "task", "algorithm", "seed", "status", "best"], rows),
        Heading("Run it again"),
        Code("\n".join(dict.fromkeys(_command(run) for run in runs))),
    ]
    return _write(folder, described(found), blocks, chart)


def _write(folder: Path, title: str, blocks: Sequence[Block], chart: Chart | None) -> list[Path]:
    data = {
        f"{NAME}.md": to_markdown(title, blocks).encode(),
        f"{NAME}.html": to_html(title, blocks).encode(),
        **({f"{NAME}.svg": to_svg(chart).encode()} if chart else {}),
    }
    for name, each in data.items():
        write_atomically(folder / name, each)
    return [folder / name for name in data]


def _pictured(chart: Chart | None) -> list[Block]:
    return [Heading("Curves"), Drawing("curves", f"{NAME}.svg", chart)] if chart else []


def _more(curves: Mapping[str, Curve], display: Display) -> list[Block]:
    """A small chart of each further metric."""
    main = {name for names in PANELS.values() for name in names}
    names = [name for name in display.ordered(curves) if name not in main]
    if not names:
        return []
    chart = run_chart("", {name: {name: curves[name]} for name in names})
    return [More(f"{len(names)} more metrics", chart)]


def _what(run: Run) -> list[Block]:
    summary = run.summary
    exact = "bit for bit" if summary.get("resume_exact") else "inexact"
    how = saved_as(summary.get("snapshot_level"))
    parameters = (summary.get("parameters") or {}).get("total")
    facts = {
        "run": run.directory.path.name,
        "status": summary.get("status"),
        "error": summary.get("error"),
        "environment": run.task,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "device": run.config.get("experiment.device"),
        "environment steps": f"{summary.get('env_steps') or 0:,} of {run.total_timesteps:,}",
        "updates": summary.get("updates"),
        "episodes": summary.get("episodes"),
        "parameters": None if parameters is None else f"{parameters:,}",
        "wall time": format_duration(summary.get("wall_time") or 0.0),
        "fork of": run.parent and f"{run.parent.id} at step {run.parent.step:,}",
        "resumed": f"{summary.get('resumes') or 0} times, {exact} (environment: {how})",
        "lost workers": summary.get("lost_workers") or None,
    }
    rows = [[name, str(value)] for name, value in facts.items() if value not in (None, "")]
    return [Heading("What was run"), Grid(["", ""], rows)]


def _costs(run: Run, display: Display) -> list[Block]:
    costs = run.summary.get("efficiency") or {}
    rows = [
        [name, f"{display[name].text(costs[name])} {display[name].unit}".rstrip()]
        for name in display.ordered(costs)
    ]
    return [Heading("What it cost"), Grid(["", ""], rows)] if rows else []


def _results(run: Run, curves: Mapping[str, Curve], display: Display) -> list[Block]:
    rows = []
    for which, test in (run.summary.get("test") or {}).items():
        mean = test["return_mean"]
        low, high = normal_interval(mean, test["return_std"], test["episodes"])
        value = f"{mean:,.1f} [{low:,.1f}, {high:,.1f}]"
        note = f"95 % interval over {test['episodes']} unseen episodes, of this one seed"
        rows.append([f"test return of the {which} policy", value, note])
    if (optimum := run.summary.get("optimum")) is not None:
        note = "expected return of the best policy in the environment itself"
        rows.append(["optimum", f"{optimum:,.3f}", note])
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
            try:
                data = read_bounded(file, min(EMBEDDED_BYTES, left))
            except OSError:  # too large for the page
                data = None
            left -= len(data or b"")
            films.append(Media(file.stem, file.relative_to(folder).as_posix(), data))
    return [Heading("Videos"), *reversed(films)] if films else []


def _settings(run: Run) -> list[Block]:
    """What differs from the defaults of the algorithm, and what `auto` chose."""
    heading = Heading("Settings that are not the defaults")
    try:
        changed = changed_settings(run)
    except UserError as error:  # an algorithm of a plug-in that is not here
        return [heading, Paragraph(f"Not known: {str(error).splitlines()[0]}")]
    own = [
        [each.path, str(each.default), str(each.value)] for each in changed if each.default != AUTO
    ]
    chosen = [f"{each.path} {each.value}" for each in changed if each.default == AUTO]
    blocks: list[Block] = [heading]
    blocks.append(Grid(["key", "default", "here"], own) if own else Paragraph("None."))
    if chosen:
        blocks.append(Paragraph(f"Chosen by auto: {', '.join(chosen)}."))
    return blocks


def _alerts(run: Run) -> list[Block]:
    """What monitors saw, what the run warned of, and what it had to skip or go back for."""
    files = run.directory.alerts_file, run.directory.timing_alerts_file
    seen = sorted(
        (each for file in files for each in read_alerts(file)), key=lambda each: each.step
    )
    rows = [[f"{each.step:,}", each.monitor, each.message, each.tip] for each in seen]
    lines = _warnings(run.directory.log_file)
    skipped = run.summary.get("skipped") or {}
    lines += [f"{hook}: {count} calls skipped for a bad number" for hook, count in skipped.items()]
    lines += [f"went back: {each}" for each in run.summary.get("rollbacks") or []]
    if run.summary.get("error"):
        lines.append(str(run.summary["error"]))
    blocks: list[Block] = [Heading("Alerts")]
    if rows:
        blocks.append(Grid(["step", "monitor", "what", "try"], rows[:SHOWN_ALERTS]))
    if lines:
        more = [f"… and {len(lines) - SHOWN_ALERTS} more"] if len(lines) > SHOWN_ALERTS else []
        blocks.append(Items([*lines[:SHOWN_ALERTS], *more]))
    return blocks if len(blocks) > 1 else [*blocks, Paragraph("None.")]


def _debug(run: Run) -> list[Block]:
    """The closer look of `--debug`, as it was at the last update; none without it."""
    logs = run.directory.log_file.parent
    *_, last = [{}, *iterate_metrics(logs / WEIGHTS)]
    rows: dict[str, dict[str, float]] = {}
    for name, value in last.items():
        if name.startswith("debug/"):
            subject, _, what = name.removeprefix("debug/").rpartition("/")
            rows.setdefault(subject, {})[what] = value
    if not rows:
        return []
    columns = list(dict.fromkeys(what for row in rows.values() for what in row))
    cells = [
        [name, *(f"{row[what]:.3g}" if what in row else "" for what in columns)]
        for name, row in rows.items()
    ]
    files = [f"logs/{name}" for name in (WEIGHTS, PROFILE, TRACE) if (logs / name).exists()]
    return [Heading("Debug"), Grid(["at the last update", *columns], cells), Items(files)]


def _warnings(log_file: Path) -> list[str]:
    try:
        with open_to_read(log_file) as file:
            return [
                line.decode(errors="replace").rstrip("\n") for line in file if b" WARNING" in line
            ]
    except OSError:
        return []


def _reproduce(run: Run) -> list[Block]:
    facts = read_provenance(run.directory)
    blocks: list[Block] = [Heading("Run it again"), Code(_command(run))]
    if not facts:
        return blocks
    git, packages = facts.get("git"), facts.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    machine = [f"{facts.get('cpu_count')} x {facts.get('cpu')}", *map(str, facts.get("gpus") or [])]
    lines = [
        ", ".join(f"{name} {version}" for name, version in packages.items() if version),
        f"Python {facts.get('python')}, {facts.get('platform')}",
        ", ".join(machine),
    ]
    if isinstance(git, Mapping):
        changed = " with uncommitted changes (in provenance.json)" if git.get("dirty") else ""
        lines.append(f"commit {git.get('sha')}{changed}")
    return [*blocks, Items(lines)]


def _command(run: Run) -> str:
    """What was typed; a run made from Python has its configuration instead.

    Without how it was to be printed, which `--jobs` adds to the command of each seed.
    """
    words = read_provenance(run.directory).get("command")
    if not isinstance(words, list) or not words:
        return shlex.join(["rl-lab", "train", "--config", str(run.directory.config_file)])
    kept = [word for word in map(str, words[1:]) if word not in PRINTING]
    return shlex.join(["rl-lab", *kept])
