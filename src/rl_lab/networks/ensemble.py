"""Several Q-functions as one network: one batched matrix product per layer for all of them."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rl_lab.core.spec import Box, EnvSpec
from rl_lab.networks.encoder import make_encoder
from rl_lab.networks.mlp import ACTIVATIONS
from rl_lab.networks.model import NetworkConfig

Module = TypeVar("Module", bound=nn.Module)


class Ensemble(nn.Module):
    """N perceptrons of the same shape, each with weights of its own: [N, in, out] per layer."""

    def __init__(
        self, count: int, in_dim: int, hidden_dims: Sequence[int], out_dim: int, activation: str
    ) -> None:
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

    def forward(self, x: Tensor, *, frozen: bool = False) -> Tensor:
        """[B, in], the same for all, to [N, B, out]; `frozen`: gradients go to x alone."""
        x = x.expand(self.count, *x.shape)
        last = len(self.weights) - 1
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if frozen:
                weight, bias = weight.detach(), bias.detach()
            if weight.shape[-1] == 1:  # a product with one column is slow: five times this one
                x = (x * weight.mT).sum(-1, keepdim=True) + bias
            else:
                x = torch.baddbmm(bias, x, weight)
            if index < last:
                x = self.activation(x)
        return x


class QEnsemble(nn.Module):
    """Q-functions that look through one encoder: of (obs, action), or of each discrete action."""

    def __init__(self, config: NetworkConfig, spec: EnvSpec, count: int) -> None:
        super().__init__()
        self.encoder = make_encoder(config.encoder, spec.observation)
        self.of_pairs = isinstance(spec.action, Box)
        features: Any = self.encoder.out_dim
        inputs = features + (spec.action.size if isinstance(spec.action, Box) else 0)
        outputs = 1 if isinstance(spec.action, Box) else getattr(spec.action, "n", 0)
        head = config.critic
        self.values = Ensemble(count, inputs, head.hidden_dims, outputs, head.activation)

    def forward(self, obs: Any, action: Tensor | None = None, *, frozen: bool = False) -> Tensor:
        """[N, B] of pairs, or [N, B, actions]; `frozen`: only the action gets a gradient."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            features = self.encoder(obs)
        if not self.of_pairs:
            return self.values(features, frozen=frozen)
        assert action is not None
        pairs = torch.cat([features, action], dim=-1)
        return self.values(pairs, frozen=frozen).squeeze(-1)


def in_place(module: Module) -> Module:
    """Let every ReLU write over the layer before it, which nothing needs any more."""
    for each in module.modules():
        if isinstance(each, nn.ReLU):
            each.inplace = True
    return module


def _orthogonal(in_dim: int, out_dim: int, gain: float) -> Tensor:
    return nn.init.orthogonal_(torch.empty(out_dim, in_dim), gain).T
