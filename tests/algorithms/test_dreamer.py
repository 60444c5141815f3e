"""Dreamer's losses by hand, and the settings of its versions."""

import math
from copy import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.algorithms.base import Algorithm
from rl_lab.algorithms.dreamer.actor import LatentActor
from rl_lab.algorithms.dreamer.dreamer import (
    Dreamer,
    DreamerV1,
    DreamerV1Config,
    DreamerV2,
    DreamerV2Config,
    DreamerV3Config,
    balanced_kl,
    critic_loss,
    normalized,
    reinforce_loss,
    world_model_loss,
)
from rl_lab.algorithms.dreamer.imagination import CriticTargets
from rl_lab.algorithms.dreamer.rssm import RSSM, RSSMShape
from rl_lab.algorithms.dreamer.world_config import WorldModelConfig
from rl_lab.algorithms.dreamer.world_model import Scalar, WorldModel
from rl_lab.core.batch import OBS, PREVIOUS_ACTION, RESET, REWARD, TERMINATED, TRUNCATED
from rl_lab.core.errors import ConfigError
from rl_lab.core.optim import LaPropConfig, OptimizerConfig
from rl_lab.core.schedule import Schedule
from rl_lab.core.spec import Box, Discrete, EnvSpec
from tiny_runs import tiny_config

SIZES = {"deter": 8, "hidden": 8, "stoch": 3, "units": 8, "layers": 1}


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def number(value: float) -> torch.Tensor:
    return torch.tensor(float(value))


# -- the divergence --------------------------------------------------------------------------------


def gaussian_world():
    """One latent N(m, 1): KL to N(0, 1) is m²/2."""
    shape = RSSMShape(
        deter=4,
        hidden=4,
        stoch=1,
        classes=0,
        blocks=1,
        layers=1,
        unimix=0.0,
        min_std=0.1,
        activation="elu",
        norm="none",
    )
    return SimpleNamespace(rssm=RSSM(shape, 1, 1))


def normal(*means: float) -> torch.Tensor:
    """Statistics [T, 1, 2, 1] with deviation 1."""
    mean = torch.tensor(means)
    return torch.stack([mean, torch.ones_like(mean)], -1).reshape(-1, 1, 2, 1).requires_grad_()


def test_free_nats_are_per_step_before_the_mean():
    """KL = (.2, 3): max(1, KL) has the mean 2, and only the second step moves anything."""
    posterior, prior = normal(math.sqrt(0.4), math.sqrt(6)), normal(0.0, 0.0)
    for which, moved in ((0, prior), (1, posterior)):
        loss = balanced_kl(gaussian_world(), posterior, prior, number(1.0))[which].mean()
        assert loss.item() == pytest.approx(2.0, rel=1e-5)
        gradient = torch.autograd.grad(loss, moved)[0]
        assert not gradient[0].any()
        # d(m²/2)/dm = m for the posterior's mean, −m for the prior's; a mean of two steps
        sign = 1 if which else -1
        assert gradient[1, 0, 0].item() == pytest.approx(sign * math.sqrt(6) / 2, rel=1e-5)


def test_free_nats_are_those_of_the_sum_over_latents():
    """Six latents of .4 nats are 2.4, more than one nat; each alone would be free."""
    world = gaussian_world()
    mean = torch.full((1, 1, 6), math.sqrt(0.8))
    posterior = torch.stack([mean, torch.ones(1, 1, 6)], -2)
    prior = torch.stack([torch.zeros(1, 1, 6), torch.ones(1, 1, 6)], -2)
    found = balanced_kl(world, posterior, prior, number(1.0))
    assert found[0].item() == pytest.approx(2.4, rel=1e-5)


def test_each_side_of_the_divergence_teaches_one_of_the_two():
    posterior, prior = normal(2.0), normal(-1.0)
    to_prior, to_posterior = balanced_kl(gaussian_world(), posterior, prior, number(0.0))
    for loss, taught, left_alone in (
        (to_prior, prior, posterior),
        (to_posterior, posterior, prior),
    ):
        first, second = torch.autograd.grad(
            loss.sum(), (taught, left_alone), allow_unused=True, retain_graph=True
        )
        assert first.abs().max() > 0
        assert second is None


# -- the world model -------------------------------------------------------------------------------


def small_batch(length: int = 5, batch: int = 2) -> dict:
    reset = torch.zeros(length, batch, dtype=torch.bool)
    reset[0] = True
    return {
        OBS: torch.randn(length, batch, 3, generator=stream(1)),
        PREVIOUS_ACTION: torch.randint(2, (length, batch), generator=stream(2)),
        REWARD: torch.randn(length, batch, generator=stream(3)),
        RESET: reset,
        TERMINATED: torch.zeros(length, batch, dtype=torch.bool),
    }


def small_world(**more) -> WorldModel:
    torch.manual_seed(0)
    bound = np.ones(3, np.float32)
    box = Box((3,), np.dtype(np.float32), -bound, bound)
    return WorldModel(DreamerV3Config(**{**SIZES, **more}), EnvSpec("small", box, Discrete(2)))


