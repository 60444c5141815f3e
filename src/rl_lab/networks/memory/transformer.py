"""Transformer-XL (Dai et al. 2019) and GTrXL (Parisotto et al. 2019) as memories.

Every layer attends to the step itself and to the `memory_length` steps before it in the same
episode. The state holds the inputs of every layer at those steps, as constants: gradients flow
through the steps of one `sequence`, never into the state it starts from. Episodes have no limit.
Departures from the papers: layer normalization comes before each part of a layer in both, and once
more after the last layer.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_lab.core.options import Options, option
from rl_lab.networks.memory.episodes import episode_steps, is_broken, step_by_step
from rl_lab.networks.mlp import linear

State = dict[str, Tensor]
Positional = Literal["relative", "absolute", "learned", "none"]
MIN_BLOCK = 64  # steps that are attended from at once: longer sequences cost linearly more


@dataclass(frozen=True, kw_only=True)
class TrXLConfig(Options):
    """Size of a transformer memory."""

    type: str = option("trxl", "trxl")
    dim: int = option(64, "width of every layer; a multiple of heads", low=2)
    layers: int = option(1, "layers; each has its own memory", low=1)
    heads: int = option(4, "attention heads of a layer", low=1)
    memory_length: int = option(32, "earlier steps that every layer attends to", low=1)
    feedforward: int = option(4, "hidden units of a layer's MLP, as a multiple of dim", low=1)
    positional: Positional = option(
        "relative",
        "relative: how long ago; absolute, learned: steps since the episode began, as waves or as "
        "a table; none: order is not seen",
    )
    max_positions: int = option(
        1024, "rows of the learned table; later steps share the last one", low=1
    )

    def __post_init__(self) -> None:
        """Refuse heads of unequal width."""
        super().__post_init__()
        if self.dim % self.heads or self.dim % 2:
            raise ValueError(f"dim must be even and a multiple of heads, got {self.dim}")


@dataclass(frozen=True, kw_only=True)
class GTrXLConfig(TrXLConfig):
    """Size of a gated transformer memory."""

    type: str = option("gtrxl", "gtrxl")
    gate_bias: float = option(2.0, "how closed the gates begin: 2 is close to the identity", low=0)


class Attention(nn.Module):
    """Multi-head attention over the last `length` steps and the current one."""

    def __init__(self, config: TrXLConfig) -> None:
        super().__init__()
        self.heads, self.length = config.heads, config.memory_length
        self.query = linear(config.dim, config.dim, 1.0, bias=False)
        self.key_value = linear(config.dim, 2 * config.dim, 1.0, bias=False)
        self.output = linear(config.dim, config.dim, 1.0)
        self.relative = config.positional == "relative"
        if self.relative:
            self.distance = linear(config.dim, config.dim, 1.0, bias=False)
            width = config.dim // config.heads
            self.content_bias = nn.Parameter(torch.zeros(config.heads, width))
            self.distance_bias = nn.Parameter(torch.zeros(config.heads, width))

    def forward(self, x: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
        """x [T, N, D] attends to `seen` [M + T, N, D] where `mask` [N, T, M + T] allows it."""
        query = self._split(self.query(x))  # [T, N, H, W]
        key, value = (self._split(each) for each in self.key_value(seen).chunk(2, -1))
        asked = query + self.content_bias if self.relative else query
        score = torch.einsum("tnhw,snhw->nhts", asked, key)
        if self.relative:
            score = score + self._distance_score(query, x)
        score = score / math.sqrt(query.shape[-1])
        weight = score.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(-1)
        return self.output(torch.einsum("nhts,snhw->tnhw", weight, value).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def _distance_score(self, query: Tensor, x: Tensor) -> Tensor:
        """The part of the score that depends on the distance, [N, H, T, M + T]."""
        steps, length = x.shape[0], self.length
        away = torch.arange(length, -1, -1, device=x.device, dtype=x.dtype)  # M … 0
        table = self._split(self.distance(waves(away, x.shape[-1])))  # [M + 1, H, W]
        score = torch.einsum("tnhw,shw->nhts", query + self.distance_bias, table)
        # Row t begins at column t: with T zeros behind each row of M + 1, and read again in rows
        # that are one shorter, every row moves one further to the right than the one before.
        padded = functional.pad(score, (0, steps)).flatten(-2)
        return padded[..., : steps * (length + steps)].unflatten(-1, (steps, length + steps))


class Residual(nn.Module):
    """Adds what a part of a layer gives."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum."""
        return x + y


