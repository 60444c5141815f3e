"""Mamba (Gu and Dao 2023) and Mamba-2 (Dao and Gu 2024) as memories, in plain PyTorch.

A layer is a short convolution over time and a linear recurrence whose decay, input and output
depend on what is seen. Both start from a given state and forget at every reset: the decay is 0
there, and the convolution does not look past it. `sequence` computes the same numbers as `step`:
Mamba by a loop with a backward pass of its own, Mamba-2 by chunks of matrix products.
Departures from the papers: the input is first projected to `dim`, and a layer normalization
follows the last layer.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_lab.core.compiled import tracing
from rl_lab.core.options import Options, option
from rl_lab.networks.memory.episodes import episode_steps, is_broken, step_by_step
from rl_lab.networks.mlp import linear

State = dict[str, Tensor]
DT_FLOOR = 1e-4  # no step size begins smaller
ERASED = -1e4  # a logarithm of nothing: its exponential is 0, and so are its gradients


@dataclass(frozen=True, kw_only=True)
class SSMConfig(Options):
    """What Mamba and Mamba-2 share."""

    dim: int = option(64, "width of the stream between layers, and of the output", low=1)
    layers: int = option(1, "layers; each has its own state", low=1)
    d_state: int = option(16, "numbers that each channel remembers", low=1)
    d_conv: int = option(4, "steps that the convolution sees, the current one included", low=2)
    expand: int = option(2, "channels of a layer, as a multiple of dim", low=1)
    dt_min: float = option(1e-3, "smallest step size at the beginning", above=0)
    dt_max: float = option(0.1, "largest step size at the beginning", above=0)

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        super().__post_init__()
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min must be at most dt_max, {self.dt_max}, got {self.dt_min}")


@dataclass(frozen=True, kw_only=True)
class MambaConfig(SSMConfig):
    """Size of a Mamba memory."""

    type: str = option("mamba", "mamba")
    dt_rank: int | Literal["auto"] = option(
        "auto", "numbers that step sizes are made of; auto: dim / 16, rounded up", low=1
    )
    dt_init: Literal["random", "constant"] = option(
        "random", "weights of the step sizes at the beginning: uniform, or all the same"
    )
    dt_scale: float = option(1.0, "scale of those weights", above=0)


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(SSMConfig):
    """Size of a Mamba-2 memory."""

    type: str = option("mamba2", "mamba2")
    d_state: int = option(32, "numbers that each channel remembers", low=1)
    heads: int = option(4, "groups of channels with one decay each", low=1)
    chunk: int = option(32, "steps of a sequence that are computed at once", low=1)

    def __post_init__(self) -> None:
        """Refuse heads of unequal width."""
        super().__post_init__()
        if (self.expand * self.dim) % self.heads:
            raise ValueError(f"heads must divide expand × dim, {self.expand * self.dim}")


class Convolution(nn.Module):
    """A causal convolution of every channel with its own weights, then SiLU."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(width, channels).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))

    def forward(self, x: Tensor, tail: Tensor, since: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, N, C] after `tail` [N, K - 1, C]; a step sees `since` [T, N] steps back at most."""
        steps, past = len(x), len(self.weight) - 1
        seen = torch.cat([tail.transpose(0, 1), x])
        total = self.bias + self.weight[0] * x
        for back in range(1, past + 1):
            tap = seen[past - back : past - back + steps]
            total = total + self.weight[back] * tap.masked_fill((since < back).unsqueeze(-1), 0.0)
        ago = torch.arange(past - 1, -1, -1, device=x.device).unsqueeze(-1)  # [K - 1, 1]
        kept = seen[steps:].masked_fill((ago > since[-1]).unsqueeze(-1), 0.0)
        return functional.silu(total), kept.transpose(0, 1)


class Mixer(nn.Module, ABC):
    """What mixes the time steps of a layer: convolution and recurrence."""

    convolution: Convolution
    state_shape: tuple[int, ...]  # of the recurrence, for each row

    @abstractmethod
    def forward(
        self, x: Tensor, tail: Tensor, hidden: Tensor, since: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, N, D]; `since` [T, N] is None for a single step. Output and both states."""


