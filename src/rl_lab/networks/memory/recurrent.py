"""No memory, LSTM and GRU, written as plain cells so that they compile and honour resets.

The contract of every memory: `sequence(x, state, resets)` equals repeated `step`, and nothing
before a reset influences anything after it. A state is a dict of tensors with N rows.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rl_lab.core.options import Options, option

State = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class NoMemoryConfig(Options):
    """Nothing to choose."""

    type: str = option("none", "no memory: each observation is judged by itself")


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Options):
    """Size of a recurrent memory."""

    type: str = option("gru", "lstm or gru")
    hidden_dim: int = option(64, "width of the recurrent state", low=1)


class NoMemory(nn.Module):
    """Passes features through."""

    Config = NoMemoryConfig

    def __init__(self, config: NoMemoryConfig, in_dim: int) -> None:
        super().__init__()
        self.out_dim = in_dim

    def initial_state(self, batch: int) -> State:
        """Nothing."""
        return {}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """x [N, D]."""
        return x, state

    def sequence(self, x: Tensor, state: State, resets: Tensor | None) -> tuple[Tensor, State]:
        """x [T, N, D], or any rows."""
        return x, state


class _Recurrent(nn.Module, ABC):
    """What LSTM and GRU share: weights, the loop, and the reset before a step."""

    Config = RecurrentConfig
    gates: int
    state_names: tuple[str, ...]

    def __init__(self, config: RecurrentConfig, in_dim: int) -> None:
        super().__init__()
        self.out_dim = config.hidden_dim
        self.input = nn.Linear(in_dim, self.gates * config.hidden_dim)
        self.recurrent = nn.Linear(config.hidden_dim, self.gates * config.hidden_dim)
        for layer in (self.input, self.recurrent):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def initial_state(self, batch: int) -> State:
        """Zeros."""
        weight = self.recurrent.weight
        return {name: weight.new_zeros(batch, self.out_dim) for name in self.state_names}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step, x [N, D]; the state belongs to the same episode as x."""
        return self._cell(self.input(x), state)

    def sequence(self, x: Tensor, state: State, resets: Tensor) -> tuple[Tensor, State]:
        """x [T, N, D]; where `resets` [T, N] is True the state is cleared before the step."""
        projected = self.input(x)  # one matmul for all time steps
        keep = (~resets).to(x.dtype).unsqueeze(-1)
        outputs = []
        for t in range(x.shape[0]):
            state = {name: value * keep[t] for name, value in state.items()}
            output, state = self._cell(projected[t], state)
            outputs.append(output)
        return torch.stack(outputs), state

    @abstractmethod
    def _cell(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from the projected input."""


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997)."""

    gates = 4
    state_names = ("hidden", "cell")

    def _cell(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        gates = projected + self.recurrent(state["hidden"])
        write, forget, read, content = gates.chunk(4, dim=-1)
        # The forget gate starts open (+1): gradients survive long enough to learn what to keep.
        cell = torch.sigmoid(forget + 1) * state["cell"] + torch.sigmoid(write) * content.tanh()
        hidden = torch.sigmoid(read) * cell.tanh()
        return hidden, {"hidden": hidden, "cell": cell}


class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al. 2014), with the reset gate after the matmul as in cuDNN."""

    gates = 3
    state_names = ("hidden",)

    def _cell(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        hidden = state["hidden"]
        in_reset, in_update, in_content = projected.chunk(3, dim=-1)
        re_reset, re_update, re_content = self.recurrent(hidden).chunk(3, dim=-1)
        reset = torch.sigmoid(in_reset + re_reset)
        update = torch.sigmoid(in_update + re_update)
        content = torch.tanh(in_content + reset * re_content)
        hidden = content + update * (hidden - content)
        return hidden, {"hidden": hidden}
