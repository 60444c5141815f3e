from typing import get_args

import pytest
import torch

from rl_lab.core import registry
from rl_lab.core.compiled import tracing
from rl_lab.core.tree import where_rows
from rl_lab.networks.memory import recurrent, ssm, transformer
from rl_lab.networks.memory.transformer import Positional

MEMORIES = [name for name in registry.names("memory") if name != "none"]
T, N, D = 12, 5, 6
# Memories that forget, overflow their window or are cut into pieces within T steps.
SETTINGS = [
    *[(name, {}) for name in MEMORIES],
    *[("trxl", {"memory_length": 3, "positional": kind}) for kind in get_args(Positional)],
    ("gtrxl", {"memory_length": 4, "layers": 2}),
    ("mamba", {"layers": 2, "d_conv": 3, "dt_init": "constant", "dt_rank": 3, "dt_scale": 0.5}),
    ("mamba2", {"layers": 2, "d_conv": 3, "chunk": 5}),
    ("mamba2", {"chunk": 4}),
]
each_setting = pytest.mark.parametrize(("name", "options"), SETTINGS)


def make(name, **options):
    torch.manual_seed(3)
    kind = registry.get("memory", name)
    memory = kind(kind.Config(type=name, **options), D)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(T, N, D, generator=generator)
    resets = torch.rand(T, N, generator=generator) < 0.25
    start = {
        key: torch.randn(value.shape, generator=generator)
        for key, value in memory.initial_state(N).items()
    }
    return memory, x, start, resets


def lived(memory, steps=9, seed=1):
    """The state after some steps: of the same episode in one half of the rows, not in the other."""
    generator = torch.Generator().manual_seed(seed)
    state = memory.initial_state(N)
    with torch.no_grad():
        for t in range(steps):
            begins = (torch.arange(N) % 2 == 0) & (t == steps - 2)
            state = where_rows(begins, memory.initial_state(N), state)
            state = memory.step(torch.randn(N, D, generator=generator), state)[1]
    return state


def weighted(outputs):
    """A number that depends on every output; their sum is a constant after a normalization."""
    return (outputs * torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))).sum()


@each_setting
@pytest.mark.parametrize("start", ["random", "lived", "empty"])
def test_sequence_equals_repeated_step_with_resets_inside(name, options, start):
    memory, x, state, resets = make(name, **options)
    state = {"random": state, "lived": lived(memory), "empty": memory.initial_state(N)}[start]
    outputs, final = memory.sequence(x, state, resets)
    for t in range(T):
        state = where_rows(resets[t], memory.initial_state(N), state)
        output, state = memory.step(x[t], state)
        torch.testing.assert_close(outputs[t], output, atol=1e-5, rtol=0)
    assert set(final) == set(state)
    for key in final:
        assert len(final[key]) == N and final[key].dtype == torch.float32
        torch.testing.assert_close(final[key], state[key], atol=1e-5, rtol=0)


