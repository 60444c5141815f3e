"""The networks of TD-MPC2: encoder, latent dynamics, reward, termination, values, policy prior.

Works on latents [..., L] and action vectors [..., A] (discrete actions as one-hot). There is no
decoder: what a latent has to know is what rewards, values and the next latent depend on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import elu, layer_norm, relu, silu

from rl_lab.algorithms.dreamer.images import is_picture
from rl_lab.core.batch import ACTION_MASK, OBS, Obs
from rl_lab.core.compiled import tracing
from rl_lab.core.spec import Dict, Discrete, EnvSpec, Space
from rl_lab.core.symlog import symlog_bins, symlog_two_hot_loss, symlog_two_hot_mean
from rl_lab.networks.mlp import as_vector, vector_size

LOG_STD = (-10.0, 2.0)  # of the policy
NOISE_CLIP = 0.3  # of the policy's noise, where that is fixed (v1)
REACH = 10.0  # of the bins, in symlog units
CHANNELS = 32  # of each convolution


_LINEAR = 20.0  # mish(x) is x in float32 from here on


def mish(x: Tensor) -> Tensor:
    """x · tanh(softplus(x)), as x · n / (n + 2) with n = e^x (e^x + 2): a third of torch's time."""
    if tracing.get():
        power = x.clamp(max=_LINEAR).exp()
        doubled = power * (power + 2)
        return x * (doubled / (doubled + 2))
    y: Tensor = _Mish.apply(x)
    return y


class _Mish(torch.autograd.Function):
    """The same with its derivative, t + x (1 - t²) sigmoid(x) where t = n / (n + 2)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        power = x.clamp(max=_LINEAR).exp_()
        share = power * (power + 2)
        share.div_(share + 2)
        ctx.save_for_backward(x, power, share)
        return x * share

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        x, power, share = ctx.saved_tensors
        slope = (1 - share * share).mul_(x).mul_(power / (1 + power)).add_(share)
        return slope.mul_(outer[0])


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"mish": mish, "silu": silu, "elu": elu}


class Dimensions(NamedTuple):
    """What `size` decides."""

    encoder_width: int
    units: int
    latent: int
    encoder_layers: int
    critics: int


SIZES = {
    "tiny": Dimensions(128, 128, 64, 2, 2),
    "small": Dimensions(256, 256, 128, 2, 2),
    "1m": Dimensions(256, 384, 128, 2, 2),
    "5m": Dimensions(256, 512, 512, 2, 5),
    "19m": Dimensions(1024, 1024, 768, 3, 5),
    "48m": Dimensions(1792, 1792, 768, 4, 5),
    "317m": Dimensions(4096, 4096, 1376, 5, 8),
}


class ModelConfig(Protocol):
    """What the networks are made of."""

    @property
    def activation(self) -> str: ...  # noqa: D102
    @property
    def norm(self) -> bool: ...  # noqa: D102
    @property
    def simnorm(self) -> int: ...  # noqa: D102
    @property
    def bins(self) -> int: ...  # noqa: D102
    @property
    def policy_std(self) -> float: ...  # noqa: D102
    @property
    def random_shift(self) -> int: ...  # noqa: D102
    def dimensions(self) -> Dimensions: ...  # noqa: D102


class SimNorm(nn.Module):
    """Softmax over groups of units: a latent is a few distributions (simplicial normalization).

    The members of a group lie L / size units apart: the same function as with neighbors, up to an
    order of units that nobody sees, and seven times as fast.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, z: Tensor) -> Tensor:
        """[..., L] to [..., L], where each group sums to 1."""
        return z.unflatten(-1, (self.size, -1)).softmax(-2).flatten(-2)


class NormedLinear(nn.Module):
    """Linear, layer normalization if `norm`, then an activation."""

    def __init__(self, in_dim: int, out_dim: int, activation: Any, *, norm: bool) -> None:
        super().__init__()
        self.linear = plain_linear(in_dim, out_dim)
        self.norm = nn.LayerNorm(out_dim) if norm else nn.Identity()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        y: Tensor = self.activation(self.norm(self.linear(x)))
        return y


