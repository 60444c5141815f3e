"""Networks that are looked at and not trained: targets, which follow slowly, and frozen ones."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

# A network that a loss only looks at. Compiled code has its weights alone, which are an argument.
Frozen = Callable[..., Any] | Tensor


def network(frozen: Frozen, twin: nn.Module) -> Callable[..., Any]:
    """What a frozen network computes; `twin` is any network of its shape."""
    if not isinstance(frozen, Tensor):
        return frozen
    own = dict(twin.named_parameters())
    parts = frozen.split([each.numel() for each in own.values()])
    pairs = zip(own.items(), parts, strict=True)
    weights = {name: part.view(each.shape) for (name, each), part in pairs}
    return lambda *inputs, **options: functional_call(twin, weights, inputs, options)


class Target:
    """A frozen copy of a module whose parameters are one vector, so that following is one pass.

    Make it before the module itself is flattened by an optimiser: both then have the same order.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = deepcopy(module).requires_grad_(False)
        parameters = list(self.module.parameters())
        self.flat = torch.cat([each.reshape(-1) for each in parameters])
        sizes = [each.numel() for each in parameters]
        for each, view in zip(parameters, self.flat.split(sizes), strict=True):
            each.data = view.view(each.shape)
        self.tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def follow(self, flat: Tensor, rate: float) -> None:
        """Move towards the parameters `flat`: by a share of the way, or all of it at 1."""
        if rate == 1.0:
            self.flat.copy_(flat)
        else:
            self.flat.lerp_(flat, rate)

    def copy_buffers(self, module: nn.Module) -> None:
        """What is not learned but measured (observation statistics) is the same in both."""
        pairs = zip(self.module.buffers(), module.buffers(), strict=True)
        for own, other in pairs:
            own.copy_(other)

    def state_dict(self) -> dict[str, Any]:
        """The copy's own weights: they cannot be had from the network's."""
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Strictly."""
        self.module.load_state_dict(state)