@each_setting
def test_two_halves_are_the_whole(name, options):
    memory, x, _, resets = make(name, **options)
    whole, final = memory.sequence(x, lived(memory), resets)
    first, between = memory.sequence(x[:5], lived(memory), resets[:5])
    second, after = memory.sequence(x[5:], between, resets[5:])
    torch.testing.assert_close(torch.cat([first, second]), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(after, final, atol=1e-5, rtol=0)


@each_setting
def test_the_initial_state_matters(name, options):
    memory, x, _, _ = make(name, **options)
    never = torch.zeros(T, N, dtype=torch.bool)
    outputs, _ = memory.sequence(x, lived(memory), never)
    for other in (memory.initial_state(N), lived(memory, seed=5)):  # nothing, another past
        found, _ = memory.sequence(x, other, never)
        assert (outputs[0] - found[0]).abs().amax(-1).min() > 1e-3


@each_setting
def test_nothing_before_a_reset_matters_after_it(name, options):
    memory, x, state, _ = make(name, **options)
    resets = torch.zeros(T, N, dtype=torch.bool)
    resets[7] = True
    x.requires_grad_()
    outputs, _ = memory.sequence(x, state, resets)
    (gradient,) = torch.autograd.grad(weighted(outputs[7:]), x)
    assert (gradient[:7] == 0).all()
    assert (gradient[7:].abs().amax(-1) > 1e-4).all()
    alone, _ = memory.sequence(x[7:], memory.initial_state(N), resets[7:])
    torch.testing.assert_close(outputs[7:], alone)
    other, _ = memory.sequence(torch.cat([x[:7] + 100, x[7:]]), lived(memory), resets)
    assert torch.equal(other[7:], outputs[7:])


@each_setting
def test_the_future_does_not_matter(name, options):
    memory, x, state, resets = make(name, **options)
    outputs, _ = memory.sequence(x, state, resets)
    other, _ = memory.sequence(torch.cat([x[:7], x[7:] + 100]), state, resets)
    torch.testing.assert_close(other[:7], outputs[:7], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", MEMORIES)
def test_memory_remembers(name):
    memory, x, state, _ = make(name)
    never = torch.zeros(T, N, dtype=torch.bool)
    x.requires_grad_()
    outputs, _ = memory.sequence(x, state, never)
    (gradient,) = torch.autograd.grad(weighted(outputs[-1]), x)
    assert (gradient[0].abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("name", ["trxl", "gtrxl"])
@pytest.mark.parametrize("begins", [None, 8])
def test_a_transformer_sees_exactly_the_last_steps_of_its_episode(name, begins):
    memory, x, state, _ = make(name, memory_length=4)
    resets = torch.zeros(T, N, dtype=torch.bool)
    if begins is not None:
        resets[begins] = True
    x.requires_grad_()
    outputs, _ = memory.sequence(x, state, resets)
    (gradient,) = torch.autograd.grad(weighted(outputs[10]), x)
    first = 6 if begins is None else begins
    seen = (gradient != 0).any(-1)
    assert seen[first:11].all() and not seen[:first].any() and not seen[11:].any()


def test_a_transformer_learns_through_the_steps_of_a_sequence_and_not_through_its_state():
    memory, x, state, _ = make("trxl", memory_length=4)
    state = {key: each.requires_grad_() for key, each in state.items()}
    outputs, after = memory.sequence(x, state, torch.zeros(T, N, dtype=torch.bool))
    found = torch.autograd.grad(weighted(outputs), list(state.values()), allow_unused=True)
    assert found == (None, None)
    assert not any(each.requires_grad for each in after.values())


@pytest.mark.parametrize("positional", get_args(Positional))
def test_long_sequences_are_cut_without_a_trace(positional, monkeypatch):
    memory, x, state, resets = make("trxl", memory_length=3, positional=positional)
    x.requires_grad_()
    whole = memory.sequence(x, state, resets)[0]
    monkeypatch.setattr(transformer, "MIN_BLOCK", 2)
    cut = memory.sequence(x, state, resets)[0]
    torch.testing.assert_close(cut, whole, atol=1e-5, rtol=0)
    gradients = [torch.autograd.grad(weighted(each), x)[0] for each in (cut, whole)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=0)


def test_a_gate_begins_close_to_the_identity():
    x, y = torch.randn(64, 8), torch.randn(64, 8)
    torch.manual_seed(0)
    shut, open_ = transformer.Gate(8, 2.0), transformer.Gate(8, 0.0)
    open_.load_state_dict({**shut.state_dict(), "bias": torch.zeros(8)})
    assert (shut(x, y) - x).abs().mean() < 0.5 * (open_(x, y) - x).abs().mean()
    kind = registry.get("memory", "gtrxl")
    biases = [
        v for k, v in kind(kind.Config(), D).named_parameters() if k.endswith("join_mlp.bias")
    ]
    assert len(biases) == 1 and (biases[0] == 2).all()


def test_mambas_gradient_by_hand_is_autograds():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    dt, u, write, read = random(T, N, 3).exp(), random(T, N, 3), random(T, N, 4), random(T, N, 4)
    inputs = [dt, u, -random(3, 4).exp(), write, read, random(N, 3, 4)]
    resets = torch.rand(T, N, generator=generator) < 0.25
    found = []
    for scan in (ssm.SelectiveScan.apply, ssm.looped_scan):
        leaves = [each.clone().requires_grad_() for each in inputs]
        outputs, last = scan(*leaves, resets)
        loss = (outputs * random_weights(outputs)).sum() + (last * random_weights(last)).sum()
        found.append([outputs, last, *torch.autograd.grad(loss, leaves)])
    torch.testing.assert_close(*found, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_the_gradient_of_a_recurrent_sequence_is_autograds(name):
    """Against the plain cells, which the compiler gets: values, states and every gradient."""
    memory, x, state, resets = make(name)
    memory = memory.double()
    found = []
    for compiling in (False, True):
        start = {key: each.double().requires_grad_() for key, each in state.items()}
        inputs = x.double().requires_grad_()
        token = tracing.set(compiling)
        try:
            outputs, last = memory.sequence(inputs, start, resets)
        finally:
            tracing.reset(token)
        loss = (outputs * random_weights(outputs)).sum()
        loss = loss + sum((each * random_weights(each)).sum() for each in last.values())
        leaves = [inputs, *start.values(), *memory.parameters()]
        found.append([outputs, *last.values(), *torch.autograd.grad(loss, leaves)])
    torch.testing.assert_close(*found, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("scan", "gates"), [("GRUScan", 3), ("LSTMScan", 4)])
def test_the_gradient_of_a_recurrent_sequence_is_a_difference_quotient(scan, gates):
    generator = torch.Generator().manual_seed(0)
    # 4 steps of 2 memories of size 3 in 2 environments
    shapes = [(4, 2, 2, gates * 3), (2, gates * 3, 3), (2, gates * 3), (2, 2, 3)]
    if scan == "LSTMScan":  # no bias, and a cell
        shapes[2] = (2, 2, 3)
    leaves = [
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]
    resets = torch.tensor([[0, 1], [0, 0], [1, 0], [0, 0]], dtype=torch.bool)
    assert torch.autograd.gradcheck(getattr(recurrent, scan).apply, (*leaves, resets))


@pytest.mark.parametrize("names", [("gru", "gru"), ("lstm", "lstm"), ("gru", "lstm")])
def test_memories_that_step_together_know_nothing_of_each_other(names):
    """Two with other weights, inputs and states, against each alone: values and gradients."""
    _, x, _, resets = make(names[0])
    memories = [make(name)[0] for name in names]
    torch.manual_seed(4)
    for parameter in memories[1].parameters():
        parameter.data += torch.randn(parameter.shape)
    states = [lived(each) for each in memories]
    inputs = [x, x.flip(0)]
    together = recurrent.sequences(memories, inputs, states, resets)
    for memory, given, state, (outputs, after) in zip(
        memories, inputs, states, together, strict=True
    ):
        alone, final = memory.sequence(given, state, resets)
        torch.testing.assert_close((outputs, after), (alone, final), atol=1e-5, rtol=0)
        found = [
            torch.autograd.grad(weighted(each), list(memory.parameters()), retain_graph=True)
            for each in (outputs, alone)
        ]
        torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@each_setting
def test_a_number_that_is_not_finite_stays_in_its_episode(name, options):
    memory, x, state, _ = make(name, **options)
    resets = torch.zeros(T, N, dtype=torch.bool)
    resets[7] = True
    expected, _ = memory.sequence(x, state, resets)
    x[:7] = torch.nan
    broken = {
        key: each if key == "count" else torch.full_like(each, torch.nan)
        for key, each in state.items()
    }
    outputs, after = memory.sequence(x, broken, resets)
    assert outputs[:7].isnan().all()
    torch.testing.assert_close(outputs[7:], expected[7:], atol=1e-5, rtol=0)
    assert all(each.isfinite().all() for each in after.values())


def random_weights(like):
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(4), dtype=like.dtype)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_a_sequence_has_the_gradients_of_repeated_steps(name):
    memory, x, _, resets = make(name)
    memory, x, found = memory.double(), x.double(), []
    start = {key: each.double() for key, each in lived(make(name)[0]).items()}
    for form in ("sequence", "steps"):
        state = {key: each.clone().requires_grad_() for key, each in start.items()}
        leaves, outputs = [*memory.parameters(), *state.values()], []
        if form == "sequence":
            output, _ = memory.sequence(x, state, resets)
        else:
            for t in range(T):
                state = where_rows(resets[t], memory.initial_state(N), state)
                output, state = memory.step(x[t], state)
                outputs.append(output)
            output = torch.stack(outputs)
        found.append(torch.autograd.grad((output * random_weights(output)).sum(), leaves))
    torch.testing.assert_close(*found, atol=1e-10, rtol=1e-8)


def test_decays_are_added_up_exactly():
    """Whole chunks of strong decay after a weak one: float32 sums would be off by 1e-4."""
    generator = torch.Generator().manual_seed(0)
    steps, size = 128, 8
    log_keep = -torch.rand(steps, N, 2, generator=generator)
    log_keep[:64] *= 400
    u = torch.randn(steps, N, 2, 4, generator=generator) * 10
    write, read = torch.randn(2, steps, N, size, generator=generator)
    since = torch.full((steps, N), steps)
    args = (log_keep, u, write, read, torch.zeros(N, 2, 4, size), since, steps)
    single, _ = ssm.chunked_scan(*args)
    double, _ = ssm.chunked_scan(*(a.double() if torch.is_tensor(a) else a for a in args))
    assert (single - double).abs().max() < 3e-7 * double.abs().max()


def test_step_sizes_begin_in_their_range():
    torch.manual_seed(0)
    for name in ("mamba", "mamba2"):
        memory = make(name, dt_min=0.01, dt_max=0.02, dim=256)[0]
        mixer = memory.layers[0].mixer
        bias = mixer.dt.bias if name == "mamba" else mixer.dt_bias
        size = torch.nn.functional.softplus(bias)
        assert size.min() >= 0.01 - 1e-6 and size.max() <= 0.02 + 1e-6
    mixer = make("mamba", dt_rank=4, dt_init="constant", dt_scale=3.0)[0].layers[0].mixer
    assert mixer.dt.weight.shape == (128, 4) and (mixer.dt.weight == 1.5).all()
    assert torch.allclose(mixer.log_decay.exp(), torch.arange(1.0, 17).repeat(128, 1))
    random = make("mamba", dt_rank=4, dt_scale=3.0)[0].layers[0].mixer.dt.weight
    assert 1.4 < random.abs().max() <= 1.5


def test_impossible_sizes_are_refused():
    for options in ({"heads": 3}, {"chunk": 0}, {"dt_min": 1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ssm.Mamba2Config(**options)
    for options in ({"dim": 30}, {"heads": 0}, {"positional": "waves"}, {"memory_length": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            transformer.TrXLConfig(**options)


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