def plain_linear(in_dim: int, out_dim: int, *, zero: bool = False) -> nn.Linear:
    """A linear layer as TD-MPC2 begins: small truncated normal weights, or zeros; no bias."""
    layer = nn.Linear(in_dim, out_dim)
    _begin(layer.weight, zero)
    nn.init.zeros_(layer.bias)
    return layer


def perceptron(
    in_dim: int, hidden: Sequence[int], out_dim: int, config: ModelConfig, *, zero: bool = False
) -> nn.Sequential:
    """Normed layers of these widths, and a linear one at the end."""
    activation = ACTIVATIONS[config.activation]
    layers: list[nn.Module] = [
        NormedLinear(*pair, activation, norm=config.norm) for pair in pairwise([in_dim, *hidden])
    ]
    return nn.Sequential(*layers, plain_linear([in_dim, *hidden][-1], out_dim, zero=zero))


def to_latent(
    in_dim: int, hidden: Sequence[int], out_dim: int, config: ModelConfig
) -> nn.Sequential:
    """The same where a latent comes out: SimNorm after the last layer, if there is any."""
    layers = perceptron(in_dim, hidden, out_dim, config)
    if config.simnorm:
        width = [in_dim, *hidden][-1]
        layers[-1] = NormedLinear(width, out_dim, SimNorm(config.simnorm), norm=True)
    return layers


