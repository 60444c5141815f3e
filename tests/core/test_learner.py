import pytest
import torch
from torch import nn

from rl_lab.core.errors import NonFiniteError
from rl_lab.core.learner import Learner
from rl_lab.core.optim import OptimizerConfig

INF = torch.tensor(float("inf"))


def regression(module, rows, target):
    error = (module(rows) - target).square().mean()
    return error, {"error": error}, {}


def make(config=None, **options):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return module, Learner(module, regression, config or OptimizerConfig(), **options)


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, generator=generator), torch.randn(16, 1, generator=generator)


@pytest.mark.parametrize(
    ("name", "theirs"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_equals_torch(name, theirs):
    settings = OptimizerConfig(name=name, weight_decay=0.01, eps=1e-8)
    module, learner = make(settings)
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    reference = theirs(twin.parameters(), lr=1e-2, eps=1e-8, weight_decay=0.01)
    rows, target = data()
    for _ in range(20):
        learner.step(rows, target, learning_rate=torch.tensor(1e-2), max_grad_norm=INF)
        reference.zero_grad()
        regression(twin, rows, target)[0].backward()
        reference.step()
    for ours, their in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, their, atol=1e-5, rtol=1e-4)


# adam is a step in place by torch's kernel, sgd the pure one that is compiled
@pytest.mark.parametrize(("name", "share"), [("adam", 0.1), ("sgd", 1.0)])
def test_the_gradient_is_clipped_to_its_norm_and_reported_before_that(name, share):
    rows, target = data()
    _, free = make(OptimizerConfig(name=name))
    _, tight = make(OptimizerConfig(name=name))
    rate = torch.tensor(1e-2)
    norm = free.step(rows, 100 * target, learning_rate=rate, max_grad_norm=INF).grad_norm
    update = tight.step(rows, 100 * target, learning_rate=rate, max_grad_norm=torch.tensor(0.5))
    assert update.grad_norm == norm > 0.5
    # the first moment is (1 - beta1) * clipped gradient, that of sgd the clipped gradient
    assert tight.state.first.norm().item() == pytest.approx(share * 0.5, rel=1e-4)


def test_the_module_reads_the_flat_vector():
    module, learner = make()
    learner.state.flat.zero_()
    assert all((parameter == 0).all() for parameter in module.parameters())
    rows, target = data()
    learner.step(rows, target, learning_rate=torch.tensor(1e-2), max_grad_norm=INF)
    moved = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert torch.equal(moved, learner.state.flat)
    assert moved.abs().sum() > 0


@pytest.mark.parametrize("name", ["adam", "sgd", "laprop"])
def test_a_bad_number_changes_nothing_and_is_remembered(name):
    _, learner = make(OptimizerConfig(name=name))
    rows, target = data()
    step = {"learning_rate": torch.tensor(1e-2), "max_grad_norm": INF}
    learner.step(rows, target, **step)
    before = learner.snapshot()[0]
    learner.step(rows, target * float("nan"), **step)
    learner.step(rows, target, **step)  # good again, but the run must stop where it broke
    for ours, saved in zip(learner.state[:4], before[:4], strict=True):
        assert torch.equal(ours, saved)
    with pytest.raises(NonFiniteError, match="no weight changed"):
        learner.check("test")


def test_a_bad_gradient_of_a_good_loss_is_found():
    def root(module, rows):
        loss = (0.0 * module(rows)).abs().sqrt().sum()  # 0 with a slope that is not a number
        return loss, {}, {}

    module = nn.Linear(3, 1)
    learner = Learner(module, root, OptimizerConfig())
    before = learner.snapshot()[0]
    rate = torch.tensor(1e-2)
    update = learner.step(data()[0], learning_rate=rate, max_grad_norm=INF)
    assert update.loss == 0.0
    assert torch.equal(learner.state.flat, before.flat)
    with pytest.raises(NonFiniteError):
        learner.check("test")


def test_learning_rates_by_pattern():
    module, learner = make(rate_patterns={"2.*": 0.0})
    rows, target = data()
    before = [parameter.clone() for parameter in module.parameters()]
    rates = learner.rates(1e-2, {"2.*": 0.0})
    learner.step(rows, target, learning_rate=rates, max_grad_norm=INF)
    moved = [not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)]
    assert moved == [True, True, False, False]


def test_state_goes_by_parameter_name():
    _, learner = make()
    rows, target = data()
    for _ in range(3):
        learner.step(rows, target, learning_rate=torch.tensor(1e-2), max_grad_norm=INF)
    _, other = make()
    other.load_state_dict(learner.state_dict())
    assert torch.equal(other.state.second, learner.state.second)
    assert other.state.updates == 3
    state = learner.state_dict()
    moments = state["optimizer"]
    moments["first"] = {f"x.{name}": value for name, value in moments["first"].items()}
    with pytest.raises(AssertionError, match="another network"):
        other.load_state_dict(state)


