"""Multi-layer perceptrons with orthogonal initialisation, and the encoder made of one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from rl_lab.core.options import option
from rl_lab.core.spec import Discrete, MultiDiscrete, Space

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}
Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]


def linear(in_dim: int, out_dim: int, gain: float = math.sqrt(2)) -> nn.Linear:
    """A linear layer with orthogonal weights and zero bias."""
    layer = nn.Linear(in_dim, out_dim)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(in_dim: int, hidden_dims: Sequence[int], activation: str) -> nn.Sequential:
    """Linear and activation for each hidden width."""
    layers: list[nn.Module] = []
    for width in hidden_dims:
        layers += [linear(in_dim, width), ACTIVATIONS[activation]()]
        in_dim = width
    return nn.Sequential(*layers)


@dataclass(frozen=True, kw_only=True)
class MLPEncoderConfig:
    """Widths and activation."""

    type: str = option("mlp", "multi-layer perceptron")
    hidden_dims: list[int] = option([64, 64], "width of each hidden layer")
    activation: Activation = option("tanh", "tanh, relu, elu, gelu or silu")

    def __post_init__(self) -> None:
        """Widths are positive."""
        if any(width < 1 for width in self.hidden_dims):
            raise ValueError(f"hidden_dims must be positive, got {self.hidden_dims}")


def sized(name: str, *hidden_dims: int) -> type["MLPEncoder"]:
    """The MLP encoder with other default widths, under a name of its own."""
    config = make_dataclass(
        "MLPEncoderConfig",
        [
            ("type", str, option(name, f"mlp with hidden_dims {list(hidden_dims)}")),
            ("hidden_dims", list[int], option(list(hidden_dims), "width of each hidden layer")),
        ],
        bases=(MLPEncoderConfig,),
        namespace={"__doc__": "Widths and activation."},
        frozen=True,
        kw_only=True,
    )
    namespace = {"Config": config, "__doc__": f"Observation to features, {list(hidden_dims)} wide."}
    return type("MLPEncoder", (MLPEncoder,), namespace)


class Flatten(nn.Module):
    """An observation of any space as a float vector: one-hot for indices, flat for arrays."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space
        if isinstance(space, Discrete):
            self.out_dim = space.n
        elif isinstance(space, MultiDiscrete):
            self.out_dim = sum(space.nvec)
        else:
            self.out_dim = space.size

    def forward(self, x: Tensor) -> Tensor:
        """[..., *shape] to [..., out_dim]; discrete observations stay raw until here."""
        if isinstance(self.space, Discrete):
            return one_hot(x, self.space.n).float()
        if isinstance(self.space, MultiDiscrete):
            columns = zip(x.unbind(-1), self.space.nvec, strict=True)
            return torch.cat([one_hot(column, n) for column, n in columns], dim=-1).float()
        lead = x.shape[: x.dim() - len(self.space.shape)]
        return x.reshape(*lead, self.out_dim).float()


class MLPEncoder(nn.Module):
    """Observation to features."""

    Config = MLPEncoderConfig

    def __init__(self, config: MLPEncoderConfig, space: Space) -> None:
        super().__init__()
        self.flatten = Flatten(space)
        self.layers = mlp(self.flatten.out_dim, config.hidden_dims, config.activation)
        self.out_dim = [self.flatten.out_dim, *config.hidden_dims][-1]

    def forward(self, obs: Tensor) -> Tensor:
        """[..., *obs] to [..., out_dim]."""
        return self.layers(self.flatten(obs))


MLPTiny = sized("mlp_tiny", 64)
MLPSmall = sized("mlp_small", 128, 128)
MLPMedium = sized("mlp_medium", 256, 256)
MLPLarge = sized("mlp_large", 512, 512)
