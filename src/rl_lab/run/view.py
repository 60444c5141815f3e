"""What shows a run in training to a human: the terminal view, or only its warnings."""

import warnings
from collections.abc import Callable, Sequence

from rl_lab.core.schema import RunConfig
from rl_lab.display.sinks import ALERT, LOUD, Sink
from rl_lab.records.metrics import STEP, iterate_metrics
from rl_lab.records.run_directory import RunDirectory


def terminal_view(
    config: RunConfig, directory: RunDirectory, start: int, *, on_stderr: bool = False
) -> Sequence[Sink]:
    """Progress for a human; a resumed run shows the history it already has."""
    from rl_lab.display.terminal import TerminalView

    name = config.experiment.name or f"{config.environment.id} {config.algorithm.name}"
    title = f"{name} · seed {config.experiment.seed} · run {directory.id}"
    total = config.training.total_timesteps
    view = TerminalView(total, title=title, start_step=start, on_stderr=on_stderr)
    for row in iterate_metrics(directory.metrics_file) if start else ():
        view.remember(row.pop(STEP), row)
    view.show()
    return [view]


class WarningSink(Sink):
    """Passes on what is wrong, and shows nothing else."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        self.warn = warn

    def say(self, message: str) -> None:
        """One message; those that are no warnings are only in the run's log."""
        if message.startswith(LOUD):
            self.warn(message)


def warnings_view(config: RunConfig, directory: RunDirectory, start: int) -> Sequence[Sink]:
    """Warnings as Python's own."""
    return [WarningSink(lambda message: warnings.warn(_without_word(message), stacklevel=2))]


def _without_word(message: str) -> str:
    """The line without what it begins with: Python says itself that it is a warning."""
    return message.removeprefix("WARNING: ").removeprefix(f"{ALERT} ")
