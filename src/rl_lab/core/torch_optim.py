"""Optimizers of `torch.optim`, or like them, for parts whose gradients are one flat vector."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.core.batch import Metrics
from rl_lab.core.optim import (
    AdamState,
    FlatOptimizer,
    Found,
    Loss,
    OptimizerConfig,
    is_finite,
)


class TorchOptimizer(FlatOptimizer):
    """`make(parameters)` makes the update rule; clipping by the norm and the finite guard stay.

    Its own learning rate counts if `make` was given one (`lr`), else that of the algorithm. Eager.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | None,
        config: OptimizerConfig,
        make: Callable[..., torch.optim.Optimizer],
    ) -> None:
        super().__init__(module, loss, config)
        self.rule = make(self.parameters)
        self.has_own_rate = "lr" in getattr(make, "keywords", {})

    def _finish(
        self,
        state: AdamState,
        rate: Tensor,
        max_norm: Tensor,
        found: Found,
        full: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[AdamState, Metrics]:
        """One clipped step of the rule, or none at all if a number is not finite."""
        gradient, loss, metrics = found
        norm = torch.linalg.vector_norm(gradient)
        finite = is_finite(state, norm, loss)
        if finite:
            clipped = gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0)
            parts = zip(self.parameters, clipped.split(self.sizes), strict=True)
            for parameter, part in parts:
                parameter.grad = part.view(parameter.shape)
            for group in self.rule.param_groups if not self.has_own_rate else ():
                group["lr"] = float(rate)
            self.rule.step()
            self.rule.zero_grad()
            state = state._replace(updates=state.updates + 1)
        metrics = {name: value.detach() for name, value in metrics.items()}
        new = {**metrics, "loss": loss, "grad_norm": norm, "gradient": gradient}
        return state._replace(finite=finite), new

    def snapshot(self) -> Any:
        """Weights, and what the rule remembers."""
        return super().snapshot(), deepcopy(self.rule.state_dict())

    def restore(self, saved: Any) -> None:
        """Go back to both."""
        super().restore(saved[0])
        self.rule.load_state_dict(saved[1])

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers; its settings are configuration."""
        return {"rule": self.rule.state_dict()["state"], "updates": self.state.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Strictly the same parameters."""
        own = self.rule.state_dict()
        assert set(state["rule"]) <= set(own["param_groups"][0]["params"]), "of another network"
        self.rule.load_state_dict({**own, "state": state["rule"]})
        updates = state["updates"].to(self.state.flat.device).clone()
        finite = torch.ones_like(self.state.finite)  # what was saved is good
        self.state = self.state._replace(updates=updates, finite=finite)
