"""What authors of algorithms, environments, networks, buffers and sinks import.

These names are public, like those of `rl_lab`: they stay where they are from one version to the
next. What a part of each kind has to offer is in CONTRIBUTING.md.
"""

from rl_lab.algorithms.base import Algorithm, Workflow
from rl_lab.api import (
    register_algorithm,
    register_buffer,
    register_environment,
    register_memory,
    register_network,
    register_wrapper,
)
from rl_lab.core.batch import (
    ACTION,
    ACTION_MASK,
    BURN_IN,
    INDEX,
    LATENT,
    LOG_PROB,
    MASK,
    NEXT_OBS,
    OBS,
    PREVIOUS_ACTION,
    RESET,
    REWARD,
    STATE,
    STEPS,
    TERMINATED,
    TRUNCATED,
    WEIGHT,
    Action,
    Batch,
    CollectResult,
    Metrics,
)
from rl_lab.core.errors import ConfigError, NonFiniteError, UserError
from rl_lab.core.learner import Learner, all_or_nothing
from rl_lab.core.options import option, section
from rl_lab.core.picture import Lines, Picture
from rl_lab.core.protocols import AlgorithmContext, BufferSetup, Phase, WorkflowContext
from rl_lab.core.registry import register
from rl_lab.core.schedule import Schedule, at, extremes, parse_schedule
from rl_lab.core.schema import AlgorithmConfig, BufferConfig
from rl_lab.core.spec import (
    Box,
    Demonstrator,
    Dict,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    Observation,
    Space,
)
from rl_lab.core.state import Stateful, Tree
from rl_lab.display.sinks import Sink

__all__ = [
    "ACTION",
    "ACTION_MASK",
    "BURN_IN",
    "INDEX",
    "LATENT",
    "LOG_PROB",
    "MASK",
    "NEXT_OBS",
    "OBS",
    "PREVIOUS_ACTION",
    "RESET",
    "REWARD",
    "STATE",
    "STEPS",
    "TERMINATED",
    "TRUNCATED",
    "WEIGHT",
    "Action",
    "Algorithm",
    "AlgorithmConfig",
    "AlgorithmContext",
    "Batch",
    "Box",
    "BufferConfig",
    "BufferSetup",
    "CollectResult",
    "ConfigError",
    "Demonstrator",
    "Dict",
    "Discrete",
    "EnvSpec",
    "Learner",
    "Lines",
    "Metrics",
    "MultiDiscrete",
    "NonFiniteError",
    "Observation",
    "Phase",
    "Picture",
    "Schedule",
    "Sink",
    "Space",
    "Stateful",
    "Tree",
    "UserError",
    "Workflow",
    "WorkflowContext",
    "all_or_nothing",
    "at",
    "extremes",
    "option",
    "parse_schedule",
    "register",
    "register_algorithm",
    "register_buffer",
    "register_environment",
    "register_memory",
    "register_network",
    "register_wrapper",
    "section",
]
