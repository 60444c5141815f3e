"""What the units of a network do in a forward pass: statistics, dead units, effective rank."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

WATCHED = (nn.ReLU, nn.Tanh, nn.ELU, nn.GELU, nn.SiLU)
SATURATED = 0.99  # of a tanh: from here on its gradient is below 0.02
MOST_ROWS = 256  # of a batch whose singular values are computed


def watch_activations(
    networks: Mapping[str, nn.Module],
) -> tuple[dict[str, Tensor], Callable[[], None]]:
    """The latest output [B, F] of every activation, filled in as networks are called; and an end.

    Only modules are seen: what acts in numpy or compiled leaves nothing here.
    """
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, given: object, output: Tensor) -> None:
            seen[name] = output.detach()

        return hook

    handles = [
        module.register_forward_hook(keep(f"{part}.{name}"))
        for part, network in networks.items()
        for name, module in network.named_modules()
        if isinstance(module, WATCHED)
    ]

    def end() -> None:
        for handle in handles:
            handle.remove()

    return seen, end


def activation_statistics(name: str, output: Tensor, *, bounded: bool) -> dict[str, float]:
    """Mean, deviation, share of dead units, and how many directions the outputs [B, F] span.

    A unit is dead if no row moves it: always 0 or less, or of a `bounded` activation always at the
    same bound.
    """
    rows = output.detach().float().reshape(-1, output.shape[-1])
    dead = _dead(rows, bounded=bounded)
    return {
        f"debug/{name}/mean": float(rows.mean()),
        f"debug/{name}/std": float(rows.std(correction=0)),
        f"debug/{name}/dead": float(dead.float().mean()),
        f"debug/{name}/rank": effective_rank(rows[:MOST_ROWS]),
    }


def _dead(rows: Tensor, *, bounded: bool) -> Tensor:
    """Which units [F] no row moves."""
    if bounded:
        return (rows > SATURATED).all(0) | (rows < -SATURATED).all(0)
    return (rows <= 0).all(0)


def effective_rank(rows: Tensor) -> float:
    """exp of the entropy of the normalized singular values of [B, F] (Roy and Vetterli 2007)."""
    values = torch.linalg.svdvals(rows.double())
    if not (total := float(values.sum())):
        return 0.0
    shares = values / total
    shares = shares[shares > 0]
    return float(torch.exp(-(shares * shares.log()).sum()))
