"""One flat parameter vector, and one pure function that updates it.

A module's parameters become views of one tensor, so clipping is one norm, the optimiser is one
elementwise pass, a copy is one copy. The whole update, from loss to new parameters, is a pure
function of tensors: it runs as it is, or compiled whole. Do not deepcopy a flattened module or
change its dtype: that breaks the views.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from rl_lab.core.batch import Metrics
from rl_lab.core.compiled import Compiled
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.options import option
from rl_lab.core.target import Frozen
from rl_lab.core.tree import first_leaf

# (module, *tensors) -> (scalar loss, named 0-d tensors)
Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
Found = tuple[Tensor, Tensor, dict[str, Tensor]]  # gradient, loss, metrics
_SMALLEST_NORM = 1e-3  # of a tensor, for `agc`: those that begin as zero must be able to move


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam and its relatives; the learning rate belongs to the algorithm."""

    name: Literal["adam", "adamw", "laprop", "rmsprop", "sgd"] = option(
        "adam", "adamw has decoupled weight decay; laprop averages gradients after scaling them"
    )
    beta1: float = option(0.9, "decay of the first moment; the momentum of sgd; not in rmsprop")
    beta2: float = option(0.999, "decay of the second moment; not in sgd")
    eps: float = option(1e-5, "added to the root of the second moment; not in sgd")
    weight_decay: float = option(0.0, "pull of the weights towards zero")
    agc: float = option(
        0.0, "largest norm of a tensor's gradient, as a share of the tensor's own norm; 0: any"
    )
    accumulate: int = option(
        1, "pieces of a batch whose gradients are averaged before a step: less memory, same step"
    )

    def __post_init__(self) -> None:
        """Moments decay, and nothing divides by zero."""
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name):g}")
        if self.eps <= 0 or self.weight_decay < 0 or self.agc < 0:
            raise ValueError("eps must be positive, weight_decay and agc 0 or more")
        if self.accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, got {self.accumulate}")


@dataclass(frozen=True, kw_only=True)
class LaPropConfig(OptimizerConfig):
    """LaProp with adaptive gradient clipping: the optimiser of Dreamer v3."""

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


@lru_cache(maxsize=256)
def scalar(value: float, device: str) -> Tensor:
    """A hyperparameter as a 0-d tensor. Most stay the same: they are made once. Read only."""
    return torch.tensor(float(value), device=device)


