"""RL Lab: one framework for the whole life of a reinforcement-learning experiment.

Public are the names in `__all__` here and in `rl_lab.plugin`. Everything else may change from one
version to the next.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_lab.algorithms.bandits import (
        EpsilonGreedyConfig,
        GradientBanditConfig,
        ThompsonConfig,
        UCBConfig,
    )
    from rl_lab.algorithms.base import Algorithm, Workflow
    from rl_lab.algorithms.brownian import BrownianConfig
    from rl_lab.algorithms.dqn import DQNConfig
    from rl_lab.algorithms.dreamer.dreamer import (
        DreamerV1Config,
        DreamerV2Config,
        DreamerV3Config,
    )
    from rl_lab.algorithms.planet import PlaNetConfig
    from rl_lab.algorithms.ppo import PPOConfig
    from rl_lab.algorithms.r2d2 import R2D2Config
    from rl_lab.algorithms.random import RandomConfig
    from rl_lab.algorithms.reinforce import ReinforceConfig
    from rl_lab.algorithms.sac import SACConfig
    from rl_lab.algorithms.sql import SQLConfig
    from rl_lab.algorithms.tabular import QLearningConfig, SarsaConfig
    from rl_lab.algorithms.world_models.world_models import WorldModelsConfig
    from rl_lab.api import (
        Run,
        evaluate,
        fork,
        load_policy,
        load_run,
        metrics,
        play,
        record,
        register_algorithm,
        register_buffer,
        register_environment,
        register_memory,
        register_network,
        register_wrapper,
        resume,
        runs,
        train,
        verify,
    )
    from rl_lab.core.batch import Action, CollectResult
    from rl_lab.core.errors import UserError
    from rl_lab.core.registry import register
    from rl_lab.run.callback import Callback
    from rl_lab.run.policy import Policy
    from rl_lab.run.session import Outcome

__version__ = "0.1.0"
__all__ = [
    "Action",
    "Algorithm",
    "BrownianConfig",
    "Callback",
    "CollectResult",
    "DQNConfig",
    "DreamerV1Config",
    "DreamerV2Config",
    "DreamerV3Config",
    "EpsilonGreedyConfig",
    "GradientBanditConfig",
    "Outcome",
    "PPOConfig",
    "PlaNetConfig",
    "Policy",
    "QLearningConfig",
    "R2D2Config",
    "RandomConfig",
    "ReinforceConfig",
    "Run",
    "SACConfig",
    "SQLConfig",
    "SarsaConfig",
    "ThompsonConfig",
    "UCBConfig",
    "UserError",
    "Workflow",
    "WorldModelsConfig",
    "__version__",
    "evaluate",
    "fork",
    "load_policy",
    "load_run",
    "metrics",
    "play",
    "record",
    "register",
    "register_algorithm",
    "register_buffer",
    "register_environment",
    "register_memory",
    "register_network",
    "register_wrapper",
    "resume",
    "runs",
    "train",
    "verify",
]
_ELSEWHERE = {
    "Action": "rl_lab.core.batch",
    "Algorithm": "rl_lab.algorithms.base",
    "Callback": "rl_lab.run.callback",
    "CollectResult": "rl_lab.core.batch",
    "Outcome": "rl_lab.run.session",
    "Policy": "rl_lab.run.policy",
    "UserError": "rl_lab.core.errors",
    "Workflow": "rl_lab.algorithms.base",
    "register": "rl_lab.core.registry",
}
_CONFIGS = {  # the registered algorithm whose options a config object holds
    "BrownianConfig": "brownian",
    "DQNConfig": "dqn",
    "DreamerV1Config": "dreamer_v1",
    "DreamerV2Config": "dreamer_v2",
    "DreamerV3Config": "dreamer_v3",
    "EpsilonGreedyConfig": "epsilon_greedy",
    "GradientBanditConfig": "gradient_bandit",
    "PPOConfig": "ppo",
    "PlaNetConfig": "planet",
    "QLearningConfig": "q_learning",
    "R2D2Config": "r2d2",
    "RandomConfig": "random",
    "ReinforceConfig": "reinforce",
    "SACConfig": "sac",
    "SQLConfig": "sql",
    "SarsaConfig": "sarsa",
    "ThompsonConfig": "thompson",
    "UCBConfig": "ucb",
    "WorldModelsConfig": "world_models",
}


def __getattr__(name: str) -> Any:
    """Found when first asked for: `import rl_lab` alone imports nothing heavy."""
    if name == "plugin":
        return import_module("rl_lab.plugin")
    if name not in __all__:
        raise AttributeError(f"module 'rl_lab' has no attribute '{name}'")
    if name in _CONFIGS:
        catalog: Any = import_module("rl_lab.config.catalog")
        return catalog.algorithm_class(_CONFIGS[name]).Config
    return getattr(import_module(_ELSEWHERE.get(name, "rl_lab.api")), name)


def __dir__() -> list[str]:
    """What there is to use."""
    return sorted({*globals(), *__all__})