def test_the_loss_of_the_world_model_is_the_weighted_sum_of_its_parts():
    world, batch = small_world(), small_batch()
    noise = world.noise((5, 2), stream())
    weights = {"dynamics": 0.5, "posterior": 0.25, "reward": 3.0, "continue": 7.0, "free_nats": 0.0}
    scales = {name: number(value) for name, value in weights.items()}
    loss, parts, states = world_model_loss(world, batch, world.rssm.initial(2), noise, scales)
    expected = 0.75 * parts["kl"] + 3 * parts["reward"] + 7 * parts["continue"]
    assert loss.item() == pytest.approx((expected + parts["decode/obs"]).item(), rel=1e-5)
    expected = world.observe(world.rssm.initial(2), batch, noise)[0]
    assert set(states) == set(expected)
    for key in ("deter", "stoch"):
        assert torch.equal(states[key], expected[key])


def test_the_divergence_teaches_prior_and_posterior_by_their_own_weights():
    """With dynamics alone only the prior's layers and the memory move; with posterior, not them."""
    world, batch = small_world(), small_batch()
    noise = world.noise((5, 2), stream())
    off = dict.fromkeys(("dynamics", "posterior", "reward", "continue", "free_nats"), number(0.0))
    named = dict(world.rssm.named_parameters())
    for part, taught, left_alone in (
        ("dynamics", "prior_output.bias", "posterior_output.bias"),
        ("posterior", "posterior_output.bias", "prior_output.bias"),
    ):
        start = world.rssm.initial(2)
        loss = world_model_loss(world, batch, start, noise, {**off, part: number(1.0)})[0]
        without = world_model_loss(world, batch, start, noise, off)[0]
        wanted = (named[taught], named[left_alone])
        moved = torch.autograd.grad(loss, wanted, allow_unused=True)
        plain = torch.autograd.grad(without, wanted, allow_unused=True)
        zero = torch.zeros(1)
        changes = [
            (zero if ours is None else ours) - (zero if theirs is None else theirs)
            for ours, theirs in zip(moved, plain, strict=True)
        ]
        assert changes[0].abs().max() > 1e-5
        if part == "posterior":
            assert changes[1].abs().max() < 1e-6


# -- actor and critic ------------------------------------------------------------------------------


def bandit_actor(*raw: float) -> LatentActor:
    torch.manual_seed(0)
    config = WorldModelConfig(units=4, layers=1)
    actor = LatentActor(1, Discrete(2), config, unimix=0.0, squashed=False)
    nn.init.zeros_(actor.output.weight)
    actor.output.bias.data = torch.tensor(raw)
    return actor


def test_the_reinforce_loss_by_hand():
    """Chances (¼, ¾), actions 0 and 1, advantages 2 and −1, weights 1 and ½, entropy .1."""
    actor = bandit_actor(0.0, math.log(3))
    loss, metrics, _ = reinforce_loss(
        actor,
        torch.zeros(2, 1),
        torch.eye(2),
        torch.tensor([2.0, -1.0]),
        torch.tensor([1.0, 0.5]),
        number(0.1),
    )
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    first = 2 * math.log(0.25) + 0.1 * entropy
    second = 0.5 * (-math.log(0.75) + 0.1 * entropy)
    assert loss.item() == pytest.approx(-(first + second) / 2, rel=1e-5)
    assert metrics["entropy"].item() == pytest.approx(entropy, rel=1e-5)
    gradient = torch.autograd.grad(loss, actor.output.bias)[0]
    assert gradient[0] < 0 < gradient[1]  # descent makes the better one likelier


def one_number_critic(value: float) -> Scalar:
    critic = Scalar(1, WorldModelConfig(units=4, layers=1, two_hot=False))
    nn.init.zeros_(critic.output.weight)
    nn.init.constant_(critic.output.bias, value)
    return critic


def test_the_critics_loss_by_hand():
    """V = 1, slow V = 3. Dreams: returns 2, 5, weights 1, ½: ½ (1 · ½ + ½ · 8) = 2.25.

    The pull to the slow critic is ½ · 2² = 2 per row: ½ (1 · 2 + ½ · 2) = 1.5, times its weight .1.
    Played: r = −2 on the way to a row whose dreams return 5, γ = .4: −2 + .4 · 5 = 0, weight 1,
    scale .3: .3 (½ + .1 · 2) = .21.
    """
    critic, slow = one_number_critic(1.0), torch.full((1, 2), 3.0)
    weight = torch.tensor([[1.0, 0.5]])
    dreams = CriticTargets(torch.zeros(1, 2, 1), torch.tensor([[2.0, 5.0]]), weight, slow)
    no = torch.zeros(2, 1, dtype=torch.bool)
    rows = {RESET: no, TERMINATED: no, TRUNCATED: no, REWARD: torch.tensor([[7.0], [-2.0]])}
    scales = {"gamma": 0.4, "lambda": 0.7, "slow": 0.1, "replay": 0.3}
    scales = {name: number(value) for name, value in scales.items()}
    loss, _, _ = critic_loss(critic, dreams, rows, scales)
    assert loss.item() == pytest.approx(2.25 + 0.15 + 0.21, rel=1e-5)
    alone, _, _ = critic_loss(critic, dreams._replace(target_values=None), None, scales)
    assert alone.item() == pytest.approx(2.25, rel=1e-5)


