"""What algorithms that imitate demonstrations share: options, the scale of a dataset, the rate.

Functions and configuration. Demonstrations come from a buffer that gives frames and the actions
that were taken from them on (`core.protocols.Chunks`); of a dataset, its own numbers scale both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from rl_lab.core.batch import ACTION, MASK, OBS, Batch, Obs
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.options import option, section
from rl_lab.core.protocols import AlgorithmContext, Buffer, Chunks, Dataset, Phase
from rl_lab.core.schema import AlgorithmConfig, RunConfig
from rl_lab.core.spec import Box, Observation
from rl_lab.networks.normalizer import Normalizer, make_normalizer

UPDATES = 20_000  # of the default phase


@dataclass(frozen=True, kw_only=True)
class ImitationConfig(AlgorithmConfig):
    """Steps of supervised learning. Any float may be a schedule of environment steps."""

    batch_size: int = option(256, "demonstrated steps of one gradient step", low=1)
    learning_rate: float = option(1e-3, "step size of the optimizer", above=0)
    warm_up_updates: int = option(
        0, "gradient steps in which the learning rate rises to its value", low=0
    )
    decay_updates: int | None = option(
        None,
        "gradient steps after which the learning rate has fallen to 0 (cosine); 0: it stays; "
        "not given: all updates that the phases ask for",
        low=0,
    )
    max_grad_norm: float = option(10.0, "largest norm of a gradient", above=0)
    normalize: Literal["moments", "range", "off"] = option(
        "moments",
        "observations of a dataset: mean 0 and deviation 1, or its range to [-1, 1], or as they "
        "are; actions always by their range",
    )
    optimizer: OptimizerConfig = section(OptimizerConfig, "the optimizer's own settings")
    collect_steps: int = option(
        128, "vector steps per collect call, in phases that collect demonstrations", low=1
    )

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = []
        if run.network.memory.type != "none":
            problems.append(
                f"network.memory has no use here: {run.algorithm.name} does not learn from whole "
                "episodes"
            )
        if run.environment.normalize_obs:
            problems.append(
                "environment.normalize_obs has no use here: algorithm.normalize scales "
                "observations by the dataset"
            )
        return problems

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay."""
        return float(planned_updates(run.training.phases) or UPDATES)


def offline_phases(updates: int = UPDATES) -> list[dict[str, Any]]:
    """One phase that only learns."""
    return [
        {"name": "imitate", "type": "offline", "hooks": ["update"], "duration_updates": updates}
    ]


def planned_updates(phases: Sequence[Mapping[str, Any]]) -> int:
    """Updates that phases ask for by number; 0 if there are none."""
    total = 0
    for block in phases:
        if "repeat" in block:
            total += int(block["repeat"]) * planned_updates(block["phases"])
        else:
            total += int(float(block.get("duration_updates") or 0))
    return total


def learning_rate_share(updates: int, *, warm_up: int, total: int) -> float:
    """The share of a learning rate: rises linearly for `warm_up` updates, falls to 0 at `total`.

    It falls as half a cosine; with `total` 0 it stays.
    """
    if updates < warm_up:
        return (updates + 1) / warm_up
    if not total:
        return 1.0
    share = min((updates - warm_up) / max(total - warm_up, 1), 1.0)
    return 0.5 * (1 + math.cos(math.pi * share))


def decay_length(config: ImitationConfig, run: RunConfig) -> int:
    """`decay_updates`, or what the phases say; 0: no decay."""
    if config.decay_updates is not None:
        return config.decay_updates
    return planned_updates(run.training.phases) if run.training.phases else UPDATES


class ActionScale(nn.Module):
    """Actions between the bounds that a dataset has, as numbers in [-1, 1]."""

    center: Tensor
    half_width: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(size))
        self.register_buffer("half_width", torch.ones(size))

    def set_range(self, low: Any, high: Any) -> None:
        """Take these bounds; a number that never changes keeps its unit."""
        low, high = (torch.as_tensor(each, dtype=torch.float32) for each in (low, high))
        self.center.copy_((low + high) / 2)
        self.half_width.copy_(torch.where(high > low, (high - low) / 2, torch.ones_like(low)))

    def forward(self, action: Tensor) -> Tensor:
        """[..., A] to [-1, 1]."""
        return (action - self.center) / self.half_width

    def inverse(self, unit: Tensor) -> Tensor:
        """[-1, 1] to the units of the algorithm."""
        return self.center + self.half_width * unit


class DatasetScale(nn.Module):
    """How observations and actions of a dataset become numbers that networks like.

    Until `fit` has seen a dataset, both pass as they are. A buffer that is collected into has no
    fixed range, so there they always do.
    """

    fitted: Tensor

    def __init__(self, mode: str, observation: Observation, action: Any) -> None:
        super().__init__()
        self.mode = mode
        self.observation: Normalizer = make_normalizer(
            "off" if mode == "off" else "running", observation
        )
        self.action = ActionScale(action.size) if isinstance(action, Box) else None
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def fit(self, buffer: Buffer) -> None:
        """Take over the numbers of the dataset; only the first one counts."""
        if self.fitted or not isinstance(buffer, Dataset):
            return
        if self.action is not None:
            self.action.set_range(*buffer.action_range())
        if self.observation.mode == "off":
            pass  # images and indices have their own scale
        elif self.mode == "moments":
            self.observation.set_statistics(buffer.observation_statistics())
        else:
            self.observation.set_range(*buffer.observation_range())
        self.fitted.fill_(True)

    def to_unit(self, action: Tensor) -> Tensor:
        """Demonstrated actions as the network sees them; indices stay."""
        return action if self.action is None else self.action(action)

    def from_unit(self, action: Tensor) -> Tensor:
        """What the network decides, in the units of the algorithm."""
        return action if self.action is None else self.action.inverse(action.clamp(-1.0, 1.0))


def sample_chunks(
    buffer: Buffer,
    budget: UpdateBudget,
    phase: Phase,
    batch_size: int,
    *,
    past: int,
    future: int,
) -> Batch | None:
    """One minibatch [1, B, …] of the last `past` frames and the actions around them, if any.

    ACTION [1, B, past − 1 + future, A] has those that led to the newest frame, then those that were
    taken from it on.
    """
    if not budget.due(phase, 0.0, ready=buffer.ready()):
        return None
    demonstrations = cast(Chunks, buffer)  # `learns_from` is checked when a run is built
    return demonstrations.chunks(batch_size, past, future, before=past - 1)


def scaled(batch: Batch, scale: DatasetScale) -> tuple[Obs, Tensor, Tensor]:
    """Frames, actions and mask of chunks, as networks see them."""
    return scale.observation(batch[OBS]), scale.to_unit(batch[ACTION]), batch[MASK]


def fit_scale(context: AlgorithmContext, scale: DatasetScale, phase: Phase) -> None:
    """Learn the scale of the phase's dataset, before the first gradient step from it."""
    if not scale.fitted:
        scale.fit(context.buffer(phase))