def is_finite(state: AdamState, norm: Tensor, loss: Tensor) -> Tensor:
    """False from the first step on whose loss or gradient is not finite."""
    return state.finite & torch.isfinite(norm + loss)


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
    loss: Tensor,
    config: OptimizerConfig,
    *,
    corrections: tuple[Tensor, Tensor],
    learning_rate: Tensor,
    max_grad_norm: Tensor,
) -> tuple[AdamState, Tensor]:
    """One clipped step, or no step at all if a number is not finite. Pure: for compilers.

    `corrections` are `bias_corrections`; `learning_rate` is 0-d or has one value per parameter.
    Returns the new state and the norm of the gradient before clipping.
    """
    norm = torch.linalg.vector_norm(gradient)
    finite = is_finite(state, norm, loss)
    gradient = gradient * (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
    if config.name != "adamw" and config.weight_decay:
        gradient = gradient + config.weight_decay * state.flat
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
        step = step + learning_rate * config.weight_decay * state.flat
    new = AdamState(state.flat - step, first, second, updates, finite)
    kept = [torch.where(finite, fresh, old) for fresh, old in zip(new[:4], state[:4], strict=True)]
    finite = finite & torch.isfinite(kept[0].sum() + kept[1].sum() + kept[2].sum())
    return AdamState(kept[0], kept[1], kept[2], kept[3], finite), norm


def adam_in_place(
    state: AdamState,
    gradient: Tensor,
    loss: Tensor,
    config: OptimizerConfig,
    *,
    learning_rate: Tensor,
    max_grad_norm: Tensor,
) -> tuple[AdamState, Tensor]:
    """The same step by torch's fused kernel, which writes into the tensors of `state`."""
    norm = torch.linalg.vector_norm(gradient)
    finite = is_finite(state, norm, loss)
    gradient = gradient * (max_grad_norm / (norm + 1e-6)).clamp_(max=1.0)
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
    return state._replace(finite=finite), norm


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


def accumulated(gradient_of: Callable[..., Found], arguments: tuple[Any, ...], count: int) -> Found:
    """Gradient, loss and metrics of a batch in up to `count` pieces, weighed by their rows.

    The batch is every argument with as many rows as the first one. For a loss that is a mean over
    rows the result is that of the whole batch; what a loss takes from the batch as a whole (a mean
    to subtract, a maximum to report) it takes from a piece.
    """
    if count == 1:
        return gradient_of(*arguments)
    rows = len(first_leaf(arguments[0]))
    size = -(-rows // count)
    gradient: Any = 0.0
    loss: Any = 0.0
    metrics: dict[str, Any] = {}
    for start in range(0, rows, size):
        share = min(size, rows - start) / rows
        piece = gradient_of(*_cut(arguments, rows, slice(start, start + size)))
        gradient, loss = gradient + share * piece[0], loss + share * piece[1]
        for name, value in piece[2].items():
            each = value.detach()  # a number of the batch, or one for each of its rows
            if each.dim():
                metrics[name] = torch.cat([metrics[name], each]) if name in metrics else each
            else:
                metrics[name] = metrics.get(name, 0.0) + share * each
    return gradient, loss, metrics


def _cut(arguments: Any, rows: int, span: slice) -> Any:
    """The span of every tensor that has so many rows; the rest as it is."""
    if isinstance(arguments, tuple):
        return tuple(_cut(each, rows, span) for each in arguments)
    if isinstance(arguments, dict):
        return {key: _cut(each, rows, span) for key, each in arguments.items()}
    has_rows = isinstance(arguments, Tensor) and arguments.dim() and len(arguments) == rows
    return arguments[span] if has_rows else arguments


class _LossModule(nn.Module):
    """A loss as a module, so that the parameters under it can be swapped."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, *arguments: Any) -> Any:
        return self.loss(self.module, *arguments)


class FlatOptimizer:
    """A module's parameters as one vector, with its Adam state and its compiled or eager update."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | None,
        config: OptimizerConfig,
        *,
        compile: bool = False,
        rate_patterns: Mapping[str, float] | None = None,
        only: Sequence[str] = (),
    ) -> None:
        """`only`: patterns of the parameters to own, where another optimiser owns the others.

        Without a loss there is only `descend`.
        """
        assert not (compile and only), "what others own would be compiled in as it is today"
        self.module = module
        self.config = config
        chosen = {
            name: parameter
            for name, parameter in module.named_parameters()
            if not only or any(fnmatchcase(name, pattern) for pattern in only)
        }
        self.names, self.parameters = list(chosen), list(chosen.values())
        self._buffers = dict(module.named_buffers())  # they move too, between two updates
        self.tensors: dict[str, Tensor] = {**chosen, **self._buffers}  # all that a forward reads
        self.sizes = [parameter.numel() for parameter in self.parameters]
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        for parameter, view in zip(self.parameters, flat.split(self.sizes), strict=True):
            parameter.data = view.view(parameter.shape)
        self.state = AdamState(
            flat,
            torch.zeros_like(flat),
            torch.zeros_like(flat),
            torch.zeros((), device=flat.device),
            torch.ones((), dtype=torch.bool, device=flat.device),
        )
        self._loss_module = None if loss is None else _LossModule(module, loss)
        self._compiled = Compiled(self._functional_update, "the update") if compile else None
        self._descent = Compiled(self._finish, "a step") if compile else None
        self._groups = self._rate_groups(rate_patterns or {})
        self.inspected = False  # True: keep the last gradient, and name the bad ones (slower)
        self.last_gradient: Tensor | None = None
        self._bad_gradients: list[str] = []

    def step(self, *arguments: Any, learning_rate: Tensor, max_grad_norm: Tensor) -> Metrics:
        """One gradient step on `loss(module, *arguments)`; metrics stay tensors."""
        return self.on(learning_rate=learning_rate, max_grad_norm=max_grad_norm)(*arguments)

    def descend(
        self, gradient: Tensor, loss: Tensor, *, learning_rate: Tensor, max_grad_norm: Tensor
    ) -> Metrics:
        """One step along a gradient that is known, with neither the loss nor autograd."""
        found: Found = gradient, loss, {}
        known = self.state, learning_rate, max_grad_norm, found
        if self._descent is not None:
            return self._take(self._descent(*known, self._full()))
        return self._take(self._finish(*known))

    def on(
        self, *last: Any, learning_rate: Tensor, max_grad_norm: Tensor
    ) -> Callable[..., Metrics]:
        """`step` for many minibatches: the loss's last arguments are the same for all of them."""
        if self._compiled is not None:
            code = self._compiled.given(learning_rate, max_grad_norm, last, self._buffers)
            return lambda *first: self._take(code(self.state, self._full(), first))
        update = partial(self._eager_update, rate=learning_rate, max_norm=max_grad_norm, last=last)
        return lambda *first: self._take(update(self.state, first))

    def _take(self, updated: tuple[AdamState, Metrics]) -> Metrics:
        """Make the new state this optimiser's own."""
        new, metrics = updated
        if new.flat is not self.state.flat:
            # Copied, not rebound: the module's parameters are views of this very memory.
            self.state.flat.copy_(new.flat)
        self.state = new._replace(flat=self.state.flat)
        if self.inspected:
            self._inspect(cast(Tensor, metrics["gradient"]))
        return metrics

    def _full(self) -> tuple[Tensor, Tensor]:
        return bias_corrections(self.state.updates, self.config)

    def frozen(self) -> Frozen:
        """The network for a loss of another one: as it is, or for compiled code its weights."""
        return self.module if self._compiled is None else self.state.flat

    def rates(self, learning_rate: float, special: Mapping[str, float]) -> Tensor:
        """The learning rate as a tensor: one number, or one per parameter if patterns are given."""
        if self._groups is None:
            return torch.tensor(learning_rate, device=self.state.flat.device)
        values = torch.tensor([learning_rate, *special.values()], device=self.state.flat.device)
        return values[self._groups]

    def check(self, what: str) -> None:
        """Raise if any step since the last check met a number that is not finite.

        Compiled steps have looked at everything; those of the fused kernel at loss and gradient, so
        weights and moments are looked at here.
        """
        good = bool(self.state.finite)
        if self._compiled is None:
            numbers = self.state.flat, self.state.first, self.state.second
            good = good and math.isfinite(sum(each.sum().item() for each in numbers))
        if not good:
            self.state = self.state._replace(finite=torch.ones_like(self.state.finite))
            bad, self._bad_gradients = self._bad_gradients, []
            named = f" (gradient of {', '.join(bad)})" if bad else ""
            raise NonFiniteError(
                f"{what}: the loss, a gradient or a weight is not finite{named}; no weight changed",
                {"parameters": bad} if bad else None,
            )

    def gradient_norms(self, gradient: Tensor) -> Metrics:
        """Norm of the gradient per top-level part of the module."""
        squares: dict[str, Tensor] = {}
        for name, part in zip(self.names, gradient.split(self.sizes), strict=True):
            key = f"grad_norm/{name.split('.')[0]}"
            squares[key] = squares.get(key, torch.zeros(())) + part.square().sum()
        return {key: value.sqrt() for key, value in squares.items()}

    def named_gradients(self) -> dict[str, Tensor]:
        """The last gradient by parameter; empty unless it is `inspected`."""
        if self.last_gradient is None:
            return {}
        return dict(zip(self.names, self.last_gradient.split(self.sizes), strict=True))

    def _inspect(self, gradient: Tensor) -> None:
        self.last_gradient = gradient.detach()
        parts = self.named_gradients().items()
        bad = [name for name, part in parts if not bool(torch.isfinite(part).all())]
        self._bad_gradients = self._bad_gradients or bad  # the first bad step is the cause

    def snapshot(self) -> AdamState:
        """A copy to go back to when an update turns out bad."""
        if self._compiled is not None:  # its steps make new moments, and write into `flat` only
            return self.state._replace(flat=self.state.flat.clone())
        return AdamState(*(each.clone() for each in self.state))

    def restore(self, saved: AdamState) -> None:
        """Go back: weights and moments are as they were."""
        self.state.flat.copy_(saved.flat)
        self.state = saved._replace(flat=self.state.flat)

    def state_dict(self) -> dict[str, Any]:
        """Moments by parameter name. The weights themselves are the module's state."""
        moments = {"first": self.state.first, "second": self.state.second}
        named = {
            key: dict(zip(self.names, moment.split(self.sizes), strict=True))
            for key, moment in moments.items()
        }
        return {**named, "updates": self.state.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Strictly the same parameters."""
        for key, moment in (("first", self.state.first), ("second", self.state.second)):
            assert list(state[key]) == self.names, "the optimiser state is of another network"
            moment.copy_(torch.cat([state[key][name] for name in self.names]))
        updates = state["updates"].to(self.state.flat.device).clone()
        finite = torch.ones_like(self.state.finite)  # what was saved is good
        self.state, self._bad_gradients = self.state._replace(updates=updates, finite=finite), []

    def _eager_update(
        self,
        state: AdamState,
        first: tuple[Any, ...],
        rate: Tensor,
        max_norm: Tensor,
        last: tuple[Any, ...],
    ) -> tuple[AdamState, Metrics]:
        """Straight through the module: autograd on views costs half of a functional call."""

        loss_of = self._loss_module
        assert loss_of is not None, "made without a loss: see `descend`"

        def gradient_of(*arguments: Any) -> Found:
            with torch.enable_grad():
                loss, metrics = loss_of(*arguments, *last)
                gradients = torch.autograd.grad(loss, self.parameters)
            return torch.cat([each.reshape(-1) for each in gradients]), loss.detach(), metrics

        found = accumulated(gradient_of, first, self.config.accumulate)
        return self._finish(state, rate, max_norm, found)

    def _functional_update(
        self,
        state: AdamState,
        corrections: tuple[Tensor, Tensor],
        first: tuple[Any, ...],
        rate: Tensor,
        max_norm: Tensor,
        last: tuple[Any, ...],
        buffers: dict[str, Tensor],
    ) -> tuple[AdamState, Metrics]:
        """The same as a pure function of the flat vector, which a compiler can take whole."""

        module = self._loss_module
        assert module is not None, "made without a loss: see `descend`"

        def loss_of(flat: Tensor, arguments: tuple[Any, ...]) -> Any:
            parts = zip(self.names, flat.split(self.sizes), self.parameters, strict=True)
            tensors = {name: part.view(parameter.shape) for name, part, parameter in parts}
            tensors = {f"module.{name}": each for name, each in (tensors | buffers).items()}
            return functional_call(module, tensors, (*arguments, *last))

        def gradient_of(*arguments: Any) -> Found:
            gradient, found = grad_and_value(loss_of, has_aux=True)(state.flat, arguments)
            return gradient, *found

        found = accumulated(gradient_of, first, self.config.accumulate)
        return self._finish(state, rate, max_norm, found, corrections)

    def _finish(
        self,
        state: AdamState,
        rate: Tensor,
        max_norm: Tensor,
        found: Found,
        corrections: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[AdamState, Metrics]:
        """The step itself: pure if `corrections` are given.

        The fused kernel knows one learning rate only, and Adam only.
        """
        gradient, loss, metrics = found
        if self.config.agc:
            gradient = self._clipped_by_tensor(gradient, state.flat)
        fused = corrections is None and not rate.dim() and self.config.name in ("adam", "adamw")
        step = adam_in_place if fused else partial(adam, corrections=corrections or self._full())
        new, norm = step(
            state, gradient, loss, self.config, learning_rate=rate, max_grad_norm=max_norm
        )
        metrics = {name: value.detach() for name, value in metrics.items()}
        return new, {**metrics, "loss": loss, "grad_norm": norm, "gradient": gradient}

    def _clipped_by_tensor(self, gradient: Tensor, flat: Tensor) -> Tensor:
        """Adaptive clipping (Brock et al. 2021), by whole tensors as in Dreamer v3."""
        return clip_by_tensor(gradient, flat, self.sizes, self.config.agc)

    def _rate_groups(self, patterns: Mapping[str, float]) -> Tensor | None:
        """For each scalar parameter, which learning rate it has: 0 the common one, i the i-th."""
        if not patterns:
            return None
        groups = torch.zeros_like(self.state.flat, dtype=torch.long)
        for name, part in zip(self.names, groups.split(self.sizes), strict=True):
            for index, pattern in enumerate(patterns, start=1):
                if fnmatchcase(name, pattern):
                    part.fill_(index)
        return groups
