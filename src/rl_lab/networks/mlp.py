"""Multi-layer perceptrons with orthogonal initialization: what they read, and an encoder of one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from rl_lab.core.compiled import tracing
from rl_lab.core.options import Options, option
from rl_lab.core.schema import Activation
from rl_lab.core.spec import Discrete, MultiDiscrete, Space


class Tanh(nn.Tanh):
    """tanh; as a quotient of polynomials where it is compiled, which is three times as fast."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return compiled_tanh(x) if tracing.get() else x.tanh()


# The rational minimax approximation of tanh on [-7.9, 7.9] that Eigen and XLA use as well: odd
# numerator over even denominator, highest power first; within 5e-7 of the exact function.
_NUMERATOR = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11,
              5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
              4.89352455891786e-03)  # fmt: skip
_DENOMINATOR = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03,
                4.89352518554385e-03)  # fmt: skip
_SATURATED = 7.90531110763549805  # tanh is 1 in float32 from here on


def compiled_tanh(x: Tensor) -> Tensor:
    """tanh in a dozen multiplications and one division, with the derivative of tanh itself."""
    fixed = x.detach()
    bounded = fixed.clamp(-_SATURATED, _SATURATED)
    square = bounded * bounded
    y = bounded * _polynomial(_NUMERATOR, square) / _polynomial(_DENOMINATOR, square)
    return y + (x - fixed) * (1 - y * y)  # adds 0; its gradient is 1 - tanh²


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    result = x * coefficients[0] + coefficients[1]
    for each in coefficients[2:]:
        result = result * x + each
    return result


ACTIVATIONS = {"tanh": Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}


def linear(
    in_dim: int, out_dim: int, gain: float = math.sqrt(2), *, bias: bool = True
) -> nn.Linear:
    """A linear layer with orthogonal weights and zero bias, if any."""
    layer = nn.Linear(in_dim, out_dim, bias=bias)
    nn.init.orthogonal_(layer.weight, gain)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


RMS_EPS = 1e-4
NORMS = {"none": None, "layer": nn.LayerNorm, "rms": partial(nn.RMSNorm, eps=RMS_EPS)}
Norm = Literal["none", "layer", "rms"]


def normalization(norm: str, width: int) -> nn.Module:
    """The normalization of vectors [..., width] that `norm` names; `none` changes nothing."""
    made = NORMS[norm]
    return nn.Identity() if made is None else made(width)


def mlp(
    in_dim: int, hidden_dims: Sequence[int], activation: str, norm: str = "none"
) -> nn.Sequential:
    """Linear, normalization if any, and activation for each hidden width."""
    layers: list[nn.Module] = []
    for width in hidden_dims:
        layers.append(linear(in_dim, width))
        if norm != "none":
            layers.append(normalization(norm, width))
        layers.append(ACTIVATIONS[activation]())
        in_dim = width
    return nn.Sequential(*layers)


def vector_size(space: Space) -> int:
    """How many numbers `as_vector` has."""
    if isinstance(space, Discrete):
        return space.n
    return sum(space.nvec) if isinstance(space, MultiDiscrete) else space.size


def as_vector(space: Space, x: Tensor) -> Tensor:
    """Elements [..., *shape] as floats [..., vector_size]: one-hot for indices, flat for a Box."""
    if isinstance(space, Discrete):
        return one_hot(x, space.n)
    if isinstance(space, MultiDiscrete):
        columns = zip(x.unbind(-1), space.nvec, strict=True)
        return torch.cat([one_hot(column, n) for column, n in columns], dim=-1)
    lead = x.shape[: x.dim() - len(space.shape)]
    return x.reshape(*lead, space.size).float()


def one_hot(index: Tensor, n: int) -> Tensor:
    """Indices [...] to floats [..., n]. torch's `one_hot` reads values: it cannot be compiled."""
    return (index.unsqueeze(-1) == torch.arange(n, device=index.device)).float()


@dataclass(frozen=True, kw_only=True)
class MLPEncoderConfig(Options):
    """Widths and activation."""

    type: str = option("mlp", "multi-layer perceptron")
    hidden_dims: list[int] = option([64, 64], "width of each hidden layer", low=1)
    activation: Activation = option("tanh", "tanh, relu, elu, gelu or silu")


def sized(name: str, *hidden_dims: int) -> type["MLPEncoder"]:
    """The MLP encoder with other default widths, under a name of its own."""
    config = make_dataclass(
        "MLPEncoderConfig",
        [
            ("type", str, option(name, f"mlp with hidden_dims {list(hidden_dims)}")),
            (
                "hidden_dims",
                list[int],
                option(list(hidden_dims), "width of each hidden layer", low=1),
            ),
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
        self.out_dim = vector_size(space)

    def forward(self, x: Tensor) -> Tensor:
        """[..., *shape] to [..., out_dim]; discrete observations stay raw until here."""
        return as_vector(self.space, x)


class MLPEncoder(nn.Module):
    """Observation to features."""

    Config = MLPEncoderConfig

    def __init__(self, config: MLPEncoderConfig, space: Space) -> None:
        super().__init__()
        self.space = space
        in_dim = vector_size(space)
        self.layers = mlp(in_dim, config.hidden_dims, config.activation)
        self.out_dim = [in_dim, *config.hidden_dims][-1]

    def forward(self, obs: Tensor) -> Tensor:
        """[..., *obs] to [..., out_dim]."""
        return self.layers(as_vector(self.space, obs))


MLPTiny = sized("mlp_tiny", 64)
MLPSmall = sized("mlp_small", 128, 128)
MLPMedium = sized("mlp_medium", 256, 256)
MLPLarge = sized("mlp_large", 512, 512)