class MambaMixer(Mixer):
    """Selective state space: one decay for each channel and number of its state."""

    undecayed = ("log_decay", "skip", "dt.bias")  # no weight decay: it would change time scales

    def __init__(self, config: MambaConfig) -> None:
        super().__init__()
        channels, size = config.expand * config.dim, config.d_state
        rank = math.ceil(config.dim / 16) if config.dt_rank == "auto" else config.dt_rank
        self.sizes = [rank, size, size]
        self.state_shape = (channels, size)
        self.input = linear(config.dim, 2 * channels, 1.0, bias=False)
        self.convolution = Convolution(channels, config.d_conv)
        self.select = linear(channels, sum(self.sizes), 1.0, bias=False)
        self.dt = nn.Linear(rank, channels)
        bound = config.dt_scale / math.sqrt(rank)
        with torch.no_grad():
            if config.dt_init == "constant":
                self.dt.weight.fill_(bound)
            else:
                self.dt.weight.uniform_(-bound, bound)
            self.dt.bias.copy_(initial_dt(channels, config))
        decays = torch.arange(1, size + 1, dtype=torch.float32).log()
        self.log_decay = nn.Parameter(decays.repeat(channels, 1))
        self.skip = nn.Parameter(torch.ones(channels))
        self.output = linear(channels, config.dim, 1.0, bias=False)

    def forward(
        self, x: Tensor, tail: Tensor, hidden: Tensor, since: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Mixer`."""
        u, gate = self.input(x).chunk(2, -1)
        u, tail = self.convolution(u, tail, _no_reset(x) if since is None else since)
        dt, write, read = self.select(u).split(self.sizes, -1)
        dt = functional.softplus(self.dt(dt))
        rate = -self.log_decay.exp()
        if since is None:
            hidden = (dt[0].unsqueeze(-1) * rate).exp() * hidden
            hidden = hidden + (dt * u)[0].unsqueeze(-1) * write[0].unsqueeze(-2)
            y = (hidden @ read[0].unsqueeze(-1)).squeeze(-1).unsqueeze(0)
        else:
            scan = looped_scan if tracing.get() else SelectiveScan.apply
            y, hidden = scan(dt, dt * u, rate, write, read, hidden, since == 0)
        y = (y + self.skip * u) * functional.silu(gate)
        return self.output(y), tail, hidden


class SelectiveScan(torch.autograd.Function):
    """The recurrence of Mamba over time, with a backward pass that keeps only the states.

    Autograd would keep every decay and product [T, N, C, S] as well, and takes about twice as long.
    """

    @staticmethod
    def forward(
        ctx: Any,
        dt: Tensor,
        u: Tensor,
        rate: Tensor,
        write: Tensor,
        read: Tensor,
        start: Tensor,
        resets: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """dt, u [T, N, C]; rate [C, S]; write, read [T, N, S]; start [N, C, S]; resets [T, N]."""
        states = u.new_empty(len(u), *start.shape)
        outputs = torch.empty_like(u)
        any_reset = resets.any(1).tolist()
        hidden = start
        for t in range(len(u)):
            if any_reset[t]:
                hidden = hidden.masked_fill(resets[t, :, None, None], 0.0)
            decay = (dt[t].unsqueeze(-1) * rate).exp_()
            torch.mul(decay, hidden, out=states[t])
            hidden = states[t].addcmul_(u[t].unsqueeze(-1), write[t].unsqueeze(-2))
            torch.bmm(hidden, read[t].unsqueeze(-1), out=outputs[t].unsqueeze(-1))
        ctx.save_for_backward(dt, u, rate, write, read, start, resets, states)
        return outputs, hidden.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> Any:
        """Gradients of everything but `resets`, from the last step to the first."""
        dt, u, rate, write, read, start, resets, states = ctx.saved_tensors
        any_reset = resets.any(1).tolist()
        grad_dt, grad_u = torch.empty_like(dt), torch.empty_like(u)
        grad_write, grad_read = torch.empty_like(write), torch.empty_like(read)
        grad_rate = torch.zeros_like(rate)
        grad = grad_last.clone()  # of the state after step t
        for t in range(len(u) - 1, -1, -1):
            grad.addcmul_(grad_y[t].unsqueeze(-1), read[t].unsqueeze(-2))
            grad_read[t] = torch.bmm(grad_y[t].unsqueeze(1), states[t]).squeeze(1)
            grad_u[t] = torch.bmm(grad, write[t].unsqueeze(-1)).squeeze(-1)
            grad_write[t] = torch.bmm(u[t].unsqueeze(1), grad).squeeze(1)
            grad.mul_((dt[t].unsqueeze(-1) * rate).exp_())
            before = states[t - 1] if t else start
            if any_reset[t]:
                grad.masked_fill_(resets[t, :, None, None], 0.0)
                before = before.masked_fill(resets[t, :, None, None], 0.0)
            exponent = grad * before  # gradient of dt × rate
            grad_dt[t] = (exponent * rate).sum(-1)
            grad_rate += (exponent * dt[t].unsqueeze(-1)).sum(0)
        return grad_dt, grad_u, grad_rate, grad_write, grad_read, grad, None


def looped_scan(
    dt: Tensor, u: Tensor, rate: Tensor, write: Tensor, read: Tensor, start: Tensor, resets: Tensor
) -> tuple[Tensor, Tensor]:
    """`SelectiveScan` by autograd, for the compiler."""
    hidden, outputs = start, []
    for t in range(len(u)):
        hidden = hidden.masked_fill(resets[t, :, None, None], 0.0)
        hidden = (dt[t].unsqueeze(-1) * rate).exp() * hidden
        hidden = hidden + u[t].unsqueeze(-1) * write[t].unsqueeze(-2)
        outputs.append((hidden * read[t].unsqueeze(-2)).sum(-1))
    return torch.stack(outputs), hidden


class Mamba2Mixer(Mixer):
    """State space duality: one decay for each head, so that time steps become matrix products."""

    undecayed = ("log_decay", "skip", "dt_bias")  # as in Mamba

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        channels, size = config.expand * config.dim, config.d_state
        self.heads, self.chunk = config.heads, config.chunk
        self.sizes = [channels, size, size]
        self.state_shape = (config.heads, channels // config.heads, size)
        seen = sum(self.sizes)
        self.input_sizes = [channels, seen, config.heads]
        self.input = linear(config.dim, sum(self.input_sizes), 1.0, bias=False)
        self.convolution = Convolution(seen, config.d_conv)
        self.dt_bias = nn.Parameter(initial_dt(config.heads, config))
        self.log_decay = nn.Parameter(torch.empty(config.heads).uniform_(1, 16).log_())
        self.skip = nn.Parameter(torch.ones(config.heads, 1))
        self.norm = nn.RMSNorm(channels, eps=1e-5)
        self.output = linear(channels, config.dim, 1.0, bias=False)

    def forward(
        self, x: Tensor, tail: Tensor, hidden: Tensor, since: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Mixer`."""
        gate, seen, dt = self.input(x).split(self.input_sizes, -1)
        seen, tail = self.convolution(seen, tail, _no_reset(x) if since is None else since)
        u, write, read = seen.split(self.sizes, -1)
        u = u.unflatten(-1, (self.heads, -1))  # [T, N, H, W]
        dt = functional.softplus(dt + self.dt_bias)  # [T, N, H]
        log_keep, entering = dt * -self.log_decay.exp(), dt.unsqueeze(-1) * u
        if since is None:
            hidden = log_keep[0].exp()[..., None, None] * hidden
            hidden = hidden + entering[0].unsqueeze(-1) * write[0][:, None, None]
            y = (hidden @ read[0][:, None, :, None]).squeeze(-1).unsqueeze(0)
        else:
            y, hidden = chunked_scan(log_keep, entering, write, read, hidden, since, self.chunk)
        y = (y + self.skip * u).flatten(2)
        return self.output(self.norm(y * functional.silu(gate))), tail, hidden


def chunked_scan(
    log_keep: Tensor,
    u: Tensor,
    write: Tensor,
    read: Tensor,
    hidden: Tensor,
    since: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """The recurrence of Mamba-2 by matrix products inside of chunks, and a loop over chunks.

    log_keep [T, N, H]: logarithm of the decay; u [T, N, H, W]; write, read [T, N, S]; hidden
    [N, H, W, S]; since [T, N]: steps since the episode began, T or more if before the sequence.
    """
    outputs = []
    for begin in range(0, len(u), chunk):
        span = slice(begin, begin + chunk)
        entering = u[span].permute(1, 2, 0, 3)  # [N, H, Q, W]
        to, of = write[span].transpose(0, 1), read[span].transpose(0, 1)  # [N, Q, S]
        ago = since[span].T.unsqueeze(1)  # [N, 1, Q]
        step = torch.arange(ago.shape[-1], device=u.device)
        decays = log_keep[span].permute(1, 2, 0)  # [N, H, Q]
        distance = step.unsqueeze(-1) - step
        joined = (distance >= 0) & (distance <= ago.unsqueeze(-1))  # [N, 1, Q, Q]
        # Sums from each step to each later one. Differences of sums from the beginning would
        # cancel: off by 1e-4, and what was before a reset would leave a trace in the gradient.
        spread = (decays.unsqueeze(-1) * (distance > 0)).cumsum(-2)
        kept = spread.masked_fill(~joined, ERASED).exp()  # [N, H, Q, Q]
        y = (kept * (of @ to.transpose(1, 2)).unsqueeze(1)) @ entering
        # What was remembered before the chunk, where no episode has begun in it.
        old = decays.cumsum(-1).masked_fill(ago <= step, ERASED).exp()  # [N, H, Q]
        y = y + old.unsqueeze(-1) * (of.unsqueeze(1) @ hidden.transpose(-1, -2))
        outputs.append(y.permute(2, 0, 1, 3))
        final = (entering * kept[..., -1, :].unsqueeze(-1)).transpose(-1, -2)  # [N, H, W, Q]
        hidden = old[..., -1, None, None] * hidden + final @ to.unsqueeze(1)
    return torch.cat(outputs), hidden


class Layer(nn.Module):
    """Adds what the mixer makes of the normalized stream."""

    def __init__(self, mixer: Mixer, dim: int) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(dim), mixer

    def forward(
        self, x: Tensor, tail: Tensor, hidden: Tensor, since: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Mixer`."""
        y, tail, hidden = self.mixer(self.norm(x), tail, hidden, since)
        return x + y, tail, hidden


class _SSM(nn.Module, ABC):
    """What Mamba and Mamba-2 share: the stream, its layers and their states."""

    def __init__(self, config: SSMConfig, in_dim: int) -> None:
        super().__init__()
        self.out_dim = config.dim
        self.input = linear(in_dim, config.dim, 1.0)
        mixers = [self._mixer(config) for _ in range(config.layers)]
        self.layers = nn.ModuleList(Layer(mixer, config.dim) for mixer in mixers)
        self.output_norm = nn.LayerNorm(config.dim)
        width, channels = mixers[0].convolution.weight.shape
        self.state_shapes: dict[str, tuple[int, ...]] = {
            "conv": (config.layers, width - 1, channels),
            "ssm": (config.layers, *mixers[0].state_shape),
        }

    @abstractmethod
    def _mixer(self, config: Any) -> Mixer:
        """What a layer mixes time with."""

    def initial_state(self, batch: int) -> State:
        """Zeros: `conv`, what the convolutions saw last, and `ssm`, of the recurrences."""
        zeros = self.input.weight.new_zeros
        return {name: zeros(batch, *shape) for name, shape in self.state_shapes.items()}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step, x [N, D]; the state belongs to the same episode as x."""
        output, state = self._through(x.unsqueeze(0), state, None)
        return output[0], state

    def sequence(self, x: Tensor, state: State, resets: Tensor) -> tuple[Tensor, State]:
        """x [T, N, D]; where `resets` [T, N] is True the state is cleared before the step."""
        if is_broken(x, state):
            return step_by_step(self, x, state, resets)
        return self._through(x, state, episode_steps(resets, _no_reset(x)[0]))

    def _through(self, x: Tensor, state: State, since: Tensor | None) -> tuple[Tensor, State]:
        stream, after = self.input(x), []
        for layer, tail, hidden in zip(
            self.layers, state["conv"].unbind(1), state["ssm"].unbind(1), strict=True
        ):
            stream, *moved = layer(stream, tail, hidden, since)
            after.append(moved)
        conv, ssm = (torch.stack(each, 1) for each in zip(*after, strict=True))
        return self.output_norm(stream), {"conv": conv, "ssm": ssm}


class Mamba(_SSM):
    """Selective state space model (Gu and Dao 2023)."""

    Config = MambaConfig

    def _mixer(self, config: MambaConfig) -> Mixer:
        return MambaMixer(config)


class Mamba2(_SSM):
    """Selective state space model with one decay per head (Dao and Gu 2024)."""

    Config = Mamba2Config

    def _mixer(self, config: Mamba2Config) -> Mixer:
        return Mamba2Mixer(config)


def initial_dt(count: int, config: SSMConfig) -> Tensor:
    """Biases whose softplus is spread from dt_min to dt_max, evenly in the logarithm."""
    low, high = math.log(config.dt_min), math.log(config.dt_max)
    dt = torch.empty(count).uniform_(low, high).exp().clamp(min=DT_FLOOR)
    return dt + torch.log(-torch.expm1(-dt))  # the inverse of softplus


def _no_reset(x: Tensor) -> Tensor:
    """Steps since the episode began [T, N], where it began long before."""
    return torch.full(x.shape[:2], 2**30, device=x.device)
