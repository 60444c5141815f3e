"""Policies over features: what they draw, how likely it is, and where gradients go."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.algorithms.dreamer.actor import LatentActor
from rl_lab.algorithms.dreamer.world_config import WorldModelConfig
from rl_lab.core.spec import Box, Discrete, MultiDiscrete
from rl_lab.networks.mlp import as_vector

FEATURES = 4
BOUND = np.ones((2,), np.float32)
SPACES = {
    "index": Discrete(3),
    "indices": MultiDiscrete((2, 3)),
    "box": Box((2,), np.dtype(np.float32), -BOUND, BOUND),
    "matrix": Box((1, 2), np.dtype(np.float32), -BOUND[None], BOUND[None]),
}
CASES = [(name, False) for name in SPACES] + [("box", True), ("matrix", True)]
everything = pytest.mark.parametrize(("space", "squashed"), CASES)


def make(space: str, *, squashed: bool = False, unimix: float = 0.0) -> LatentActor:
    torch.manual_seed(0)
    config = WorldModelConfig(units=8, layers=1)
    return LatentActor(FEATURES, SPACES[space], config, unimix=unimix, squashed=squashed)


def says(actor: LatentActor, *raw: float) -> LatentActor:
    """An actor whose raw output is the same for all features."""
    nn.init.zeros_(actor.output.weight)
    actor.output.bias.data = torch.tensor(raw)
    return actor


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def nothing(*lead: int) -> torch.Tensor:
    return torch.zeros(*lead, FEATURES)


@everything
def test_actions_are_of_the_space_and_come_back_as_the_same_vector(space, squashed):
    actor = make(space, squashed=squashed)
    features = torch.randn(5, 3, FEATURES, generator=stream())
    vector = actor.draw(features, actor.noise((5, 3), stream(1)))
    action = actor.to_action(vector)
    assert action.shape == (5, 3, *SPACES[space].shape)
    assert torch.equal(as_vector(SPACES[space], action), vector.detach())
    best = actor.to_action(actor.mode(features))
    assert best.shape == action.shape
    if squashed:
        assert vector.abs().max() <= 1.0


@everything
def test_gradients_reach_the_features_through_what_was_drawn(space, squashed):
    actor = make(space, squashed=squashed)
    features = torch.randn(5, FEATURES, generator=stream()).requires_grad_()
    vector = actor.draw(features, actor.noise((5,), stream(1)))
    weights = torch.randn(vector.shape, generator=stream(2))
    for each in torch.autograd.grad((vector * weights).sum(), (features, actor.output.weight)):
        assert each.abs().max() > 0


def test_indices_are_exactly_one_hot_and_their_gradient_is_that_of_the_chances():
    actor = make("indices")
    features = torch.randn(50, FEATURES, generator=stream())
    vector = actor.draw(features, actor.noise((50,), stream(1)))
    assert set(vector.unique().tolist()) == {0.0, 1.0}
    assert bool((vector[:, :2].sum(-1) == 1).all() and (vector[:, 2:].sum(-1) == 1).all())
    weights = torch.randn(50, 5, generator=stream(2))
    found = torch.autograd.grad((vector * weights).sum(), actor.output.bias)[0]
    raw = actor(features)
    probabilities = torch.cat([part.softmax(-1) for part in raw.split((2, 3), -1)], -1)
    expected = torch.autograd.grad((probabilities * weights).sum(), actor.output.bias)[0]
    torch.testing.assert_close(found, expected)


def test_indices_come_as_often_as_they_should():
    """Chances (.1, .6, .3); of 20 000 draws, five deviations are 0.0174 at most."""
    actor = says(make("index"), math.log(1), math.log(6), math.log(3))
    drawn = actor.draw(nothing(20_000), actor.noise((20_000,), stream())).mean(0)
    assert drawn.tolist() == pytest.approx([0.1, 0.6, 0.3], abs=0.0174)
    assert actor.to_action(actor.mode(nothing(1))).tolist() == [1]


def test_log_probabilities_and_entropies_of_indices_add_up():
    """(¾, ¼) and (½, ¼, ¼): the actions 1 and 0 are ¼ · ½; entropies .5623 + 1.0397."""
    actor = says(make("indices"), math.log(3), 0.0, math.log(2), 0.0, 0.0)
    action = as_vector(SPACES["indices"], torch.tensor([[1, 0]]))
    log_prob, entropy = actor.evaluate_actions(nothing(1), action)
    assert log_prob.tolist() == pytest.approx([math.log(1 / 8)], rel=1e-5)
    first = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    second = 0.5 * math.log(2) + 0.5 * math.log(4)
    assert entropy.tolist() == pytest.approx([first + second], rel=1e-5)


def test_a_share_of_the_uniform_distribution_is_in_every_policy_of_indices():
    """K = 3, 3 %: what has no chance by itself has 1 %, when it is drawn and when it is judged."""
    actor = says(make("index", unimix=0.03), 90.0, 0.0, 0.0)
    log_prob, _ = actor.evaluate_actions(nothing(1), torch.tensor([[0.0, 0.0, 1.0]]))
    assert log_prob.exp().item() == pytest.approx(0.01, rel=1e-5)
    drawn = actor.draw(nothing(20_000), actor.noise((20_000,), stream())).mean(0)
    assert drawn.tolist() == pytest.approx([0.98, 0.01, 0.01], abs=0.005)


def test_what_a_mask_forbids_is_never_chosen():
    actor = says(make("indices", unimix=0.1), 9.0, 0.0, 0.0, 9.0, 1.0)
    mask = torch.tensor([0, 1, 1, 0, 1], dtype=torch.int8).expand(500, 5)
    noise = actor.noise((500,), stream())
    drawn = actor.to_action(actor.draw(nothing(500), noise, mask))
    assert drawn[:, 0].unique().tolist() == [1]
    assert drawn[:, 1].unique().tolist() == [0, 2]
    assert actor.to_action(actor.mode(nothing(500), mask))[0].tolist() == [1, 2]
    free = actor.to_action(actor.draw(nothing(500), noise))
    assert free[:, 0].unique().tolist() == [0, 1]


def test_a_bounded_normal_by_hand():
    """Mean tanh(.5); deviation .9 σ(0 + 2) + .1 = .892718. Actions are not clipped."""
    actor = says(make("box"), 0.5, -9.0, 0.0, 0.0)
    std = 0.9 / (1 + math.exp(-2)) + 0.1
    assert std == pytest.approx(0.892718, abs=1e-6)
    drawn = actor.draw(nothing(1), torch.tensor([[1.0, -2.0]]))
    means = [math.tanh(0.5), math.tanh(-9.0)]
    assert drawn.tolist()[0] == pytest.approx([means[0] + std, means[1] - 2 * std], rel=1e-5)
    assert actor.mode(nothing(1)).tolist()[0] == pytest.approx(means, rel=1e-5)
    log_prob, entropy = actor.evaluate_actions(nothing(1), drawn.detach())
    constant = math.log(std) + 0.5 * math.log(2 * math.pi)
    assert log_prob.item() == pytest.approx(-0.5 - 2.0 - 2 * constant, rel=1e-5)
    assert entropy.item() == pytest.approx(2 * (constant + 0.5), rel=1e-5)


def test_deviations_stay_between_their_bounds():
    low, high = (says(make("box"), 0.0, 0.0, raw, raw) for raw in (-60.0, 60.0))
    ones = torch.ones(1, 2)
    assert low.draw(nothing(1), ones).tolist()[0] == pytest.approx([0.1, 0.1], rel=1e-4)
    assert high.draw(nothing(1), ones).tolist()[0] == pytest.approx([1.0, 1.0], rel=1e-4)


def test_a_squashed_policy_begins_wide_and_its_mean_is_bounded():
    """tanh(5 tanh(m/5) + 5 ε): deviation softplus(0 + softplus⁻¹(5)) = 5."""
    actor = says(make("box", squashed=True), 0.0, 1e3, 0.0, 0.0)
    drawn = actor.draw(nothing(1), torch.tensor([[0.1, 0.0]]))
    assert drawn[0, 0].item() == pytest.approx(math.tanh(0.5), rel=1e-3)
    assert drawn[0, 1].item() == pytest.approx(math.tanh(5.0), rel=1e-5)
    assert actor.mode(nothing(1))[0].tolist() == pytest.approx([0.0, math.tanh(5.0)])


def test_a_fresh_policy_prefers_nothing():
    features = 3 * torch.randn(64, FEATURES, generator=stream())
    log_prob, entropy = make("index").evaluate_actions(features, torch.eye(3)[torch.arange(64) % 3])
    assert log_prob.exp().sub(1 / 3).abs().max() < 0.02
    assert entropy.min().item() == pytest.approx(math.log(3), abs=1e-3)
    assert make("box").mode(features).abs().max() < 0.1
