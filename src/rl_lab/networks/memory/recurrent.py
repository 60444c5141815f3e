"""No memory, LSTM and GRU, with resets inside of a sequence.

A step is a plain cell. A sequence is a loop over time with a backward pass of its own: autograd
would keep a node for every small operation of every step. The compiler gets the plain cells.

The contract of every memory: `sequence(x, state, resets)` equals repeated `step`, and nothing
before a reset influences anything after it. A state is a dict of tensors with N rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.core.compiled import tracing
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
        if not tracing.get():
            return self.scan([self], [x], [state], resets)[0]
        projected = self.input(x)  # one matmul for all time steps
        begins, outputs = resets.unsqueeze(-1), []
        for t in range(x.shape[0]):
            state = {name: value.masked_fill(begins[t], 0.0) for name, value in state.items()}
            output, state = self._cell(projected[t], state)
            outputs.append(output)
        return torch.stack(outputs), state

    @abstractmethod
    def _cell(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from the projected input."""

    @staticmethod
    @abstractmethod
    def scan(
        memories: Sequence[Any], inputs: Sequence[Tensor], states: Sequence[State], resets: Tensor
    ) -> list[tuple[Tensor, State]]:
        """The sequences of several memories of one kind and size, in one loop over time."""


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

    @staticmethod
    def scan(
        memories: Sequence["LSTM"],
        inputs: Sequence[Tensor],
        states: Sequence[State],
        resets: Tensor,
    ) -> list[tuple[Tensor, State]]:
        """See `_Recurrent`."""
        weight = torch.stack([each.recurrent.weight for each in memories])
        bias = torch.stack([each.recurrent.bias for each in memories])
        opened, size = torch.zeros_like(bias), weight.shape[-1]
        opened[:, size : 2 * size] = 1  # the forget gate
        gates = torch.stack([each.input(x) for each, x in zip(memories, inputs, strict=True)], 1)
        hidden, cell = (torch.stack([each[name] for each in states]) for name in LSTM.state_names)
        gates = gates + (bias + opened).unsqueeze(1)
        found = LSTMScan.apply(gates, weight, hidden, cell, resets)
        parts = zip(found[0].unbind(1), found[1], found[2], strict=True)
        return [(outputs, {"hidden": hidden, "cell": cell}) for outputs, hidden, cell in parts]


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

    @staticmethod
    def scan(
        memories: Sequence["GRU"],
        inputs: Sequence[Tensor],
        states: Sequence[State],
        resets: Tensor,
    ) -> list[tuple[Tensor, State]]:
        """See `_Recurrent`."""
        weight = torch.stack([each.recurrent.weight for each in memories])
        bias = torch.stack([each.recurrent.bias for each in memories])
        given = torch.stack([each.input(x) for each, x in zip(memories, inputs, strict=True)], 1)
        hidden = torch.stack([each["hidden"] for each in states])
        outputs, hidden = GRUScan.apply(given, weight, bias, hidden, resets)
        return [
            (each, {"hidden": last}) for each, last in zip(outputs.unbind(1), hidden, strict=True)
        ]


def sequences(
    memories: Sequence[nn.Module],
    inputs: Sequence[Tensor],
    states: Sequence[State],
    resets: Tensor,
) -> list[tuple[Tensor, State]]:
    """`sequence` of several memories: LSTMs or GRUs of one size take every step together."""
    first = memories[0]
    alike = {(type(each), getattr(each, "out_dim", None)) for each in memories}
    if isinstance(first, _Recurrent) and len(alike) == 1 and not tracing.get():
        return first.scan(memories, inputs, states, resets)
    several = zip(memories, inputs, states, strict=True)
    return [memory.sequence(x, state, resets) for memory, x, state in several]  # type: ignore[operator]


