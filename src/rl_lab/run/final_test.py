"""The test at the end of a run, on seeds that no evaluation has seen."""

from typing import Any

from rl_lab.collect.evaluate import Interrupted
from rl_lab.core.errors import NonFiniteError
from rl_lab.run import guard
from rl_lab.run.orchestrator import Orchestrator


def final_test(orchestrator: Orchestrator) -> dict[str, Any]:
    """The last policy, and the best one, on seeds that no evaluation has seen."""
    episodes = orchestrator.config.evaluation.test_episodes
    if episodes == 0:
        return {}
    try:
        return _tested(orchestrator, episodes)
    except NonFiniteError as error:  # the run is over and saved: this cannot undo it
        orchestrator.sinks.say(f"WARNING: no test result: {error}")
    except Interrupted:
        orchestrator.sinks.say("the run is complete and saved; its final test was interrupted")
    return {}


def _tested(orchestrator: Orchestrator, episodes: int) -> dict[str, Any]:
    def measured() -> dict[str, float]:
        summary = orchestrator.evaluate("test", episodes).summary()
        guard.check_score(summary["return_mean"])
        return summary

    result = {"last": measured()}
    best = orchestrator.progress.best_step
    if best == orchestrator.counters.env_steps:
        result["best"] = result["last"]
    elif best is not None and best in orchestrator.store.steps():
        # The run is saved and over: what it learned may now become an older self.
        orchestrator.load_learned(orchestrator.store.load(best, rows=False)[0])
        result["best"] = measured()
    return result
