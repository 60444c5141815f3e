"""Imagination: aligned with what actions cause, exact where model and values are, by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rl_lab.algorithms.dreamer.actor import LatentActor
from rl_lab.algorithms.dreamer.imagination import (
    CriticTargets,
    ImaginedRollout,
    discount_weights,
    imagined_rollout,
    imagined_targets,
    replayed_targets,
    updated_percentiles,
)
from rl_lab.algorithms.dreamer.world_config import WorldModelConfig
from rl_lab.core.batch import RESET, REWARD, TERMINATED, TRUNCATED
from rl_lab.core.returns import lambda_return
from rl_lab.core.spec import Discrete

GAMMA, LAST = 0.9, 7


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Corridor:
    """An exact model: the state is a place x, action k leads to x + 1 + k and pays its square.

    The place 7, and what lies behind it, is the end. Stands in for a world model that has learned
    all there is to learn.
    """

    def __init__(self) -> None:
        self.rssm = self
        self.reward = SimpleNamespace(mean=lambda features: features[..., 0].square())

    def features(self, state):
        return state["stoch"]

    def imagine_step(self, state, action, noise):
        return {"stoch": state["stoch"] + 1 + action[..., 1:]}

    def continue_probability(self, features):
        return (features[..., 0] < LAST).float()

    @staticmethod
    def value(x: float) -> float:
        """Of a policy that always takes action 1: two places at a time."""
        if x >= LAST:
            return 0.0
        return (x + 2) ** 2 + GAMMA * Corridor.value(x + 2)


def corridor_actor(preferred: int) -> LatentActor:
    torch.manual_seed(0)
    config = WorldModelConfig(units=4, layers=1)
    actor = LatentActor(1, Discrete(2), config, unimix=0.0, squashed=False)
    nn.init.zeros_(actor.output.weight)
    actor.output.bias.data = torch.tensor([0.0, 0.0]).index_fill(0, torch.tensor(preferred), 60.0)
    return actor


def corridor_rollout(horizon: int, places: list[float], preferred: int = 1):
    actor, start = corridor_actor(preferred), {"stoch": torch.tensor(places).unsqueeze(-1)}
    lead = (horizon, len(places))
    noises = torch.zeros(*lead, 1), actor.noise(lead, stream())
    return imagined_rollout(Corridor(), actor, start, *noises)


def test_a_reward_belongs_to_the_state_that_the_action_led_to():
    found = corridor_rollout(3, [0.0])
    assert found.features.flatten().tolist() == [0.0, 2.0, 4.0, 6.0]
    assert found.action.shape == (3, 1, 2)
    assert found.reward.flatten().tolist() == [4.0, 16.0, 36.0]
    assert found.continues.flatten().tolist() == [1.0, 1.0, 1.0]
    slower = corridor_rollout(3, [5.0], preferred=0)
    assert slower.reward.flatten().tolist() == [36.0, 49.0, 64.0]
    assert slower.continues.flatten().tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("horizon", [1, 4, 9])
def test_an_exact_model_and_exact_values_give_the_exact_return(lambda_, horizon):
    """Whatever λ and however short the rollout: V(0) = 4 + .9 (16 + .9 (36 + .9 · 64)) = 94.216."""
    places = [0.0, 1.0, 3.0, 6.0]
    found = corridor_rollout(horizon, places)
    values = found.features[..., 0].detach().clone().apply_(Corridor.value)
    returns = lambda_return(found.reward, values[1:], found.continues, gamma=GAMMA, lambda_=lambda_)
    assert returns[0].tolist() == pytest.approx([Corridor.value(x) for x in places], rel=1e-5)
    assert Corridor.value(0.0) == pytest.approx(94.216)
    weight = discount_weights(torch.ones(4), found.continues, GAMMA)
    alive = weight > 0
    assert torch.allclose(returns[alive], values[:-1][alive])  # later decisions, too


def test_weights_are_the_discounted_probabilities_to_get_there():
    """γ = .5, c = (1, .5, 0): 1, .5 · 1, .25 · .5, and nothing behind the end."""
    continues = torch.tensor([[1.0], [0.5], [0.0], [1.0]])
    assert discount_weights(torch.ones(1), continues, 0.5).flatten().tolist() == [1, 0.5, 0.125, 0]


def test_a_rollout_that_begins_after_an_end_does_not_count():
    continues = torch.ones(3, 2)
    weights = discount_weights(torch.tensor([1.0, 0.0]), continues, 0.5)
    assert weights.T.tolist() == [[1.0, 0.5, 0.25], [0.0, 0.0, 0.0]]


def test_no_gradient_goes_through_weights():
    continues = torch.tensor([[0.5], [0.5]], requires_grad=True)
    assert not discount_weights(torch.ones(1), continues, 0.9).requires_grad


# -- what was really played ------------------------------------------------------------------------


def played(reset, terminated, truncated, reward):
    column = [torch.tensor(each).unsqueeze(-1) for each in (reset, terminated, truncated, reward)]
    return dict(zip((RESET, TERMINATED, TRUNCATED, REWARD), column, strict=True))


def replayed(rows, returns):
    values = torch.tensor(returns).unsqueeze(-1)
    features = torch.arange(len(values)).float().reshape(-1, 1, 1)
    rollout = CriticTargets(features.reshape(1, -1, 1), values.reshape(1, -1), torch.ones(1), None)
    return replayed_targets(rows, rollout, gamma=0.5, lambda_=0.5)


def test_replayed_targets_by_hand():
    """Rewards are those of the row that a step led to; γ = λ = ½.

    Step 2→3: 4 + ½ · 40 = 24.  1→2: 3 + ½ (½ · 30 + ½ · 24) = 16.5.
    0→1: 2 + ½ (½ · 20 + ½ · 16.5) = 11.125. The first row's own reward and value are not used.
    """
    no = [False] * 4
    found = replayed(played(no, no, no, [1.0, 2.0, 3.0, 4.0]), [10.0, 20.0, 30.0, 40.0])
    assert found.returns.flatten().tolist() == [11.125, 16.5, 24.0]
    assert found.weight.flatten().tolist() == [1.0, 1.0, 1.0]
    assert found.features.flatten().tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("how", "expected"), [("terminated", 3.0), ("truncated", 18.0)])
def test_replayed_targets_stop_at_the_end_of_an_episode(how, expected):
    """Row 2 is the last of its episode: 1→2 is worth 3, and 3 + ½ · 30 if it was only cut off.

    2→3 is no step and counts nothing; what happens behind it reaches nothing before it.
    """
    reset, ends = [False, False, False, True, False], [False, False, True, False, False]
    over = (ends, [False] * 5) if how == "terminated" else ([False] * 5, ends)
    first = replayed(
        played(reset, *over, [1.0, 2.0, 3.0, 0.0, 5.0]), [10.0, 20.0, 30.0, 40.0, 50.0]
    )
    assert first.weight.flatten().tolist() == [1.0, 1.0, 0.0, 1.0]
    returns = first.returns.flatten().tolist()
    assert returns[1] == expected
    assert returns[0] == 2 + 0.5 * (0.5 * 20 + 0.5 * expected)
    assert returns[3] == 5 + 0.5 * 50
    other = replayed(
        played(reset, *over, [1.0, 2.0, 3.0, 0.0, -99.0]), [10.0, 20.0, 30.0, -88.0, 77.0]
    )
    assert other.returns.flatten().tolist()[:2] == returns[:2]


def test_imagined_targets_by_hand():
    """V = (9, 4, 5, 6), r = (1, 2, 3), c = (1, 1, 0), γ = λ = ½: returns 3, 4, 3."""
    features = torch.tensor([9.0, 4.0, 5.0, 6.0]).reshape(4, 1, 1)
    reward, continues = (torch.tensor(each).unsqueeze(-1) for each in ([1.0, 2, 3], [1.0, 1, 0]))
    rollout = ImaginedRollout(features, torch.zeros(3, 1, 2), reward, continues)
    values = features[..., 0]
    targets = imagined_targets(rollout, torch.ones(1), values, values + 1, gamma=0.5, lambda_=0.5)
    assert targets.returns.flatten().tolist() == [3.0, 4.0, 3.0]
    assert targets.features.flatten().tolist() == [9.0, 4.0, 5.0]  # before each decision
    assert targets.weight.flatten().tolist() == [1.0, 0.5, 0.25]
    assert targets.target_values.flatten().tolist() == [10.0, 5.0, 6.0]


def test_percentiles_of_returns_are_an_ema():
    """0 … 100: percentiles 5 and 95; at rate .01 a hundredth of the way."""
    returns = torch.arange(101.0).reshape(1, 101).requires_grad_()
    first = updated_percentiles(torch.zeros(2), returns, torch.tensor(0.01))
    assert first.tolist() == pytest.approx([0.05, 0.95], rel=1e-4)
    again = updated_percentiles(first, returns, torch.tensor(0.01))
    assert again.tolist() == pytest.approx([5 * (1 - 0.99**2), 95 * (1 - 0.99**2)], rel=1e-4)
    assert not again.requires_grad