class Gate(nn.Module):
    """A GRU that decides how much of a layer's part gets into the stream (GTrXL, eq. 8)."""

    def __init__(self, dim: int, bias: float) -> None:
        super().__init__()
        self.part = linear(dim, 3 * dim, 1.0, bias=False)
        self.stream = linear(dim, 2 * dim, 1.0, bias=False)
        self.content = linear(dim, dim, 1.0, bias=False)
        self.bias = nn.Parameter(torch.full((dim,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream x after the part's output y."""
        y_reset, y_update, y_content = self.part(y.relu()).chunk(3, -1)
        x_reset, x_update = self.stream(x).chunk(2, -1)
        reset = torch.sigmoid(y_reset + x_reset)
        update = torch.sigmoid(y_update + x_update - self.bias)
        content = torch.tanh(y_content + self.content(reset * x))
        return x + update * (content - x)


class Layer(nn.Module):
    """Attention, then an MLP; each sees a normalized stream and is added or gated."""

    def __init__(self, config: TrXLConfig) -> None:
        super().__init__()
        dim, hidden = config.dim, config.feedforward * config.dim
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(config)
        self.mlp = nn.Sequential(linear(dim, hidden), nn.ReLU(), linear(hidden, dim, 1.0))
        gated = isinstance(config, GTrXLConfig)
        self.join_attention, self.join_mlp = (
            Gate(dim, config.gate_bias) if gated else Residual()  # type: ignore[attr-defined]
            for _ in range(2)
        )

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """x [T, N, D] after `memory` [M, N, D]."""
        seen = self.attention_norm(torch.cat([memory, x]))
        x = self.join_attention(x, self.attention(seen[len(memory) :], seen, mask))
        return self.join_mlp(x, self.mlp(self.mlp_norm(x)))


class TrXL(nn.Module):
    """Transformer-XL: attends to the last steps of the episode (Dai et al. 2019)."""

    Config: type[TrXLConfig] = TrXLConfig

    def __init__(self, config: TrXLConfig, in_dim: int) -> None:
        super().__init__()
        self.config = config
        self.out_dim = config.dim
        self.input = linear(in_dim, config.dim, 1.0)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.output_norm = nn.LayerNorm(config.dim)
        if config.positional == "learned":
            self.positions = nn.Embedding(config.max_positions, config.dim)
            nn.init.normal_(self.positions.weight, std=0.02)

    def initial_state(self, batch: int) -> State:
        """Nothing seen: `memory` [N, layers, M, D], and `count` [N, 1], the steps seen so far."""
        shape = (batch, self.config.layers, self.config.memory_length, self.config.dim)
        zeros = self.input.weight.new_zeros
        return {"memory": zeros(shape), "count": zeros(batch, 1)}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step, x [N, D]; the state belongs to the same episode as x."""
        never = torch.zeros(1, len(x), dtype=torch.bool, device=x.device)
        output, state = self.sequence(x.unsqueeze(0), state, never)
        return output[0], state

    def sequence(self, x: Tensor, state: State, resets: Tensor) -> tuple[Tensor, State]:
        """x [T, N, D]; where `resets` [T, N] is True an episode begins."""
        if is_broken(x, state):
            return step_by_step(self, x, state, resets)
        memory = state["memory"].detach().permute(1, 2, 0, 3)  # [layers, M, N, D]
        count = state["count"].detach().squeeze(-1).clamp(min=0)
        memory = self._forget(memory, count)
        block = max(self.config.memory_length, MIN_BLOCK)
        outputs = []
        for begin in range(0, len(x), block):
            span = slice(begin, begin + block)
            output, memory, count = self._attend(x[span], memory, count, resets[span])
            outputs.append(output)
        after = {"memory": memory.permute(2, 0, 1, 3).detach(), "count": count.unsqueeze(-1)}
        return torch.cat(outputs), after

    def _attend(
        self, x: Tensor, memory: Tensor, count: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A part of a sequence that is attended from at once."""
        steps, length = len(x), self.config.memory_length
        position = episode_steps(resets, count)  # [T, N]
        rows = torch.arange(steps, device=x.device).unsqueeze(-1)
        distance = rows + length - torch.arange(length + steps, device=x.device)  # [T, M + T]
        band = (distance >= 0) & (distance <= length)
        mask = band & (distance <= position.T.unsqueeze(-1))  # no further than the episode goes
        stream, kept = self._embed(x, position), []
        for layer, remembered in zip(self.layers, memory, strict=True):
            kept.append(torch.cat([remembered, stream])[steps:])
            stream = layer(stream, remembered, mask)
        count = position[-1] + 1
        return self.output_norm(stream), self._forget(torch.stack(kept), count), count

    def _embed(self, x: Tensor, position: Tensor) -> Tensor:
        embedded: Tensor = self.input(x)
        if self.config.positional == "absolute":
            return embedded + waves(position, self.out_dim)
        if self.config.positional == "learned":
            row = position.long().clamp(max=self.config.max_positions - 1)
            return embedded + self.positions(row)
        return embedded

    def _forget(self, memory: Tensor, count: Tensor) -> Tensor:
        """Zeros for what was before the episode: a mask alone would let a NaN through."""
        length = self.config.memory_length
        ago = torch.arange(length, 0, -1, device=memory.device).unsqueeze(-1)  # [M, 1]
        return memory.masked_fill((ago > count).unsqueeze(-1), 0.0)


class GTrXL(TrXL):
    """Transformer-XL with gates in place of sums, steadier in RL (Parisotto et al. 2019)."""

    Config = GTrXLConfig


def waves(position: Tensor, width: int) -> Tensor:
    """Sines and cosines [..., width] of a position, of wavelengths from 2π to 20000π."""
    half = torch.arange(width // 2, device=position.device, dtype=position.dtype)
    angle = position.unsqueeze(-1) * torch.exp(half * (-2 * math.log(10_000) / width))
    return torch.cat([angle.sin(), angle.cos()], -1)
