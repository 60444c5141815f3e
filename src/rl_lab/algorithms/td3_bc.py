"""TD3+BC: TD3 from a dataset (Fujimoto and Gu 2021, arXiv:2106.06860).

It is TD3 with two changes: the actor also imitates the actions of the data (`alpha`, in
`td3.actor_loss`), so that it stays where the critics have seen something, and observations are
normalized by the statistics of the dataset. Departures: gradients are clipped as in TD3; online
phases keep the imitation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rl_lab.algorithms.base import Version
from rl_lab.algorithms.offline import PHASES, offline_defaults
from rl_lab.algorithms.td3 import TD3, TD3Config
from rl_lab.core.options import option


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(TD3Config):
    """Hyperparameters of TD3+BC. Any float may be a schedule."""

    default_phases: ClassVar[Sequence[Mapping[str, Any]]] = PHASES
    learning_starts: int = option(0, "environment steps of random actions before learning online")
    alpha: float | None = option(
        2.5, "weight of the value against imitating the actions of the data; 0: behavior cloning"
    )


TD3BC = Version(
    TD3,
    "TD3+BC: offline, deterministic policy, continuous actions; imitates the data as it improves.",
    config=TD3BCConfig,
    phases=PHASES,
    defaults=offline_defaults(TD3.defaults),
)
