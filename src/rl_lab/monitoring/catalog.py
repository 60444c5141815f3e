"""The monitors of a run: those of the lab, the user's metrics.yaml, and the run's own config."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from rl_lab.core.checker import Checker
from rl_lab.core.errors import did_you_mean
from rl_lab.core.schema import MonitorConfig, RunConfig
from rl_lab.display.metric_style import BUILT_IN, MONITORS, OWN, read_metrics_yaml

# Metrics of a clock, of a machine, or of a closer look (`--debug`, pictures): in timing.jsonl and
# in logs/, no part of what a run repeats.
MACHINE = ("time/", "sys/", "debug/", "open_loop/")


def built_in() -> dict[str, MonitorConfig]:
    """The lab's own monitors."""
    return declared(BUILT_IN)


def declared(file: Path) -> dict[str, MonitorConfig]:
    """The monitors that a metrics.yaml declares; every mistake at once."""
    checker = Checker()
    blocks = read_metrics_yaml(file, checker.problems).get(MONITORS) or {}
    path = f"{file}: {MONITORS}"
    if not isinstance(blocks, Mapping):
        checker.report(path, "must be a block of monitors by name")
        blocks = {}
    found = {
        str(name): checker.block(MonitorConfig, block, f"{path}.{name}")
        for name, block in blocks.items()
    }
    checker.finish()
    return found


def with_own_monitors(config: RunConfig, file: Path = OWN) -> RunConfig:
    """The config with the monitors of the user's metrics.yaml in it: a resume finds them there."""
    alerts = config.logging.alerts
    if alerts.policy == "ignore":
        return config
    own = {**declared(file), **alerts.monitors}
    known = {**built_in(), **own}
    checker = Checker()
    for pattern in alerts.ignore:
        if not any(fnmatchcase(name, pattern) for name in known):
            hint = did_you_mean(pattern, known)
            checker.report("logging.alerts.ignore", f"no monitor is called '{pattern}'{hint}")
    checker.finish()
    logging = replace(config.logging, alerts=replace(alerts, monitors=own))
    return replace(config, logging=logging)


def monitors_of(config: RunConfig, *, discrete: bool) -> dict[str, MonitorConfig]:
    """What watches this run, by name."""
    alerts = config.logging.alerts
    if alerts.policy == "ignore":
        return {}
    actions = ("any", "discrete" if discrete else "continuous")
    return {
        name: _within_hours(monitor, alerts.max_hours)
        for name, monitor in {**built_in(), **alerts.monitors}.items()
        if monitor.actions in actions
        and matches(config.algorithm.name, monitor.algorithms or ["*"])
        and not (alerts.ignore and matches(name, alerts.ignore))
    }


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns means the name and none excludes it (`!random`)."""
    wanted = [each for each in patterns if not each.startswith("!")] or ["*"]
    refused = [each[1:] for each in patterns if each.startswith("!")]
    return any(fnmatchcase(name, each) for each in wanted) and not any(
        fnmatchcase(name, each) for each in refused
    )


def of_machine(monitor: MonitorConfig) -> bool:
    """Whether it watches a clock or a machine: its alerts differ from run to run."""
    return monitor.metric.startswith(MACHINE)


def _within_hours(monitor: MonitorConfig, hours: float | None) -> MonitorConfig:
    """The one monitor whose limit is an option of its own."""
    if monitor.metric != ETA or hours is None:
        return monitor
    return replace(monitor, above=hours)


ETA = "time/total_hours"  # of the whole run: what is over, and the rest at the present speed
