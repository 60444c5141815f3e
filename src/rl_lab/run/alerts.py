"""Alerts of a run's monitors: reported, written, saved, and a reason to stop where asked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_lab.core.schema import RunConfig
from rl_lab.core.spec import Discrete, EnvSpec
from rl_lab.display.sinks import Sinks
from rl_lab.monitoring.catalog import monitors_of, of_machine
from rl_lab.monitoring.watch import Watch
from rl_lab.records.alerts import read_alerts, write_alerts
from rl_lab.records.run_directory import RunDirectory

SPEED = "time/sps"


class Alerts:
    """Looks at every row of metrics, and is saved with the run: a resumed one alerts the same.

    What is about a clock or a machine has a file of its own and is not saved.
    """

    def __init__(self, config: RunConfig, spec: EnvSpec, folder: Path, sinks: Sinks) -> None:
        self.policy, self.total = config.logging.alerts.policy, config.training.total_timesteps
        self.sinks, self.directory = sinks, RunDirectory(folder)
        found = monitors_of(config, discrete=isinstance(spec.action, Discrete))
        self.learning = Watch({n: each for n, each in found.items() if not of_machine(each)})
        self.machine = Watch({n: each for n, each in found.items() if of_machine(each)})
        self.machine.alerts = read_alerts(self.directory.timing_alerts_file)
        self.stop_reason: str | None = None
        self._work: tuple[str, bool] | None = None  # of the last stretch: phase, whether it learned
        self._updates = 0.0

    def look(
        self, step: int, row: Mapping[str, float], timing: Mapping[str, float], *, phase: str = ""
    ) -> None:
        """One row: report what is wrong with it."""
        self._judge(self.learning, self.directory.alerts_file, step, row)
        if not self._does_the_same(phase, row.get("updates", 0.0)):
            timing = {name: each for name, each in timing.items() if name != SPEED}
        self._judge(self.machine, self.directory.timing_alerts_file, step, timing)

    def _does_the_same(self, phase: str, updates: float) -> bool:
        """Whether a stretch can be as fast as the one before: it learns in the same phase.

        A warm-up without updates is faster by far; what was usual in another phase is forgotten.
        """
        work, before = (phase, updates > self._updates), self._work
        self._work, self._updates = work, updates
        if before is not None and before[0] != phase:
            self.machine.forget(SPEED)
        return work[1] and work == before

    def look_closely(self, step: int, row: Mapping[str, float]) -> None:
        """A row of `--debug`, or what the pictures of an evaluation show."""
        self._judge(self.machine, self.directory.timing_alerts_file, step, row)

    def names(self) -> list[str]:
        """The monitors that have fired, in their order, each once."""
        return list(
            dict.fromkeys(each.monitor for each in self.learning.alerts + self.machine.alerts)
        )

    def state_dict(self) -> dict[str, Any]:
        """What the same rows would give again."""
        return self.learning.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: later alerts are forgotten, as later rows of metrics are."""
        before = len(read_alerts(self.directory.alerts_file))
        self.learning.load_state_dict(state)
        if before or self.learning.alerts:
            self._write(self.directory.alerts_file, self.learning)

    def _judge(self, watch: Watch, file: Path, step: int, row: Mapping[str, float]) -> None:
        found = watch.look(step, row, share=min(step / self.total, 1.0))
        if found:
            self._write(file, watch)
        for alert in found:
            self.sinks.alert(alert)
            if (watch.monitors[alert.monitor].policy or self.policy) == "stop":
                self.stop_reason = alert.text

    def _write(self, file: Path, watch: Watch) -> None:
        try:
            write_alerts(file, watch.alerts)
        except OSError as error:
            self.sinks.warn(f"{file.name} could not be written: {error.strerror}")
