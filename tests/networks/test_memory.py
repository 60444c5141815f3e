import pytest
import torch

from rl_lab.core import registry
from rl_lab.core.tree import where_rows

MEMORIES = [name for name in registry.names("memory") if name != "none"]
T, N, D = 12, 5, 6


def make(name):
    torch.manual_seed(3)
    kind = registry.get("memory", name)
    memory = kind(kind.Config(type=name), D)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(T, N, D, generator=generator)
    resets = torch.rand(T, N, generator=generator) < 0.25
    start = {
        key: torch.randn(value.shape, generator=generator)
        for key, value in memory.initial_state(N).items()
    }
    return memory, x, start, resets


@pytest.mark.parametrize("name", MEMORIES)
def test_sequence_equals_repeated_step_with_resets_inside(name):
    memory, x, state, resets = make(name)
    outputs, final = memory.sequence(x, state, resets)
    for t in range(T):
        state = where_rows(resets[t], memory.initial_state(N), state)
        output, state = memory.step(x[t], state)
        torch.testing.assert_close(outputs[t], output, atol=1e-5, rtol=0)
    for key in final:
        torch.testing.assert_close(final[key], state[key], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MEMORIES)
def test_nothing_before_a_reset_matters_after_it(name):
    memory, x, state, _ = make(name)
    resets = torch.zeros(T, N, dtype=torch.bool)
    resets[7] = True
    x.requires_grad_()
    outputs, _ = memory.sequence(x, state, resets)
    (gradient,) = torch.autograd.grad(outputs[7:].sum(), x)
    assert (gradient[:7] == 0).all()
    assert (gradient[7:] != 0).any()
    alone, _ = memory.sequence(x[7:], memory.initial_state(N), resets[7:])
    torch.testing.assert_close(outputs[7:], alone)


@pytest.mark.parametrize("name", MEMORIES)
def test_memory_remembers(name):
    memory, x, state, _ = make(name)
    never = torch.zeros(T, N, dtype=torch.bool)
    x.requires_grad_()
    outputs, _ = memory.sequence(x, state, never)
    (gradient,) = torch.autograd.grad(outputs[-1].sum(), x)
    assert (gradient[0] != 0).any()


def test_gru_equals_torch():
    memory, x, state, _ = make("gru")
    cell = torch.nn.GRUCell(D, memory.out_dim)
    cell.weight_ih.data, cell.bias_ih.data = memory.input.weight, memory.input.bias
    cell.weight_hh.data, cell.bias_hh.data = memory.recurrent.weight, memory.recurrent.bias
    torch.testing.assert_close(memory.step(x[0], state)[0], cell(x[0], state["hidden"]))


def test_lstm_equals_torch_but_for_the_open_forget_gate():
    memory, x, state, _ = make("lstm")
    size = memory.out_dim
    cell = torch.nn.LSTMCell(D, size)
    order = [0, 1, 3, 2]  # ours: write, forget, read, content; torch: i, f, g, o

    def arranged(tensor):
        return torch.cat([tensor.chunk(4)[index] for index in order])

    cell.weight_ih.data, cell.weight_hh.data = (
        arranged(memory.input.weight),
        arranged(memory.recurrent.weight),
    )
    cell.bias_hh.data = arranged(memory.recurrent.bias)
    cell.bias_ih.data = arranged(memory.input.bias).detach().clone()
    cell.bias_ih.data[size : 2 * size] += 1.0
    hidden, memory_cell = cell(x[0], (state["hidden"], state["cell"]))
    output, after = memory.step(x[0], state)
    torch.testing.assert_close(output, hidden)
    torch.testing.assert_close(after["cell"], memory_cell)
