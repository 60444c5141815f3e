"""symlog, its inverse, and two-hot scalars: numbers that were computed by hand."""

import math

import pytest
import torch

from rl_lab.core.symlog import symexp, symexp_bins, symlog, two_hot, two_hot_loss, two_hot_mean

SMALL = torch.tensor([-4.0, -1.0, 0.0, 1.0, 4.0])


def test_symlog_by_hand_and_back():
    x = torch.tensor([-math.e + 1, -1.0, 0.0, 1.0, math.e**2 - 1])
    found = symlog(x)
    expected = torch.tensor([-1.0, -math.log(2), 0.0, math.log(2), 2.0])
    torch.testing.assert_close(found, expected)
    wide = torch.tensor([-1e6, -3.0, -1e-6, 0.0, 1e-6, 0.5, 1e6])
    torch.testing.assert_close(symexp(symlog(wide)), wide, rtol=1e-5, atol=0.0)


def test_symlog_is_the_identity_with_slope_one_at_zero():
    x = torch.zeros(1, requires_grad=True)
    assert torch.autograd.grad(symlog(x + 1e-4).sum(), x)[0].item() == pytest.approx(1.0, abs=1e-3)


def test_bins_are_symmetric_to_the_last_bit():
    bins = symexp_bins()
    assert len(bins) == 255
    assert bins[127] == 0.0
    assert torch.equal(bins, -bins.flip(0))
    assert bool((bins.diff() > 0).all())
    assert bins[-1].item() == pytest.approx(math.expm1(20), rel=1e-5)
    assert bins[128].item() == pytest.approx(math.expm1(20 / 127), rel=1e-5)


def test_a_hundred_lies_between_its_two_bins_in_raw_units():
    """Bin 156 is expm1(29 · 20/127) = 95.25; weighing in symlog units would give 0.306015."""
    bins = symexp_bins()
    lower, share = two_hot(torch.tensor(100.0), bins)
    assert lower == 156
    assert share.item() == pytest.approx(0.289471, abs=2e-5)
    assert torch.lerp(bins[lower], bins[lower + 1], share).item() == pytest.approx(100.0, rel=1e-6)


def test_what_lies_on_a_bin_or_beyond_the_last_one():
    x = torch.tensor([-9.0, -4.0, 0.0, 1.0, 2.5, 4.0, 9.0])
    lower, share = two_hot(x, SMALL)
    assert lower.tolist() == [0, 0, 2, 3, 3, 3, 3]
    assert share.tolist() == [0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.0]


def test_the_loss_is_the_cross_entropy_of_the_two_weights():
    """2.5 is half of bin 3 and half of bin 4; -0.25 is a quarter of bin 1, the rest of bin 2."""
    log_probs = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]).log().expand(2, 5)
    found = two_hot_loss(log_probs, torch.tensor([2.5, -0.25]), SMALL)
    expected = [
        -0.5 * math.log(0.15) - 0.5 * math.log(0.25),
        -0.25 * math.log(0.2) - 0.75 * math.log(0.3),
    ]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("shift", [0.0, 3.0, -17.5])
def test_equal_logits_say_exactly_nothing(shift):
    bins = symexp_bins()
    assert two_hot_mean(torch.full((2, 255), shift), bins).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("x", [-1e7, -321.5, -0.01, 0.0, 0.3, 17.0, 123456.0])
def test_two_weights_decode_to_the_number(x):
    bins = symexp_bins()
    lower, share = two_hot(torch.tensor(x), bins)
    weights = torch.zeros(255)
    weights[lower], weights[lower + 1] = 1 - share, share
    assert two_hot_mean(weights.log(), bins).item() == pytest.approx(x, rel=1e-4, abs=1e-6)


def test_the_loss_is_least_where_the_weights_are_right():
    """Its gradient in the logits is softmax − two-hot: zero only there."""
    bins, x = symexp_bins(5), torch.tensor(0.7)
    lower, share = two_hot(x, bins)
    target = torch.full((5,), 1e-12)
    target[lower], target[lower + 1] = 1 - share, share
    logits = target.log().requires_grad_()
    right = torch.autograd.grad(two_hot_loss(logits.log_softmax(-1), x, bins), logits)[0]
    torch.testing.assert_close(right, torch.zeros(5), atol=1e-6, rtol=0.0)
    flat = torch.zeros(5, requires_grad=True)
    wrong = torch.autograd.grad(two_hot_loss(flat.log_softmax(-1), x, bins), flat)[0]
    torch.testing.assert_close(wrong, 0.2 - target, atol=1e-6, rtol=0.0)
