"""A network that is trained: its flat parameters, loss, update rule, and optional target network.

A module's parameters become views of one tensor, so clipping is one norm, the optimizer one
elementwise pass, and a target network follows in one operation. The step from loss to new
parameters runs eagerly or compiled whole; callers need not know which. Do not deepcopy a
module that a learner holds, and do not change its dtype: that breaks the views.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from rl_lab.core.compiled import Compiled
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.flops import FlopCount
from rl_lab.core.optim import (
    AdamState,
    OptimizerConfig,
    adam,
    adam_in_place,
    bias_corrections,
    clip_by_tensor,
)
from rl_lab.core.state import Stateful
from rl_lab.core.tree import first_leaf

# (module, *arguments) -> (scalar loss, metrics for logs, tensors for the caller)
Loss = Callable[..., tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]
OptimizerFactory = Callable[..., torch.optim.Optimizer]  # of the parameters


class Snapshot(NamedTuple):
    """All that a step changes."""

    state: AdamState
    target: Tensor | None
    rule: dict[str, Any] | None  # of an optimizer of `torch.optim`


class Update(NamedTuple):
    """What one gradient step returns. `metrics` are for logs, `aux` is for the caller."""

    loss: Tensor
    grad_norm: Tensor  # before clipping
    metrics: dict[str, Tensor]
    aux: dict[str, Tensor]
    gradient: Tensor  # one value per parameter


class Gradient(NamedTuple):
    """The gradient of a loss, and what the loss returned."""

    gradient: Tensor
    loss: Tensor
    metrics: dict[str, Tensor]
    aux: dict[str, Tensor]


@lru_cache(maxsize=256)
def scalar(value: float, device: str) -> Tensor:
    """A hyperparameter as a 0-d tensor; equal values share one tensor, so treat it as read-only."""
    return torch.tensor(float(value), device=device)


def flatten_parameters(parameters: Sequence[nn.Parameter]) -> Tensor:
    """One tensor with all parameters, which become views of it."""
    flat = torch.cat([each.detach().reshape(-1) for each in parameters])
    sizes = [each.numel() for each in parameters]
    for parameter, view in zip(parameters, flat.split(sizes), strict=True):
        parameter.data = view.view(parameter.shape)
    return flat


class Learner:
    """Trains `module` by gradient steps on `loss(module, *arguments)`.

    Among the arguments of a loss may be other modules, e.g. a target network: they are called and
    not trained.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | None,
        config: OptimizerConfig,
        *,
        compile: bool = False,
        target: bool = False,
        optimizer: OptimizerFactory | None = None,
        rate_patterns: Mapping[str, float] | None = None,
        only: Sequence[str] = (),
    ) -> None:
        """Take over the parameters of `module`.

        Args:
            module: The network to train.
            loss: Its loss; None if every gradient is given to `descend`.
            config: The update rule and its settings.
            compile: Compile the whole step ahead of time.
            target: Keep a target network, which `follow` moves.
            optimizer: Makes an optimizer of `torch.optim` to use instead of `config`'s rule; its
                own `lr` counts if it has one. Such a step cannot be compiled.
            rate_patterns: Name patterns of parameters with separate learning rates (`rates`).
            only: Name patterns of the parameters to train; another learner trains the others.
        """
        assert not (compile and only), "parameters of another learner would be compiled in"
        assert not (compile and optimizer), "an optimizer of torch.optim cannot be compiled"
        self.module = module
        self.loss = loss
        self.config = config
        self.target = deepcopy(module).requires_grad_(False) if target else None
        self.target_flat = self._flat_target()
        chosen = {
            name: parameter
            for name, parameter in module.named_parameters()
            if not only or any(fnmatchcase(name, pattern) for pattern in only)
        }
        self.names, self.parameters = list(chosen), list(chosen.values())
        self.sizes = [parameter.numel() for parameter in self.parameters]
        kept = undecayed(module) if config.weight_decay else set()
        self._decays = [name not in kept for name in self.names]
        self._is_fusible = config.name in FUSED and all(self._decays)
        self._buffers = dict(module.named_buffers())  # statistics, which change between updates
        self.tensors: dict[str, Tensor] = {**chosen, **self._buffers}  # all that a forward reads
        flat = flatten_parameters(self.parameters)
        self.state = AdamState(
            flat,
            torch.zeros_like(flat),
            torch.zeros_like(flat),
            torch.zeros((), device=flat.device),
            torch.ones((), dtype=torch.bool, device=flat.device),
        )
        self._optimizer = None if optimizer is None else optimizer(self.parameters)
        self._own_rate = "lr" in getattr(optimizer, "keywords", {})
        self._compiled = Compiled(self._pure_step, "the update") if compile else None
        self._descent = Compiled(self._pure_descent, "a step") if compile else None
        self._groups = self._rate_groups(rate_patterns or {})
        self.flops: int | None = None  # of a gradient step, counted at the first one, not compiled
        self.inspected = False  # keep the last gradient, and name the bad ones (slower)
        self.last_gradient: Tensor | None = None
        self._bad_gradients: list[str] = []

    # ------------------------------------------------------------------------------ gradient steps

    def step(self, *arguments: object, learning_rate: Tensor, max_grad_norm: Tensor) -> Update:
        """Take one gradient step on `loss(module, *arguments)`."""
        if self._compiled is not None:
            fixed = learning_rate, max_grad_norm, (), self._buffers
            return self._take(*self._compiled.given(*fixed)(*self._moving(arguments)))
        return self._eager_step(*arguments, rate=learning_rate, max_norm=max_grad_norm)

    def steps(
        self, *shared: object, learning_rate: Tensor, max_grad_norm: Tensor
    ) -> Callable[..., Update]:
        """`step` for many minibatches, whose last arguments `shared` are the same for all."""
        if self._compiled is not None:
            code = self._compiled.given(learning_rate, max_grad_norm, shared, self._buffers)
            return lambda *arguments: self._take(*code(*self._moving(arguments)))
        return partial(self._eager_step, shared=shared, rate=learning_rate, max_norm=max_grad_norm)

    def descend(
        self, gradient: Tensor, loss: Tensor, *, learning_rate: Tensor, max_grad_norm: Tensor
    ) -> Update:
        """Take one step along a known gradient, without calling the loss."""
        known = Gradient(gradient, loss, {}, {})
        if self._descent is not None:
            corrections = bias_corrections(self.state.updates, self.config)
            found = self._descent(self.state, corrections, known, learning_rate, max_grad_norm)
            return self._take(*found)
        return self._take(*self._apply(self.state, known, learning_rate, max_grad_norm))

    def _moving(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """What differs from one compiled step to the next."""
        return self.state, bias_corrections(self.state.updates, self.config), arguments

    def _eager_step(
        self, *arguments: object, rate: Tensor, max_norm: Tensor, shared: tuple[Any, ...] = ()
    ) -> Update:
        """Straight through the module: autograd on views costs half of a functional call."""
        loss_of = self.loss
        assert loss_of is not None, "made without a loss: use `descend`"

        def gradient_of(*arguments: object) -> Gradient:
            with torch.enable_grad():
                loss, metrics, aux = loss_of(self.module, *arguments, *shared)
                gradients = torch.autograd.grad(loss, self.parameters)
            flat = torch.cat([each.reshape(-1) for each in gradients])
            return Gradient(flat, loss.detach(), metrics, aux)

        if self.flops is None:
            with FlopCount() as count:
                found = accumulated(gradient_of, arguments, self.config.accumulate)
            self.flops = count.total
        else:
            found = accumulated(gradient_of, arguments, self.config.accumulate)
        return self._take(*self._apply(self.state, found, rate, max_norm))

    def _pure_step(
        self,
        state: AdamState,
        corrections: tuple[Tensor, Tensor],
        arguments: tuple[Any, ...],
        rate: Tensor,
        max_norm: Tensor,
        shared: tuple[Any, ...],
        buffers: dict[str, Tensor],
    ) -> tuple[AdamState, Update]:
        """The same step as a pure function of the flat parameters, for the compiler."""
        assert self.loss is not None, "made without a loss: use `descend`"
        holder = _LossModule(self.module, self.loss)

        def loss_of(flat: Tensor, arguments: tuple[Any, ...]) -> Any:
            parts = zip(self.names, flat.split(self.sizes), self.parameters, strict=True)
            tensors = {name: part.view(parameter.shape) for name, part, parameter in parts}
            tensors = {f"module.{name}": each for name, each in (tensors | buffers).items()}
            loss, metrics, aux = functional_call(holder, tensors, (*arguments, *shared))
            return loss, (loss, metrics, aux)

        def gradient_of(*arguments: object) -> Gradient:
            gradient, (_, (loss, metrics, aux)) = grad_and_value(loss_of, has_aux=True)(
                state.flat, arguments
            )
            return Gradient(gradient, loss, metrics, aux)

        found = accumulated(gradient_of, arguments, self.config.accumulate)
        return self._apply(state, found, rate, max_norm, corrections)

    def _pure_descent(
        self,
        state: AdamState,
        corrections: tuple[Tensor, Tensor],
        known: Gradient,
        rate: Tensor,
        max_norm: Tensor,
    ) -> tuple[AdamState, Update]:
        return self._apply(state, known, rate, max_norm, corrections)

    def _apply(
        self,
        state: AdamState,
        found: Gradient,
        rate: Tensor,
        max_norm: Tensor,
        corrections: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[AdamState, Update]:
        """Clip, then the update rule; nothing changes if loss or gradient are not finite.

        Pure if `corrections` are given, else in place where that is faster.
        """
        gradient, loss, config = found.gradient, found.loss, self.config
        if config.agc:
            gradient = clip_by_tensor(gradient, state.flat, self.sizes, config.agc)
        norm = torch.linalg.vector_norm(gradient)
        finite = state.finite & torch.isfinite(norm + loss)  # False from the first bad step on
        clipped = gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0)
        if self._optimizer is not None:
            new = self._torch_step(state, clipped, finite, rate)
        elif corrections is None and not rate.dim() and self._is_fusible:
            # The fused kernel has Adam only, with one learning rate and one weight decay.
            new = adam_in_place(state, clipped, finite, config, learning_rate=rate)
        else:
            corrections = corrections or bias_corrections(state.updates, config)
            new = adam(
                state,
                clipped,
                finite,
                config,
                corrections=corrections,
                learning_rate=rate,
                weight_decay=self._weight_decay(state.flat),
            )
        metrics = {name: value.detach() for name, value in found.metrics.items()}
        aux = {name: value.detach() for name, value in found.aux.items()}
        return new, Update(loss, norm, metrics, aux, gradient)

    def _weight_decay(self, flat: Tensor) -> Tensor | float:
        """Of every parameter, or 0 where a network asks for none."""
        decay = self.config.weight_decay
        if all(self._decays):
            return decay
        pairs = zip(self.sizes, self._decays, strict=True)
        return torch.cat([flat.new_full((size,), decay * decays) for size, decays in pairs])

    def _torch_step(
        self, state: AdamState, gradient: Tensor, finite: Tensor, rate: Tensor
    ) -> AdamState:
        """One step of an optimizer of `torch.optim`; none unless `finite`."""
        assert self._optimizer is not None
        if finite:
            for parameter, part in zip(self.parameters, gradient.split(self.sizes), strict=True):
                parameter.grad = part.view(parameter.shape)
            for group in self._optimizer.param_groups if not self._own_rate else ():
                group["lr"] = float(rate)
            self._optimizer.step()
            self._optimizer.zero_grad()
            state = state._replace(updates=state.updates + 1)
        return state._replace(finite=finite)

    def _take(self, new: AdamState, update: Update) -> Update:
        """Make the new state this learner's own."""
        if new.flat is not self.state.flat:
            # Copied, not rebound: the module's parameters are views of this very memory.
            self.state.flat.copy_(new.flat)
        self.state = new._replace(flat=self.state.flat)
        if self.inspected:
            self._inspect(update.gradient)
        return update

    def rates(self, learning_rate: float, special: Mapping[str, float]) -> Tensor:
        """The learning rate as a tensor: 0-d, or one per parameter if there are patterns."""
        if self._groups is None:
            return torch.tensor(learning_rate, device=self.state.flat.device)
        values = torch.tensor([learning_rate, *special.values()], device=self.state.flat.device)
        return values[self._groups]

    def _rate_groups(self, patterns: Mapping[str, float]) -> Tensor | None:
        """For each scalar parameter the index of its learning rate; 0 is the common one."""
        if not patterns:
            return None
        groups = torch.zeros_like(self.state.flat, dtype=torch.long)
        for name, part in zip(self.names, groups.split(self.sizes), strict=True):
            for index, pattern in enumerate(patterns, start=1):
                if fnmatchcase(name, pattern):
                    part.fill_(index)
        return groups

    # ------------------------------------------------------------------------------ target network

    def follow(self, rate: float) -> None:
        """Move the target network towards the network: an EMA step, or a copy at rate 1."""
        assert self.target_flat is not None, "made without a target network"
        if rate == 1.0:
            self.target_flat.copy_(self.state.flat)
        else:
            self.target_flat.lerp_(self.state.flat, rate)

    def copy_buffers(self) -> None:
        """Give the target network the same buffers: observation statistics are not learned."""
        assert self.target is not None, "made without a target network"
        for own, other in zip(self.target.buffers(), self.module.buffers(), strict=True):
            own.copy_(other)

    def _flat_target(self) -> Tensor | None:
        return None if self.target is None else flatten_parameters(list(self.target.parameters()))

    # --------------------------------------------------------------------- bad numbers, inspection

    def check(self, what: str) -> None:
        """Raise NonFiniteError if a step since the last check met a number that is not finite.

        Compiled steps have checked everything they wrote; eager ones loss and gradient only, so
        weights and moments are checked here.
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

    def gradient_norms(self, gradient: Tensor) -> dict[str, Tensor]:
        """Norm of the gradient per top-level part of the module."""
        squares: dict[str, Tensor] = {}
        for name, part in zip(self.names, gradient.split(self.sizes), strict=True):
            key = f"grad_norm/{name.split('.')[0]}"
            squares[key] = squares.get(key, torch.zeros(())) + part.square().sum()
        return {key: value.sqrt() for key, value in squares.items()}

    def named_gradients(self) -> dict[str, Tensor]:
        """The last gradient by parameter name; empty unless `inspected`."""
        if self.last_gradient is None:
            return {}
        return dict(zip(self.names, self.last_gradient.split(self.sizes), strict=True))

    def _inspect(self, gradient: Tensor) -> None:
        self.last_gradient = gradient.detach()
        parts = self.named_gradients().items()
        bad = [name for name, part in parts if not bool(torch.isfinite(part).all())]
        self._bad_gradients = self._bad_gradients or bad  # the first bad step is the cause

    # --------------------------------------------------------------------------------------- state

    def snapshot(self) -> Snapshot:
        """A copy of all that a step changes, for `restore`."""
        state = self.state._replace(flat=self.state.flat.clone())
        if self._compiled is None:  # compiled steps make new moments, eager ones write into them
            state = AdamState(*(each.clone() for each in self.state))
        target = None if self.target_flat is None else self.target_flat.clone()
        rule = None if self._optimizer is None else deepcopy(self._optimizer.state_dict())
        return Snapshot(state, target, rule)

    def restore(self, saved: Snapshot) -> None:
        """Go back to a `snapshot`."""
        state, target, rule = saved
        self.state.flat.copy_(state.flat)
        self.state = state._replace(flat=self.state.flat)
        if self.target_flat is not None and target is not None:
            self.target_flat.copy_(target)
        if self._optimizer is not None and rule is not None:
            self._optimizer.load_state_dict(rule)

    def state_dict(self) -> dict[str, Any]:
        """The network, its target, and what the update rule remembers by parameter name."""
        saved: dict[str, Any] = {"module": self.module.state_dict()}
        if self.target is not None:
            saved["target"] = self.target.state_dict()
        if self._optimizer is not None:
            rule: dict[str, Any] = {"rule": self._optimizer.state_dict()["state"]}
        else:
            moments = {"first": self.state.first, "second": self.state.second}
            rule = {
                key: dict(zip(self.names, moment.split(self.sizes), strict=True))
                for key, moment in moments.items()
            }
        return {**saved, "optimizer": {**rule, "updates": self.state.updates}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strictly the same parameters."""
        self.module.load_state_dict(state["module"])
        if self.target is not None:
            self.target.load_state_dict(state["target"])
        saved = state["optimizer"]
        if self._optimizer is not None:
            own = self._optimizer.state_dict()
            assert set(saved["rule"]) <= set(own["param_groups"][0]["params"]), "another network"
            self._optimizer.load_state_dict({**own, "state": saved["rule"]})
        else:
            for key, moment in (("first", self.state.first), ("second", self.state.second)):
                assert list(saved[key]) == self.names, "the optimizer state is of another network"
                moment.copy_(torch.cat([saved[key][name] for name in self.names]))
        updates = saved["updates"].to(self.state.flat.device).clone()
        finite = torch.ones_like(self.state.finite)  # what was saved is good
        self.state, self._bad_gradients = self.state._replace(updates=updates, finite=finite), []


FUSED = ("adam", "adamw")


def undecayed(module: nn.Module) -> set[str]:
    """Names of parameters without weight decay: those that a submodule lists in `undecayed`."""
    return {
        f"{path}.{name}" if path else name
        for path, each in module.named_modules()
        for name in getattr(each, "undecayed", ())
    }


class _LossModule(nn.Module):
    """A loss as a module, so that `functional_call` can swap the parameters under it."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, *arguments: object) -> Any:
        return self.loss(self.module, *arguments)


def accumulated(
    gradient_of: Callable[..., Gradient], arguments: tuple[Any, ...], count: int
) -> Gradient:
    """The gradient of a batch from up to `count` pieces of it, weighted by their rows.

    The batch is every argument with as many rows as the first one. The result is that of the whole
    batch if the loss is a mean over rows; what a loss takes from the batch as a whole (a mean to
    subtract, a maximum to report) it takes from a piece. `aux` has one value per row.
    """
    if count == 1:
        return gradient_of(*arguments)
    rows = len(first_leaf(arguments[0]))
    size = -(-rows // count)
    gradient: Any = 0.0
    loss: Any = 0.0
    metrics: dict[str, Any] = {}
    aux: dict[str, list[Tensor]] = {}
    for start in range(0, rows, size):
        share = min(size, rows - start) / rows
        piece = gradient_of(*_rows_of(arguments, rows, slice(start, start + size)))
        gradient, loss = gradient + share * piece.gradient, loss + share * piece.loss
        for name, value in piece.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + share * value.detach()
        for name, value in piece.aux.items():
            aux.setdefault(name, []).append(value.detach())
    return Gradient(gradient, loss, metrics, {name: torch.cat(each) for name, each in aux.items()})


def _rows_of(arguments: Any, rows: int, span: slice) -> Any:
    """The span of every tensor that has `rows` rows; the rest as it is."""
    if isinstance(arguments, tuple):
        return tuple(_rows_of(each, rows, span) for each in arguments)
    if isinstance(arguments, dict):
        return {key: _rows_of(each, rows, span) for key, each in arguments.items()}
    has_rows = isinstance(arguments, Tensor) and arguments.dim() and len(arguments) == rows
    return arguments[span] if has_rows else arguments


def networks(parts: Mapping[str, Any]) -> dict[str, nn.Module]:
    """The networks among the parts of an algorithm, those of learners included."""
    found = {
        name: part.module if isinstance(part, Learner) else part for name, part in parts.items()
    }
    return {name: part for name, part in found.items() if isinstance(part, nn.Module)}


Undoable = Learner | Stateful | torch.Generator


@contextmanager
def all_or_nothing(what: str, **parts: Undoable | None) -> Iterator[None]:
    """On a number that is not finite, put everything back as it was before and raise.

    Learners are checked at the end: `what` and their names are in the message. Parts that an
    algorithm does not have may be None.
    """
    present = {name: part for name, part in parts.items() if part is not None}
    saved = {name: _copy(part) for name, part in present.items()}
    try:
        yield
        for name, part in present.items():
            if isinstance(part, Learner):
                part.check(f"{what} of {name}")
    except NonFiniteError:
        for name, part in present.items():
            _put_back(part, saved[name])
        raise


def _copy(part: Undoable) -> Any:
    if isinstance(part, Learner):
        return part.snapshot()
    return part.get_state() if isinstance(part, torch.Generator) else deepcopy(part.state_dict())


def _put_back(part: Undoable, saved: Any) -> None:
    if isinstance(part, Learner):
        part.restore(saved)
    elif isinstance(part, torch.Generator):
        part.set_state(saved)
    else:
        part.load_state_dict(saved)
