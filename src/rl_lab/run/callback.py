"""The public interface of code that is called during a run: `training.callbacks`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rl_lab.collect.evaluate import Evaluation

if TYPE_CHECKING:
    from rl_lab.run.orchestrator import Orchestrator


class Callback:
    """Called by a run at fixed points; override what you need.

    `@register("callback", "NAME")` on a subclass makes it known; `training.callbacks: {any_name:
    {type: NAME, …}}` uses it. The block is the only argument of the constructor. A dataclass
    `Config` of the class says which keys it has; its method `check(config)` may return problems
    that join it with other options. With `state_dict` and `load_state_dict` (plain data, arrays,
    tensors) a callback is saved in every checkpoint and resumed exactly. An exception ends the run.

    Of the run, rely on `config`, `algorithm`, `counters` (`env_steps`, `updates`),
    `sinks.say(text)`, `progress.note(metrics, mean=False)` for the next row of metrics, and
    `resources.callback(function)` for what is to be done when it is closed.
    """

    def initialize(self, run: "Orchestrator") -> None:
        """The run is built; nothing was played or loaded yet."""

    def on_metrics(self, run: "Orchestrator", metrics: Mapping[str, float]) -> None:
        """A rollout, an update or an evaluation reported metrics, by their full names."""

    def after_update(self, run: "Orchestrator", hook: str) -> None:
        """An update hook of the algorithm returned; its metrics were not checked yet."""

    def after_hook(self, run: "Orchestrator") -> None:
        """A hook of the cycle is over, counted and logged: the run may be saved here."""

    def after_evaluation(self, run: "Orchestrator", evaluation: Evaluation) -> None:
        """The policy was evaluated; the metrics of it are reported next."""

    def after_checkpoint(self, run: "Orchestrator") -> None:
        """A checkpoint was written."""

    def after_rollback(self, run: "Orchestrator", step: int) -> None:
        """The run went back to the checkpoint of this step (`compute.on_nonfinite: rollback`)."""
