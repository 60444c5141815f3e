"""Distributions of returns: projections and losses, by hand."""

import pytest
import torch

from rl_lab.core.value_distributions import (
    categorical_loss,
    of_action,
    project,
    quantile_huber,
    support,
)

ATOMS = support([-2, 2], 5)  # -2, -1, 0, 1, 2


def test_the_support_reaches_from_end_to_end():
    assert ATOMS.tolist() == [-2, -1, 0, 1, 2]
    assert support((-10.0, 10.0), 51)[[0, 25, 50]].tolist() == pytest.approx([-10, 0, 10], abs=1e-6)


def test_places_that_are_atoms_stay_whole():
    probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.2, 0.2]])
    assert torch.equal(project(probabilities, ATOMS.expand(1, 5), ATOMS), probabilities)
    # one to the right: what was at 2 would be at 3, and stays at the end
    shifted = project(probabilities, ATOMS.expand(1, 5) + 1, ATOMS)
    torch.testing.assert_close(shifted, torch.tensor([[0.0, 0.1, 0.2, 0.3, 0.4]]))


def test_a_place_between_two_atoms_is_shared_by_how_near_they_are():
    probabilities = torch.tensor([0.5, 0.5])
    found = project(probabilities, torch.tensor([0.25, -1.5]), ATOMS)
    # 0.25: three quarters to 0, one to 1; -1.5: half to -2, half to -1
    torch.testing.assert_close(found, torch.tensor([0.25, 0.25, 0.375, 0.125, 0.0]))


def test_what_lies_beyond_the_range_goes_to_its_end():
    found = project(torch.tensor([0.4, 0.6]), torch.tensor([-9.0, 7.0]), ATOMS)
    torch.testing.assert_close(found, torch.tensor([0.4, 0.0, 0.0, 0.0, 0.6]))


def test_all_mass_at_one_place_is_one_return():
    """As after a termination: every atom lands on the reward."""
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2])
    found = project(probabilities, torch.full((5,), 1.5), ATOMS)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 0.0, 0.5, 0.5]))


def test_no_mass_is_lost_and_the_mean_stays_inside_the_range():
    generator = torch.Generator().manual_seed(0)
    atoms = support((-10, 10), 51)
    probabilities = torch.randn(64, 51, generator=generator).softmax(-1)
    places = 0.9 * atoms + 2 * torch.rand(64, 1, generator=generator) - 1  # in [-10, 10]
    found = project(probabilities, places, atoms)
    torch.testing.assert_close(found.sum(-1), torch.ones(64))
    torch.testing.assert_close(found @ atoms, (probabilities * places).sum(-1), atol=1e-4, rtol=0)
    beyond = project(probabilities, places * 3, atoms)
    torch.testing.assert_close(beyond.sum(-1), torch.ones(64))


def test_cross_entropy_and_divergence_by_hand():
    logits = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]]).log()
    goal = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]])
    loss, divergence = categorical_loss(logits, goal)
    # -(log 1/4 + log 3/4) / 2 = log 4 - log 3 / 2; the goal's own entropy is log 2, or nothing
    four, three, two = torch.tensor([4.0, 3.0, 2.0]).log()
    torch.testing.assert_close(loss, torch.stack([four - three / 2, two, two]))
    expected = torch.stack([four - three / 2 - two, torch.tensor(0.0), two])
    torch.testing.assert_close(divergence, expected)
    assert (divergence >= 0).all()


def test_the_quantile_huber_loss_by_hand():
    # levels 1/4 and 3/4; errors of quantile 0: 1 and 5, so .25 * .5 and .25 * 4.5, mean .625;
    # of quantile 2: -1 and 3, so |.75 - 1| * .5 = .125 and .75 * 2.5 = 1.875, mean 1
    quantiles, goal = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 5.0]])
    assert quantile_huber(quantiles, goal).tolist() == [1.625]


def test_quantiles_settle_where_their_share_of_the_samples_lies():
    """One of two quantiles is pulled up by a quarter of the force, the other by three quarters."""
    quantiles = torch.tensor([[50.0, 50.0]], requires_grad=True)
    samples = torch.arange(100.0).unsqueeze(0)
    for _ in range(400):
        (gradient,) = torch.autograd.grad(quantile_huber(quantiles, samples).sum(), quantiles)
        quantiles = (quantiles - 2 * gradient).detach().requires_grad_()
    assert quantiles.tolist() == [[pytest.approx(25, abs=1), pytest.approx(75, abs=1)]]


def test_one_action_of_each_row():
    outputs = torch.arange(12.0).view(2, 3, 2)  # [B, A, K]
    action = torch.tensor([2, 0])
    assert of_action(outputs, action).tolist() == [[4, 5], [6, 7]]
    assert of_action(outputs[..., 0], action).tolist() == [4, 6]