def test_gradient_norms_per_part():
    _, learner = make()
    rows, target = data()
    rate = torch.tensor(1e-2)
    update = learner.step(rows, target, learning_rate=rate, max_grad_norm=INF)
    norms = learner.gradient_norms(update.gradient)
    assert set(norms) == {"grad_norm/0", "grad_norm/2"}
    total = sum(norm.square() for norm in norms.values()).sqrt()
    torch.testing.assert_close(total, update.grad_norm)


@pytest.mark.parametrize("settings", [{"beta1": 1.0}, {"beta2": -0.1}, {"eps": 0.0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match="must be"):
        OptimizerConfig(**settings)


def test_a_good_state_that_is_loaded_learns_again():
    _, learner = make()
    rows, target = data()
    step = {"learning_rate": torch.tensor(1e-2), "max_grad_norm": INF}
    good = learner.state_dict()
    learner.step(rows, target * float("nan"), **step)
    learner.load_state_dict(good)
    before = learner.state.flat.clone()
    learner.step(rows, target, **step)
    assert not torch.equal(learner.state.flat, before)


@pytest.mark.parametrize(
    ("name", "theirs", "options"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
        ("rmsprop", torch.optim.RMSprop, {"alpha": 0.99, "eps": 1e-5}),
    ],
)
def test_the_others_equal_torch_too(name, theirs, options):
    module, learner = make(OptimizerConfig(name=name, weight_decay=0.01, beta2=0.99))
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    reference = theirs(twin.parameters(), lr=1e-2, weight_decay=0.01, **options)
    rows, target = data()
    for _ in range(20):
        learner.step(rows, target, learning_rate=torch.tensor(1e-2), max_grad_norm=INF)
        reference.zero_grad()
        regression(twin, rows, target)[0].backward()
        reference.step()
    for ours, their in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, their, atol=1e-6, rtol=0)


# 16 rows: two equal pieces, and 3 of 6, 6 and 4
@pytest.mark.parametrize("count", [2, 3, 16, 40])
@pytest.mark.parametrize("functional", [False, True])
def test_pieces_of_a_batch_make_the_same_step(count, functional):
    rows, target = data()
    step = {"learning_rate": torch.tensor(1e-2), "max_grad_norm": torch.tensor(0.5)}
    whole, split = make()[1], make(OptimizerConfig(accumulate=count))[1]
    if functional:  # what a compiler is given, run as it is
        rest = (step["learning_rate"], step["max_grad_norm"], (), {})
        new, found = split._pure_step(*split._moving((rows, target)), *rest)
    else:
        found = split.step(rows, target, **step)
        new = split.state
    expected = whole.step(rows, target, **step)
    torch.testing.assert_close(new.flat, whole.state.flat, atol=1e-6, rtol=0)
    torch.testing.assert_close(new.first, whole.state.first, atol=1e-6, rtol=0)
    for ours, theirs in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_only_what_has_the_rows_of_the_first_argument_is_cut():
    seen = []

    def loss(module, batch, weights, factor, last):
        seen.append((batch["x"].shape[0], weights.shape[0], factor.dim(), last.shape[0]))
        return (module(batch["x"]).squeeze(-1) * weights).mean() * factor, {}, {}

    module = nn.Linear(3, 1)
    learner = Learner(module, loss, OptimizerConfig(accumulate=4))
    step = {"learning_rate": torch.tensor(1e-2), "max_grad_norm": INF}
    learn = learner.steps(torch.ones(16), **step)  # what all minibatches share is not cut
    learn({"x": data()[0]}, torch.ones(16), torch.tensor(2.0))
    assert seen == [(4, 4, 0, 16)] * 4


def test_a_bad_piece_is_a_bad_batch():
    learner = make(OptimizerConfig(accumulate=4))[1]
    rows, target = data()
    target[5] = float("nan")
    before = learner.snapshot()[0]
    learner.step(rows, target, learning_rate=torch.tensor(1e-2), max_grad_norm=INF)
    assert torch.equal(learner.state.flat, before.flat)
    with pytest.raises(NonFiniteError):
        learner.check("test")


def test_two_learners_may_share_a_module():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    first, last = (
        Learner(module, regression, OptimizerConfig(), only=[pattern]) for pattern in ("0.*", "2.*")
    )
    assert (first.names, last.names) == (["0.weight", "0.bias"], ["2.weight", "2.bias"])
    rows, target = data()
    before = [parameter.clone() for parameter in module.parameters()]
    first.step(rows, target, learning_rate=torch.tensor(1e-2), max_grad_norm=INF)
    moved = [not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)]
    assert moved == [True, True, False, False]


def test_numbers_of_rows_are_put_together_again():
    model = nn.Linear(1, 1)

    def loss(module, rows):
        error = module(rows).squeeze(-1)
        return error.square().mean(), {"mean": error.mean()}, {"error": error}

    config = OptimizerConfig(accumulate=3)
    limits = {"learning_rate": torch.tensor(0.0), "max_grad_norm": torch.tensor(1e9)}
    rows = torch.arange(20.0).unsqueeze(1)
    found = Learner(model, loss, config).step(rows, **limits)
    expected = model(rows).squeeze(-1).detach()
    assert torch.allclose(found.aux["error"], expected)
    assert torch.allclose(found.metrics["mean"], expected.mean())
