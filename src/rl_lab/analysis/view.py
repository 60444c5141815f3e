"""A view of a run in training that also leaves a report: for the callers of `run.session`."""

from collections.abc import Sequence

from rl_lab.core.schema import RunConfig
from rl_lab.display.sinks import Sink
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.session import View


def with_report(view: View) -> View:
    """The view, and a report at the end of the run if `logging.report` says so."""

    def shown(config: RunConfig, directory: RunDirectory, start: int) -> Sequence[Sink]:
        sinks = view(config, directory, start)
        if not config.logging.report:
            return sinks
        from rl_lab.analysis.report import ReportSink  # it imports a lot

        return [*sinks, ReportSink(directory)]

    return shown
