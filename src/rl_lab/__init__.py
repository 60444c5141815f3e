"""RL Lab: one framework for the whole life of a reinforcement-learning experiment."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_lab.algorithms.base import Workflow
    from rl_lab.api import (
        Policy,
        evaluate,
        fork,
        load_policy,
        metrics,
        play,
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
    from rl_lab.core.registry import register
    from rl_lab.run.callback import Callback
    from rl_lab.run.session import Outcome

__all__ = [
    "Action",
    "Callback",
    "CollectResult",
    "Outcome",
    "Policy",
    "Workflow",
    "evaluate",
    "fork",
    "load_policy",
    "metrics",
    "play",
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
    "Callback": "rl_lab.run.callback",
    "CollectResult": "rl_lab.core.batch",
    "Outcome": "rl_lab.run.session",
    "Workflow": "rl_lab.algorithms.base",
    "register": "rl_lab.core.registry",
}


def __getattr__(name: str) -> Any:
    """Found when first asked for: `import rl_lab` alone imports nothing heavy."""
    if name not in __all__:
        raise AttributeError(f"module 'rl_lab' has no attribute '{name}'")
    return getattr(import_module(_ELSEWHERE.get(name, "rl_lab.api")), name)


def __dir__() -> list[str]:
    """What there is to use."""
    return sorted([*globals(), *__all__])
