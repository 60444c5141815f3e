"""Update rules: Adam and its relatives on one flat vector of parameters.

Functions of tensors: from a clipped gradient to new parameters, without effect if a number is not
finite. `core.learner.Learner` owns the parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rl_lab.core.options import Options, option

_SMALLEST_NORM = 1e-3  # of a tensor, for `agc`: those that begin as zero must be able to move


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Options):
    """Adam and its relatives; the learning rate belongs to the algorithm."""

    name: Literal["adam", "adamw", "laprop", "rmsprop", "sgd"] = option(
        "adam", "adamw has decoupled weight decay; laprop averages gradients after scaling them"
    )
    beta1: float = option(
        0.9, "decay of the first moment; the momentum of sgd; not in rmsprop", low=0, below=1
    )
    beta2: float = option(0.999, "decay of the second moment; not in sgd", low=0, below=1)
    eps: float = option(1e-5, "added to the root of the second moment; not in sgd", above=0)
    weight_decay: float = option(0.0, "pull of the weights towards zero", low=0)
    agc: float = option(
        0.0,
        "largest norm of a tensor's gradient, as a share of the tensor's own norm; 0: any",
        low=0,
    )
    accumulate: int = option(
        1,
        "pieces of a batch whose gradients are averaged before a step: less memory, same step",
        low=1,
    )


@dataclass(frozen=True, kw_only=True)
class LaPropConfig(OptimizerConfig):
    """LaProp with adaptive gradient clipping: the optimizer of Dreamer v3."""

    name: Literal["adam", "adamw", "laprop", "rmsprop", "sgd"] = option(
        "laprop", "adamw has decoupled weight decay; laprop averages gradients after scaling them"
    )
    eps: float = option(1e-8, "added to the root of the second moment; not in sgd")
    agc: float = option(
        0.3, "largest norm of a tensor's gradient, as a share of the tensor's own norm; 0: any"
    )


class AdamState(NamedTuple):
    """Everything that one update reads and writes. `finite` is False after the first bad number."""

    flat: Tensor
    first: Tensor
    second: Tensor
    updates: Tensor
    finite: Tensor


def bias_corrections(updates: Tensor, config: OptimizerConfig) -> tuple[Tensor, Tensor]:
    """Adam's bias corrections 1 − βᵗ of both moments, for the step after `updates` steps.

    Not inside of what is compiled: a compiler takes the powers again for every parameter, which
    costs more than the rest of the step. On a CPU, where reading a number is free, Python does it.
    """
    if updates.is_cpu:
        count = updates.item() + 1
        return torch.tensor(1 - config.beta1**count), torch.tensor(1 - config.beta2**count)
    step = updates + 1
    return 1 - config.beta1**step, 1 - config.beta2**step


def adam(
    state: AdamState,
    gradient: Tensor,
    finite: Tensor,
    config: OptimizerConfig,
    *,
    corrections: tuple[Tensor, Tensor],
    learning_rate: Tensor,
    weight_decay: Tensor | float,
) -> AdamState:
    """One step, or none unless `finite`. Pure: for compilers.

    `corrections` are `bias_corrections`; `learning_rate` is 0-d or has one value per parameter, and
    `weight_decay` may have, too.
    """
    if config.name != "adamw" and config.weight_decay:
        gradient = gradient + weight_decay * state.flat
    updates, first, second = state.updates + 1, state.first, state.second
    if config.name == "sgd":
        first = config.beta1 * first + gradient
        step = learning_rate * first
    else:
        second = torch.lerp(second, gradient.square(), 1 - config.beta2)
        if config.name == "rmsprop":
            step = learning_rate * gradient / (second.sqrt() + config.eps)
        elif config.name == "laprop":
            scaled = gradient / ((second / corrections[1]).sqrt() + config.eps)
            first = torch.lerp(first, scaled, 1 - config.beta1)
            step = learning_rate / corrections[0] * first
        else:
            first = torch.lerp(first, gradient, 1 - config.beta1)
            denominator = (second / corrections[1]).sqrt() + config.eps
            step = learning_rate / corrections[0] * (first / denominator)
    if config.name == "adamw" and config.weight_decay:
        step = step + learning_rate * weight_decay * state.flat
    new = AdamState(state.flat - step, first, second, updates, finite)
    kept = [torch.where(finite, fresh, old) for fresh, old in zip(new[:4], state[:4], strict=True)]
    finite = finite & torch.isfinite(kept[0].sum() + kept[1].sum() + kept[2].sum())
    return AdamState(kept[0], kept[1], kept[2], kept[3], finite)


def adam_in_place(
    state: AdamState,
    gradient: Tensor,
    finite: Tensor,
    config: OptimizerConfig,
    *,
    learning_rate: Tensor,
) -> AdamState:
    """The same step by torch's fused kernel, which writes into the tensors of `state`."""
    skipped = (~finite).to(gradient.dtype)
    state.updates.add_(1 - skipped)
    fused = torch._fused_adam_ if config.name == "adam" else torch._fused_adamw_
    fused(
        [state.flat],
        [gradient],
        [state.first],
        [state.second],
        [],
        [state.updates],
        lr=learning_rate,
        beta1=config.beta1,
        beta2=config.beta2,
        weight_decay=config.weight_decay,
        eps=config.eps,
        amsgrad=False,
        maximize=False,
        found_inf=skipped,  # 1: nothing is written
    )
    return state._replace(finite=finite)


def clip_by_tensor(gradient: Tensor, flat: Tensor, sizes: Sequence[int], limit: float) -> Tensor:
    """Adaptive gradient clipping (Brock et al. 2021), by whole tensors as in Dreamer v3.

    The gradient of each tensor has at most `limit` times the norm of the tensor itself.
    """
    parts, weights = gradient.split(sizes), flat.split(sizes)
    norms = torch.stack([torch.linalg.vector_norm(each) for each in parts])
    limits = torch.stack([torch.linalg.vector_norm(each) for each in weights])
    limits = limit * limits.clamp(min=_SMALLEST_NORM)
    shares = (limits / norms.clamp(min=1e-6)).clamp(max=1.0)
    return torch.cat([part * share for part, share in zip(parts, shares, strict=True)])
