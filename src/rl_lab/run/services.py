"""What a run tells to services elsewhere: Weights & Biases, and a webhook for its alerts."""

import os
from dataclasses import replace
from pathlib import Path

from rl_lab.config.tree import to_tree
from rl_lab.core.schema import HIDDEN, RunConfig
from rl_lab.display.sinks import Sinks
from rl_lab.display.wandb import WandbSink, choose_mode
from rl_lab.display.webhook import VARIABLE, WebhookSink
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.orchestrator import Orchestrator


def without_webhook(config: RunConfig, sinks: Sinks) -> RunConfig:
    """Post alerts from now on; the config that is written down does not have the URL, a secret."""
    alerts = config.logging.alerts
    add_webhook(alerts.webhook, sinks)
    hidden = replace(alerts, webhook=HIDDEN if alerts.webhook else None)
    return replace(config, logging=replace(config.logging, alerts=hidden))


def add_webhook(url: str | None, sinks: Sinks) -> None:
    """Post alerts to a URL, or to that of the environment; a saved config has lost its own."""
    found = os.environ.get(VARIABLE) if url in (None, HIDDEN) else url
    if found:
        sinks.add(lambda: WebhookSink(found, tell=sinks.say))
    elif url == HIDDEN:
        sinks.warn(f"alerts are not posted: the webhook was not saved; set {VARIABLE}")


def add_wandb(orchestrator: Orchestrator, directory: RunDirectory, known: str | None) -> str:
    """Track the run with Weights & Biases, in a process of its own; its id there, kept for life."""
    # With the time of its birth: no run of another machine has the same id.
    identity = known or f"{directory.created}-{directory.id}".lstrip("-")[:64]
    config, sinks = orchestrator.config, orchestrator.sinks
    wanted = config.logging.wandb
    mode, reason = choose_mode(wanted.mode, os.environ, Path.home())
    if mode == "disabled":
        sinks.say(f"W&B: disabled ({reason})")
        return identity
    later = f"; to send it later: wandb sync {directory.path}/wandb/offline-run-*"
    sinks.say(f"W&B: {mode} ({reason}){later if mode == 'offline' else ''}")
    options = {
        "mode": mode,
        "dir": str(directory.path),
        "project": wanted.project,
        "entity": wanted.entity,
        "tags": [*config.experiment.tags, *wanted.tags],
        "id": identity,
        "name": directory.path.name,
        "config": to_tree(config),
    }
    sinks.add(lambda: WandbSink(options, tell=sinks.say))
    return identity
