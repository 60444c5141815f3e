"""LaProp and adaptive gradient clipping, by hand."""

import math

import pytest
import torch
from torch import nn

from rl_lab.core.errors import NonFiniteError
from rl_lab.core.learner import Learner
from rl_lab.core.optim import OptimizerConfig

INF = torch.tensor(float("inf"))
RATE = torch.tensor(0.1)


class Two(nn.Module):
    """One weight of norm 5, and one that begins as zero."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.tensor([3.0, 4.0]))
        self.zero = nn.Parameter(torch.zeros(2))


def linear_loss(module, large, zero):
    """Its gradient is what it is given."""
    return (module.large * large).sum() + (module.zero * zero).sum(), {}, {}


def make(**options):
    module = Two()
    return module, Learner(module, linear_loss, OptimizerConfig(**options))


def test_laprop_scales_first_and_averages_then():
    """β1 = β2 = 0.5, eps → 0, gradients 2 and then 1, for one weight that begins at 3.

    Step 1: v = 2,    v/(1-.5) = 4,       scaled 1;       m = .5,            step .1 · .5/.5 = .1
    Step 2: v = 1.5,  v/(1-.25) = 2,      scaled 1/√2;    m = .25 + .5/√2,   step .1 · m/.75
    Adam would average 2 and 1 first: .1 · ((1 + .5)/2/.75 …)/√2 = .1 · 1.3333/√2 = .0943.
    """
    module, optimizer = make(name="laprop", beta1=0.5, beta2=0.5, eps=1e-12)
    zero = torch.zeros(2)
    optimizer.step(torch.tensor([2.0, 0.0]), zero, learning_rate=RATE, max_grad_norm=INF)
    assert module.large[0].item() == pytest.approx(2.9)
    assert module.large[1].item() == 4.0
    optimizer.step(torch.tensor([1.0, 0.0]), zero, learning_rate=RATE, max_grad_norm=INF)
    second = 0.1 * (0.25 + 0.5 / math.sqrt(2)) / 0.75
    assert module.large[0].item() == pytest.approx(2.9 - second, rel=1e-6)
    assert second == pytest.approx(0.080474, abs=1e-6)


def test_laprop_first_steps_are_of_the_learning_rate_whatever_the_gradient():
    for size in (1e-3, 1.0, 1e4):
        module, optimizer = make(name="laprop", eps=1e-12)
        optimizer.step(
            torch.full((2,), size), -torch.full((2,), size), learning_rate=RATE, max_grad_norm=INF
        )
        assert module.large.tolist() == pytest.approx([2.9, 3.9])
        assert module.zero.tolist() == pytest.approx([0.1, 0.1], rel=1e-4)


def test_agc_clips_every_tensor_by_its_own_norm():
    """Of 5 the share .3 is 1.5; a weight of zero may have .3 · 0.001. Small gradients stay."""
    _, optimizer = make(name="sgd", beta1=0.0, agc=0.3)
    update = optimizer.step(
        torch.tensor([0.0, 30.0]), torch.tensor([3.0, 4.0]), learning_rate=RATE, max_grad_norm=INF
    )
    clipped = [0.0, 1.5, 0.3e-3 * 0.6, 0.3e-3 * 0.8]
    assert update.gradient.tolist() == pytest.approx(clipped, rel=1e-5)
    small = torch.tensor([0.5, -1.0]), torch.tensor([1e-4, 0.0])
    update = optimizer.step(*small, learning_rate=RATE, max_grad_norm=INF)
    assert update.gradient.tolist() == pytest.approx([0.5, -1.0, 1e-4, 0.0])


def test_without_agc_nothing_is_clipped_by_tensor():
    _, optimizer = make(name="sgd", beta1=0.0)
    rows = torch.tensor([0.0, 30.0]), torch.tensor([3.0, 4.0])
    update = optimizer.step(*rows, learning_rate=RATE, max_grad_norm=INF)
    assert update.gradient.tolist() == [0.0, 30.0, 3.0, 4.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_agc_and_laprop_step_over_bad_numbers(bad):
    module, optimizer = make(name="laprop", agc=0.3)
    before = optimizer.state.flat.clone()
    optimizer.step(torch.tensor([bad, 1.0]), torch.zeros(2), learning_rate=RATE, max_grad_norm=INF)
    assert torch.equal(optimizer.state.flat, before)
    with pytest.raises(NonFiniteError):
        optimizer.check("update")
    assert module.large.tolist() == [3.0, 4.0]


def test_laprop_goes_on_as_saved():
    ours, theirs = make(name="laprop"), make(name="laprop")
    rows = torch.tensor([0.5, -1.0]), torch.tensor([1e-4, 2.0])
    for _ in range(3):
        ours[1].step(*rows, learning_rate=RATE, max_grad_norm=INF)
    theirs[0].load_state_dict(ours[0].state_dict())
    theirs[1].load_state_dict(ours[1].state_dict())
    for _, optimizer in (ours, theirs):
        optimizer.step(rows[1], rows[0], learning_rate=RATE, max_grad_norm=INF)
    assert torch.equal(ours[1].state.flat, theirs[1].state.flat)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agc": -0.1}, "agc must be at least 0, got -0.1"),
        ({"name": "laprop", "eps": 0.0}, "eps must be positive, got 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**options)
