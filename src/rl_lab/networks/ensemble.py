"""Several Q-functions as one network: one batched matrix product per layer for all of them."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import layer_norm

from rl_lab.core.batch import Obs
from rl_lab.core.compiled import tracing
from rl_lab.core.schema import NetworkConfig
from rl_lab.core.spec import Box, EnvSpec
from rl_lab.networks.encoder import make_encoder, width_of
from rl_lab.networks.mlp import ACTIVATIONS

Module = TypeVar("Module", bound=nn.Module)


class Ensemble(nn.Module):
    """N perceptrons of the same shape, each with weights of its own: [N, in, out] per layer."""

    def __init__(
        self,
        count: int,
        in_dim: int,
        hidden_dims: Sequence[int],
        out_dim: int,
        activation: str,
        *,
        norm: bool = False,
    ) -> None:
        """`norm`: hidden layers are normalized over their units, before the activation."""
        super().__init__()
        self.count = count
        self.activation = in_place(ACTIVATIONS[activation]())
        widths = [in_dim, *hidden_dims, out_dim]
        pairs = list(pairwise(widths))
        gains = [math.sqrt(2)] * len(hidden_dims) + [1.0]
        self.weights = nn.ParameterList(
            torch.stack([_orthogonal(*pair, gain) for _ in range(count)])
            for pair, gain in zip(pairs, gains, strict=True)
        )
        self.biases = nn.ParameterList(torch.zeros(count, 1, width) for width in widths[1:])
        self.hidden_dims = tuple(hidden_dims)
        normed = widths[1:-1] if norm else []
        self.scales = nn.ParameterList(torch.ones(count, 1, width) for width in normed)
        self.shifts = nn.ParameterList(torch.zeros(count, 1, width) for width in normed)

    def forward(self, x: Tensor, *, frozen: bool = False, masks: Sequence[Tensor] = ()) -> Tensor:
        """[B, in], the same for all, to [N, B, out]; `frozen`: gradients go to x alone.

        `masks` [B, N, width], one for each hidden layer: what its units are multiplied by.
        """
        weights, biases = _tensors(self.weights, frozen), _tensors(self.biases, frozen)
        scales, shifts = _tensors(self.scales, frozen), _tensors(self.shifts, frozen)
        is_plain = isinstance(self.activation, nn.ReLU) and not masks and not scales
        if is_plain and not tracing.get():
            found: Tensor = _ReluLayers.apply(x, *weights, *biases)
            return found
        x = x.expand(self.count, *x.shape)
        for index, (weight, bias) in enumerate(zip(weights[:-1], biases[:-1], strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if masks:
                x = x * masks[index].transpose(0, 1)
            if scales:
                x = layer_norm(x, x.shape[-1:]) * scales[index] + shifts[index]
            x = self.activation(x)
        return _last_layer(x, weights[-1], biases[-1])

    def masks(self, rows: int, rate: float, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Dropout of this share of the hidden units; those that stay make up for the others."""
        if rate == 0:
            return ()
        empty = [
            torch.empty(rows, self.count, width, device=generator.device)
            for width in self.hidden_dims
        ]
        return tuple(each.bernoulli_(1 - rate, generator=generator) / (1 - rate) for each in empty)


class _ReluLayers(torch.autograd.Function):
    """All layers as one step of autograd: half of the time of a step per layer.

    What is saved is what each layer was given; where a ReLU gave 0, no gradient passes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        count = len(parameters) // 2
        weights, biases = parameters[:count], parameters[count:]
        given = [x.expand(len(weights[0]), *x.shape)]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            given.append(torch.baddbmm(bias, given[-1], weight).relu_())
        ctx.save_for_backward(*given, *weights)
        return _last_layer(given[-1], weights[-1], biases[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = outer  # [N, B, out]
        count = len(ctx.saved_tensors) // 2
        given, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        needs_x, needs_parameters = ctx.needs_input_grad[:2]
        of_weights: list[Tensor | None] = [None] * count
        of_biases: list[Tensor | None] = [None] * count
        for index in reversed(range(count)):
            if needs_parameters:
                # The product with the few columns on the left is ten times as fast if there is one.
                is_column = gradient.shape[-1] == 1
                of_weights[index] = (
                    (gradient.mT @ given[index]).mT if is_column else given[index].mT @ gradient
                )
                of_biases[index] = gradient.sum(1, keepdim=True)
            if index == 0 and not needs_x:
                return None, *of_weights, *of_biases
            below = weights[index].mT
            gradient = gradient * below if gradient.shape[-1] == 1 else gradient @ below
            if index > 0:
                torch.ops.aten.threshold_backward.grad_input(
                    gradient, given[index], 0, grad_input=gradient
                )
        return gradient.sum(0), *of_weights, *of_biases


def _tensors(parameters: nn.ParameterList, frozen: bool) -> list[Tensor]:
    """The tensors of a list, detached if frozen; iterating the list itself takes 30 times as long.

    Read from the module at every call: a functional call has other tensors in their place.
    """
    tensors = cast(dict[str, Tensor], parameters._parameters).values()
    return [each.detach() for each in tensors] if frozen else list(tensors)


def _last_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A product with one column is slow: five times a sum of products."""
    if weight.shape[-1] == 1:
        return (x * weight.mT).sum(-1, keepdim=True) + bias
    return torch.baddbmm(bias, x, weight)


class QEnsemble(nn.Module):
    """Q-functions that look through one encoder: of (obs, action), or of each discrete action."""

    def __init__(
        self, config: NetworkConfig, spec: EnvSpec, count: int, *, norm: bool = False
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(config.encoder, spec.observation)
        self.of_pairs = isinstance(spec.action, Box)
        features = width_of(self.encoder)
        inputs = features + (spec.action.size if isinstance(spec.action, Box) else 0)
        outputs = 1 if isinstance(spec.action, Box) else getattr(spec.action, "n", 0)
        head = config.critic
        self.values = Ensemble(count, inputs, head.hidden_dims, outputs, head.activation, norm=norm)

    def forward(
        self,
        obs: Obs,
        action: Tensor | None = None,
        *,
        frozen: bool = False,
        masks: Sequence[Tensor] = (),
    ) -> Tensor:
        """[N, B] of pairs, or [N, B, actions]; `frozen`: only the action gets a gradient."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            features = self.encoder(obs)
        if not self.of_pairs:
            return self.values(features, frozen=frozen, masks=masks)
        assert action is not None
        pairs = torch.cat([features, action], dim=-1)
        return self.values(pairs, frozen=frozen, masks=masks).squeeze(-1)


def in_place(module: Module) -> Module:
    """Let every ReLU write over the layer before it, which nothing needs any more."""
    for each in module.modules():
        if isinstance(each, nn.ReLU):
            each.inplace = True
    return module


def _orthogonal(in_dim: int, out_dim: int, gain: float) -> Tensor:
    return nn.init.orthogonal_(torch.empty(out_dim, in_dim), gain).T