def test_returns_are_normalized_by_their_percentiles_but_never_made_larger():
    gain = torch.tensor([6.0])
    assert normalized(gain, torch.tensor([1.0, 4.0])).item() == 2.0
    assert normalized(gain, torch.tensor([1.0, 1.5])).item() == 6.0


# -- settings --------------------------------------------------------------------------------------


def test_versions_are_settings():
    first, second, third = DreamerV1Config(), DreamerV2Config(), DreamerV3Config()
    assert (first.classes, second.classes, third.classes) == (0, 8, 8)
    assert (first.actor_gradient, second.actor_gradient) == ("dynamics", "auto")
    assert third.actor_gradient == "reinforce"
    assert type(third.optimizer) is LaPropConfig
    assert (third.optimizer.name, third.optimizer.agc) == ("laprop", 0.3)
    assert type(first.optimizer) is type(second.optimizer) is OptimizerConfig
    assert (first.slow_target, second.slow_target, third.slow_target) == (False, True, False)
    assert first.horizon == second.horizon == third.horizon == 15
    assert second.dynamics_scale / second.posterior_scale == pytest.approx(4.0)


@pytest.mark.parametrize("version", [DreamerV1, DreamerV2])
def test_versions_are_declarations(version):
    """No version overrides an equation: only its config, its phases and its buffer are its own."""
    assert type(version(version.Config())) is Dreamer and Dreamer.__bases__ == (Algorithm,)
    assert [len(phase["hooks"]) for phase in version.phases] == [3]
    assert version.defaults == {"buffers": {"replay": {"type": "sequence"}}}
    assert version.roles is Dreamer.roles and version.unit_actions is True
    assert copy(version).Config is version.Config


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"batch_length": 1}, "batch_length must be at least 2, got 1"),
        ({"return_lambda": 1.5}, r"return_lambda must be in \[0, 1\], got 1.5"),
        ({"squashed": True}, "squashed needs actor_gradient dynamics"),
        ({"optimizer": OptimizerConfig(accumulate=2)}, "optimizer.accumulate must be 1"),
        ({"actor_rate": 0.0}, "actor_rate must be positive"),
        ({"deter": 9, "blocks": 2}, "blocks 2 does not divide deter 9"),
        (
            {"squashed": True, "actor_gradient": "dynamics", "entropy": 1e-3},
            "entropy has no use with squashed",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        DreamerV3Config(**wrong)


WEIGHTS = ["dynamics_scale", "posterior_scale", "reward_scale", "continue_scale", "free_nats"]
WEIGHTS += ["entropy", "exploration_noise", "slow_regularizer", "replay_value_scale"]


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_never_negative(name):
    for value in (-0.5, Schedule(start=1.0, end=-0.5)):
        with pytest.raises(ValueError, match=f"^{name} must be 0 or more, got -0.5$"):
            DreamerV3Config(**{name: value})
    assert getattr(DreamerV3Config(**{name: 0.0}), name) == 0.0


@pytest.mark.parametrize("version", ["dreamer_v2", "dreamer_v3"])
def test_a_size_of_the_paper_stands_alone(version):
    words = [f"algorithm.name={version}", "algorithm.size=12m"]
    assert tiny_config("CartPole-v1:random", *words).algorithm.dimensions().units == 256
    said = "algorithm.channels: is decided by size 12m: leave it at 16, or set size own"
    with pytest.raises(ConfigError, match=said):
        tiny_config("CartPole-v1:random", *words, "algorithm.channels=8")


def test_a_buffer_must_have_room_for_a_window():
    words = ["algorithm.name=dreamer_v3", "buffers.replay.capacity=16"]
    with pytest.raises(ConfigError, match="32"):
        tiny_config("CartPole-v1:random", *words)


def test_a_window_is_of_one_environment():
    words = ["algorithm.name=dreamer_v3", "environment.num_envs=4"]
    with pytest.raises(ConfigError, match="room for 32 of each: capacity must be 132"):
        tiny_config("CartPole-v1:random", *words, "buffers.replay.capacity=131")
    tiny_config("CartPole-v1:random", *words, "buffers.replay.capacity=132")


@pytest.mark.parametrize("key", ["unimix", "min_std", "actor_unimix"])
@pytest.mark.parametrize("version", ["dreamer_v2", "dreamer_v3"])
def test_numbers_that_are_read_once_cannot_follow_a_schedule(version, key):
    words = [f"algorithm.name={version}", f"algorithm.{key}=lin_0.1"]
    with pytest.raises(ConfigError, match=f"algorithm.{key}: must be a number"):
        tiny_config("CartPole-v1:random", *words)
