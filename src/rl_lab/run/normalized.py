"""Returns on the scale of a dataset: 0 is random play, 100 is that of its expert."""

from collections.abc import Callable
from dataclasses import replace

from rl_lab.buffers.about import references
from rl_lab.buffers.datasets import MINARI, find_data
from rl_lab.buffers.disk_ring import read_about
from rl_lab.buffers.offline import OfflineConfig
from rl_lab.collect.evaluate import Evaluation
from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig

NORMALIZED = "normalized_return"
Evaluate = Callable[[str, int], Evaluation]  # (purpose, episodes)


def references_of(config: RunConfig) -> dict[str, float]:
    """Those of the first dataset of a run that has them; none if it is not there any more."""
    for block in config.buffers.values():
        if not isinstance(block, OfflineConfig) or block.path.startswith(MINARI):
            continue
        try:
            found = references(read_about(find_data(block.path)) or {})
        except UserError:
            continue
        if found:
            return found
    return {}


def normalized_return(mean: float, known: dict[str, float]) -> float:
    """100 · (return − random) / (expert − random)."""
    return 100.0 * (mean - known["random"]) / (known["expert"] - known["random"])


def normalized(evaluate: Evaluate, known: dict[str, float]) -> Evaluate:
    """The same evaluations, which also tell `normalized_return`, if there are references."""
    if not known:
        return evaluate

    def run(purpose: str, episodes: int) -> Evaluation:
        seen = evaluate(purpose, episodes)
        score = normalized_return(seen.return_mean, known)
        return replace(seen, measures={**seen.measures, NORMALIZED: score})

    return run