class Values(nn.Module):
    """The Q functions: perceptrons of one shape, computed together, all of them or a few."""

    def __init__(self, in_dim: int, config: ModelConfig) -> None:
        super().__init__()
        sizes = config.dimensions()
        self.count, self.units = sizes.critics, sizes.units
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[config.activation]
        widths = [in_dim, sizes.units, sizes.units, max(config.bins, 1)]
        self.weights = nn.ParameterList(torch.empty(self.count, *pair) for pair in pairwise(widths))
        self.biases = nn.ParameterList(torch.zeros(self.count, 1, width) for width in widths[1:])
        self.scales = nn.ParameterList(torch.ones(self.count, 1, sizes.units) for _ in range(2))
        self.shifts = nn.ParameterList(torch.zeros(self.count, 1, sizes.units) for _ in range(2))
        for index, weight in enumerate(self.weights):
            _begin(weight, zero=index == 2)

    def forward(self, x: Tensor, which: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """[..., in] to [Q, ..., bins], of the Qs `which` [n] alone if given.

        `mask` [Q, rows, units] is what the first hidden layer is multiplied by (dropout).
        """
        lead = x.shape[:-1]
        x = x.reshape(-1, x.shape[-1]).expand(self.count if which is None else len(which), -1, -1)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(_of(bias, which), x, _of(weight, which))
            if index < len(self.scales):
                if mask is not None and index == 0:
                    x = x * mask
                scale, shift = _of(self.scales[index], which), _of(self.shifts[index], which)
                x = self.activation(layer_norm(x, x.shape[-1:]) * scale + shift)
        return x.unflatten(1, lead)


class Policy(nn.Module):
    """The policy prior: a latent to a distribution of actions. Noise is an argument.

    A squashed normal with a learned deviation; with `policy_std`, a squashed mean with noise of
    that deviation (v1); or the probabilities of discrete actions.
    """

    def __init__(self, space: Space, config: ModelConfig) -> None:
        super().__init__()
        sizes = config.dimensions()
        self.size, self.std = vector_size(space), config.policy_std
        self.discrete = isinstance(space, Discrete)
        out = self.size if self.discrete or self.std else 2 * self.size
        self.layers = perceptron(sizes.latent, [sizes.units] * 2, out, config)

    def noise(self, lead: Sequence[int], generator: Generator) -> Tensor:
        """What `sample` draws from, [*lead, A]."""
        empty = torch.empty(*lead, self.size, device=generator.device)
        if self.discrete:
            return empty.exponential_(generator=generator)
        return empty.normal_(generator=generator)

    def normal(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before squashing, of latents [..., L]."""
        mean, raw = self.layers(z).chunk(2, -1)
        low, high = LOG_STD
        return mean, low + 0.5 * (high - low) * (raw.tanh() + 1)

    def probabilities(self, z: Tensor) -> Tensor:
        """Of discrete actions."""
        return self.layers(z).softmax(-1)

    def sample(self, z: Tensor, noise: Tensor) -> Tensor:
        """Action vectors [..., A] of latents [..., L]."""
        return self.explain(z, noise)[0]

    def explain(self, z: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Action vectors [..., A], and the scaled entropy [...].

        That is A times the negative log-density of the normal before it is squashed; of discrete
        actions their entropy; 0 where the deviation is fixed.
        """
        if self.discrete:
            probs = self.probabilities(z)
            every = torch.arange(self.size, device=z.device)
            action = ((probs / noise).argmax(-1, keepdim=True) == every).to(z.dtype)
            return action, -(probs * probs.clamp(min=1e-8).log()).sum(-1)
        if self.std:
            mean = self.layers(z).tanh()
            noisy = mean + (self.std * noise).clamp(-NOISE_CLIP, NOISE_CLIP)
            # The gradient passes where the bound cuts off: the mean must find its way back.
            return noisy + (noisy.clamp(-1.0, 1.0) - noisy).detach(), z.new_zeros(z.shape[:-1])
        mean, log_std = self.normal(z)
        log_prob = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std
        return (mean + log_std.exp() * noise).tanh(), -self.size * log_prob.sum(-1)

    def mode(self, z: Tensor) -> Tensor:
        """The action without noise [..., A]; discrete: the probability of each."""
        if self.discrete:
            return self.probabilities(z)
        return self.layers(z).tanh() if self.std else self.normal(z)[0].tanh()


class PixelEncoder(nn.Module):
    """Four convolutions of 32 channels, each followed by ReLU, the first three with stride 2."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.scale = 1 / 255 if str(space.dtype) == "uint8" else 1.0
        layers: list[nn.Module] = []
        channels, size = space.shape[0], min(space.shape[1:])
        for kernel, stride in ((7, 2), (5, 2), (3, 2), (3, 1)):
            if size < kernel:
                break
            layers.append(nn.Conv2d(channels, CHANNELS, kernel, stride))
            channels, size = CHANNELS, (size - kernel) // stride + 1
        self.layers = nn.ModuleList(layers)
        with torch.no_grad():
            self.out_dim = self(torch.zeros(1, *space.shape)).shape[-1]

    def forward(self, image: Tensor) -> Tensor:
        """[..., C, H, W] to [..., features]."""
        lead = image.shape[:-3]
        x = image.reshape(-1, *image.shape[-3:]).float() * self.scale - 0.5
        for index, layer in enumerate(self.layers):
            x = layer(x)
            x = relu(x) if index + 1 < len(self.layers) else x
        return x.reshape(*lead, -1)


class Encoder(nn.Module):
    """An observation to a latent: vectors and indices by a perceptron, pictures by convolutions."""

    def __init__(self, spec: EnvSpec, config: ModelConfig) -> None:
        super().__init__()
        sizes, seen = config.dimensions(), spec.observation
        parts = dict(seen.parts) if isinstance(seen, Dict) else {OBS: seen}
        self.spaces: dict[str, Space] = {k: each for k, each in parts.items() if k != ACTION_MASK}
        self.pixels = nn.ModuleDict(
            {_safe(k): PixelEncoder(each) for k, each in self.spaces.items() if is_picture(each)}
        )
        vectors = [each for each in self.spaces.values() if not is_picture(each)]
        width = sum(vector_size(each) for each in vectors)
        hidden = [sizes.encoder_width] * max(sizes.encoder_layers - 1, 1)
        if self.pixels:
            width += sum(each.out_dim for each in self.pixels.values())  # type: ignore[misc]
            hidden = []
        self.layers: nn.Module = to_latent(width, hidden, sizes.latent, config)
        if self.pixels and not vectors and width == sizes.latent and config.simnorm:
            self.layers = SimNorm(config.simnorm)  # as in the paper: nothing between

    def forward(self, obs: Obs, shifts: Mapping[str, Tensor] | None = None) -> Tensor:
        """[..., *obs] to [..., L]; `shifts` [..., 2] moves each picture by that many pixels."""
        rows = obs if isinstance(obs, Mapping) else {OBS: obs}
        seen = []
        for name, space in self.spaces.items():
            x = rows[name]
            if _safe(name) in self.pixels:
                if shifts is not None:
                    x = shifted_images(x, shifts[name])
                seen.append(self.pixels[_safe(name)](x))
            else:
                seen.append(as_vector(space, x))
        z: Tensor = self.layers(torch.cat(seen, -1) if len(seen) > 1 else seen[0])
        return z

    def shifts(self, lead: Sequence[int], most: int, generator: Generator) -> dict[str, Tensor]:
        """Random whole numbers from -most to most for each picture of a batch, [*lead, 2]."""
        return {
            name: torch.randint(
                -most, most + 1, (*lead, 2), generator=generator, device=generator.device
            )
            for name in self.spaces
            if most and _safe(name) in self.pixels
        }


class LatentModel(nn.Module):
    """Encoder, dynamics, reward, values, and termination where episodes end."""

    bins: Tensor

    def __init__(self, spec: EnvSpec, config: ModelConfig, *, ends: bool) -> None:
        super().__init__()
        sizes = config.dimensions()
        if config.simnorm and sizes.latent % config.simnorm:
            raise ValueError(f"simnorm {config.simnorm} does not divide latent {sizes.latent}")
        joined, hidden = sizes.latent + vector_size(spec.action), [sizes.units] * 2
        self.encoder = Encoder(spec, config)
        self.dynamics = to_latent(joined, hidden, sizes.latent, config)
        self.reward = perceptron(joined, hidden, max(config.bins, 1), config, zero=True)
        self.termination = perceptron(sizes.latent, hidden, 1, config) if ends else None
        self.values = Values(joined, config)
        self.two_hot = config.bins > 0
        bins = symlog_bins(config.bins, REACH) if self.two_hot else torch.zeros(0)
        self.register_buffer("bins", bins, persistent=False)

    def number(self, raw: Tensor) -> Tensor:
        """What an output of reward or values [..., bins] says, [...]."""
        return symlog_two_hot_mean(raw, self.bins) if self.two_hot else raw.squeeze(-1)

    def error(self, raw: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy [...] of an output with a number [...]; the square without bins."""
        target = target.expand(raw.shape[:-1])
        if self.two_hot:
            return symlog_two_hot_loss(raw.log_softmax(-1), target, self.bins)
        return (raw.squeeze(-1) - target).square()

    def step(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """After an action: the next latent [..., L], and the predicted reward [...]."""
        pair = torch.cat([z, action], -1)
        return self.dynamics(pair), self.number(self.reward(pair))

    def ended(self, z: Tensor) -> Tensor:
        """Logits [...] that the episode terminated in this latent."""
        assert self.termination is not None, "made without it"
        logits: Tensor = self.termination(z)
        return logits.squeeze(-1)


def value_of(
    model: LatentModel, values: Values, z: Tensor, action: Tensor, pair: Tensor | None
) -> Tensor:
    """The numbers [n, ...] of the Qs `pair` [n], or of all of them."""
    return model.number(values(torch.cat([z, action], -1), pair))


def shifted_images(images: Tensor, shift: Tensor) -> Tensor:
    """Images [..., C, H, W], each moved by its shift [..., 2]; edges are repeated."""
    lead, (channels, height, width) = images.shape[:-3], images.shape[-3:]
    flat, moved = images.reshape(-1, channels, height, width), shift.reshape(-1, 2)
    device = images.device
    rows = (torch.arange(height, device=device) + moved[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=device) + moved[:, 1:]).clamp(0, width - 1)
    flat = flat.gather(2, rows[:, None, :, None].expand(-1, channels, -1, width))
    flat = flat.gather(3, columns[:, None, None, :].expand(-1, channels, height, -1))
    return flat.reshape(*lead, channels, height, width)


def _begin(weight: Tensor, zero: bool) -> None:
    if zero:
        nn.init.zeros_(weight)
    else:
        nn.init.trunc_normal_(weight, std=0.02)


def _of(tensors: Tensor, which: Tensor | None) -> Tensor:
    return tensors if which is None else tensors.index_select(0, which)


def _safe(name: str) -> str:
    """A name that a module may have."""
    return name.replace(".", "_").replace("/", "_")