class LSTMScan(torch.autograd.Function):
    """An LSTM over time.

    Its backward pass computes the slopes of all steps at once, then goes back through the states,
    and multiplies once for the gradient of the weight.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """inputs [T, G, N, 4D] of G memories, with both biases; weight [G, 4D, D]; resets [T, N].

        hidden and cell are [G, N, D].
        """
        size, transposed, start = hidden.shape[-1], weight.transpose(1, 2), (hidden, cell)
        gates, cells = torch.empty_like(inputs), inputs.new_empty(*inputs.shape[:3], size)
        squashed, outputs = torch.empty_like(cells), torch.empty_like(cells)
        opened = gates[..., : 3 * size]  # all but the content
        parts = (inputs, gates, opened, *gates.chunk(4, -1), cells, squashed, outputs)
        for begins, given, gate, open_, write, forget, read, content, *out in _steps(resets, parts):
            if begins is not None:
                hidden, cell = hidden.masked_fill(begins, 0.0), cell.masked_fill(begins, 0.0)
            torch.baddbmm(given, hidden, transposed, out=gate)
            open_.sigmoid_()
            content.tanh_()
            cell = torch.mul(forget, cell, out=out[0]).addcmul_(write, content)
            hidden = torch.mul(read, torch.tanh(cell, out=out[1]), out=out[2])
        ctx.save_for_backward(weight, *start, resets, gates, cells, squashed, outputs)
        return outputs, hidden.clone(), cell.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_hidden: Tensor, grad_cell: Tensor) -> Any:
        """Gradients of everything but `resets`, from the last step to the first."""
        weight, hidden, cell, resets, gates, cells, squashed, outputs = ctx.saved_tensors
        write, forget, read, content = gates.chunk(4, -1)
        to_read = squashed * read * (1 - read)
        slopes = torch.stack(
            [
                content * write * (1 - write),
                _before(cells, cell, resets) * forget * (1 - forget),
                torch.zeros_like(read),
                write * (1 - content.square()),
            ],
            dim=3,
        )  # [T, G, N, 4, D]: how each gate's input moves the cell
        parted = torch.empty_like(slopes)
        grad_inputs = parted.flatten(3)  # the same memory
        grad_read, to_cell = parted[:, :, :, 2], read * (1 - squashed.square())
        parts = (grad_outputs, parted, grad_read, grad_inputs, slopes, to_cell, to_read, forget)
        for begins, grad, gates_, of_read, flat, slope, cell_, read_, keep in reversed(
            _steps(resets, parts)
        ):
            grad_hidden = grad_hidden + grad
            grad_cell = torch.addcmul(grad_cell, grad_hidden, cell_)
            torch.mul(slope, grad_cell.unsqueeze(2), out=gates_)
            torch.mul(grad_hidden, read_, out=of_read)
            grad_hidden, grad_cell = torch.bmm(flat, weight), grad_cell * keep
            if begins is not None:
                grad_hidden = grad_hidden.masked_fill(begins, 0.0)
                grad_cell = grad_cell.masked_fill(begins, 0.0)
        grad_weight = _rows(grad_inputs).transpose(1, 2) @ _rows(_before(outputs, hidden, resets))
        return grad_inputs, grad_weight, grad_hidden, grad_cell, None


class GRUScan(torch.autograd.Function):
    """A GRU over time, as `LSTMScan`."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """inputs [T, G, N, 3D] of G memories; weight [G, 3D, D]; bias [G, 3D]; hidden [G, N, D]."""
        size, transposed, start = hidden.shape[-1], weight.transpose(1, 2), hidden
        gates = inputs.new_empty(*inputs.shape[:3], 2 * size)
        contents, outputs = (inputs.new_empty(*inputs.shape[:3], size) for _ in range(2))
        bias = bias.unsqueeze(1)
        recurrents = torch.empty_like(inputs)
        # The content takes `recalled` from the memory, through the reset gate.
        opened, recalled = recurrents.split([2 * size, size], -1)
        parts = (recurrents, *inputs.split([2 * size, size], -1), opened, recalled)
        parts = (*parts, gates, *gates.chunk(2, -1), contents, outputs)
        for begins, recurrent, given, asked, open_, recall, gate, reset, update, *out in _steps(
            resets, parts
        ):
            if begins is not None:
                hidden = hidden.masked_fill(begins, 0.0)
            torch.baddbmm(bias, hidden, transposed, out=recurrent)
            torch.add(given, open_, out=gate).sigmoid_()
            content = torch.addcmul(asked, reset, recall, out=out[0]).tanh_()
            hidden = torch.lerp(content, hidden, update, out=out[1])
        ctx.save_for_backward(weight, start, resets, gates, contents, recalled, outputs)
        return outputs, hidden.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_hidden: Tensor) -> Any:
        """Gradients of everything but `resets`, from the last step to the first."""
        weight, hidden, resets, gates, contents, recalled, outputs = ctx.saved_tensors
        before = _before(outputs, hidden, resets)
        reset, update = gates.chunk(2, -1)
        to_content = (1 - update) * (1 - contents.square())
        slopes = torch.stack(
            [
                to_content * recalled * reset * (1 - reset),
                (before - contents) * update * (1 - update),
                to_content * reset,
            ],
            dim=3,
        )  # [T, G, N, 3, D]: how each part of `hidden @ weight` moves the new state
        parted, arrived = torch.empty_like(slopes), torch.empty_like(contents)
        grad_recurrent = parted.flatten(3)  # the same memory
        parts = (grad_outputs, parted, grad_recurrent, arrived, slopes, update)
        for begins, grad, gates_, flat, total, slope, keep in reversed(_steps(resets, parts)):
            torch.add(grad_hidden, grad, out=total)
            torch.mul(slope, total.unsqueeze(2), out=gates_)
            grad_hidden = torch.baddbmm(total * keep, flat, weight)
            if begins is not None:
                grad_hidden = grad_hidden.masked_fill(begins, 0.0)
        grad_content = to_content * arrived
        grad_inputs = torch.cat([parted[:, :, :, :2].flatten(3), grad_content], -1)
        rows = _rows(grad_recurrent)
        grad_weight = rows.transpose(1, 2) @ _rows(before)
        return grad_inputs, grad_weight, rows.sum(1), grad_hidden, None


def _steps(resets: Tensor, parts: tuple[Tensor, ...]) -> list[Any]:
    """For each step a mask [1, N, 1] of the rows that reset there, None if none, and the parts."""
    begins = [
        row if any_reset else None
        for row, any_reset in zip(
            resets[:, None, :, None].unbind(), resets.any(1).tolist(), strict=True
        )
    ]
    return list(zip(begins, *(part.unbind() for part in parts), strict=True))


def _before(states: Tensor, start: Tensor, resets: Tensor) -> Tensor:
    """States [T, G, N, D] as each step found them: those of the step before, 0 where it resets."""
    found = torch.cat([start.unsqueeze(0), states[:-1]])
    return found.masked_fill(resets[:, None, :, None], 0.0)


def _rows(x: Tensor) -> Tensor:
    """[T, G, N, D] as [G, T · N, D]."""
    return x.transpose(0, 1).flatten(1, 2)
